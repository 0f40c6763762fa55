"""Whether bytes are a sequence state of llama.cpp, and of which structure. Pure: bytes in, verdict out.

llama.cpp trusts what it loads: wrong counts abort the process, wrong positions give wrong answers. So bytes that come
from outside must have passed `check_part`, which lets through exactly one byte string for given tokens, apart from the
rows themselves; their values can make an answer wrong, but nothing else. The layout is in `kv_layout`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NoReturn

from llmcli.base.errors import LlmcliError
from llmcli.engine.kv_description import MAX_LAYERS, UnknownLayoutError, require_sound
from llmcli.engine.kv_layout import (
    CELL_EXTRAS,
    HEADER_BYTES,
    KINDS,
    MAGIC,
    SCRATCH,
    WINDOW,
    CellLayout,
    Rows,
    StateLayout,
    Structure,
)

MAX_SPAN_TOKENS = 1 << 16
_POSITION_END = 1 << 31


class PartRefusedError(LlmcliError):
    """Bytes that are not the part they should be."""


def check_part(structure: Structure, name: str, data: memoryview, start: int, tokens: Sequence[int]) -> None:
    """Raises PartRefusedError unless `data` is the part `name` for `tokens` at `start` and those after it.

    The size is compared first, then every byte that is not a row. Nothing is allocated but some KB per token.
    """
    if name not in structure.part_names:
        _refuse(f"{structure.kind} memory has no part {name!r}")
    if not 1 <= len(tokens) <= MAX_SPAN_TOKENS or not 0 <= start < _POSITION_END - MAX_SPAN_TOKENS:
        _refuse(f"a part for {len(tokens)} tokens at {start}")
    chunks = list(structure.chunks(name, start, tokens))
    expected = sum(len(fixed) + nbytes for fixed, nbytes in chunks)
    if data.nbytes != expected:
        _refuse(f"the {name} part has {data.nbytes} bytes, expected {expected}")
    data, offset = data.cast("B"), 0
    for fixed, nbytes in chunks:
        end = offset + len(fixed)
        if data[offset:end] != fixed:
            _refuse(
                f"the {name} part differs from its layout at byte {_first_difference(data[offset:end], fixed, offset)}"
            )
        offset = end + nbytes


def join_window(
    structure: Structure, start: int, tokens: Sequence[int], pieces: Sequence[tuple[int, memoryview]], out: memoryview
) -> None:
    """Write the window part for `tokens` at `start` to `out`, from parts of shorter spans: (tokens, part) in order."""
    readers = [(count, view, iter(_row_offsets(structure, start, tokens[:count]))) for count, view in pieces]
    offset = 0
    assert structure.window is not None  # noqa: S101
    rows_of = iter((*structure.window.keys, *structure.window.values))
    for fixed, nbytes in structure.chunks(WINDOW, start, tokens):
        out[offset : offset + len(fixed)] = fixed
        offset += len(fixed)
        if nbytes:
            _join_rows(next(rows_of), [(count, view, next(where)) for count, view, where in readers], out, offset)
            offset += nbytes


def _join_rows(rows: Rows, pieces: Sequence[tuple[int, memoryview, int]], out: memoryview, offset: int) -> None:
    for unit in range(rows.units):
        for count, view, begin in pieces:
            nbytes = count * rows.unit_bytes
            source = begin + unit * nbytes
            out[offset : offset + nbytes] = view[source : source + nbytes]
            offset += nbytes


def _row_offsets(structure: Structure, start: int, tokens: Sequence[int]) -> Iterator[int]:
    offset = 0
    for fixed, nbytes in structure.chunks(WINDOW, start, tokens):
        offset += len(fixed)
        if nbytes:
            yield offset
        offset += nbytes


def _first_difference(data: memoryview, fixed: bytes, offset: int) -> int:
    return offset + next(i for i, byte in enumerate(fixed) if data[i] != byte)


def _refuse(why: str) -> NoReturn:
    raise PartRefusedError(why)


def parse_structure(
    kinds: Sequence[str], window_tokens: int, full: bytes, partial: bytes, tokens: Sequence[int]
) -> Structure:
    """The structure behind the full and the partial state of `tokens` at position 0, in sequence SCRATCH.

    kinds   those that the model can have
    Every reading that is possible is tried: neither the extra bytes of cells nor the absence of V nor the number of
    recurrent layers is written down. Raises UnknownLayoutError unless exactly one explains every byte of both.
    """
    found = {reading for kind in kinds for reading in _readings(kind, window_tokens, full, partial, tokens)}
    if len(found) != 1:
        raise UnknownLayoutError(f"{len(found)} ways to read a sequence state of {len(full)} bytes")
    return found.pop()


def _readings(kind: str, window_tokens: int, full: bytes, partial: bytes, tokens: Sequence[int]) -> Iterator[Structure]:
    has_attention, has_window, has_recurrent = KINDS[kind]
    alone = kind in ("plain", "recurrent")  # a partial state is the full one then
    shared = len(full) if alone else len(partial) - HEADER_BYTES
    if shared < 0 or (alone and partial != full) or full[len(full) - shared :] != partial[len(partial) - shared :]:
        return
    for extra in CELL_EXTRAS:
        for attention, after_attention in _cell_readings(full, HEADER_BYTES, extra, tokens, present=has_attention):
            for window, after_window in _cell_readings(full, after_attention, extra, tokens, present=has_window):
                states, end = _read_states(full, after_window) if has_recurrent else (None, after_window)
                structure = Structure(kind, window_tokens if has_window else 0, attention, window, states)
                if end == len(full) and _explains(structure, full, after_attention, shared, tokens):
                    yield structure


def _explains(structure: Structure, full: bytes, after_attention: int, shared: int, tokens: Sequence[int]) -> bool:
    """Whether writing the structure out again gives `full`, and the partial state begins where it should."""
    if structure.kind not in ("plain", "recurrent") and after_attention != len(full) - shared:
        return False
    try:
        require_sound(structure)
    except UnknownLayoutError:
        return False
    chunks = [(struct.pack("<Ii", MAGIC, SCRATCH), 0)]
    for cells in filter(None, (structure.attention, structure.window)):
        chunks += cells.chunks(0, tokens)
    if structure.recurrent:
        chunks += structure.recurrent.chunks(len(tokens) - 1)
    offset = 0
    for fixed, nbytes in chunks:
        if full[offset : offset + len(fixed)] != fixed:
            return False
        offset += len(fixed) + nbytes
    return offset == len(full)


def _cell_readings(
    data: bytes, offset: int, extra: str, tokens: Sequence[int], *, present: bool
) -> Iterator[tuple[CellLayout | None, int]]:
    """Ways to read a section of cells at `offset`, and where it ends: with V and without."""
    if not present:
        yield None, offset
        return
    count = len(tokens)
    offset += 8 + count * (12 if extra == "none" else 24)
    if len(data) < offset + 8:
        return
    transposed, n_layer = struct.unpack_from("<II", data, offset)
    if transposed > 1 or not 1 <= n_layer <= MAX_LAYERS:
        return
    keys, offset = _read_rows(data, offset + 8, n_layer, count, transposed=False)
    if len(keys) == n_layer:
        yield CellLayout(bool(transposed), extra, keys, ()), offset
        values, offset = _read_rows(data, offset, n_layer, count, transposed=bool(transposed))
        if len(values) == n_layer:
            yield CellLayout(bool(transposed), extra, keys, values), offset


def _read_states(data: bytes, offset: int) -> tuple[StateLayout | None, int]:
    """The recurrent section that fills the rest of `data`."""
    offset += 12
    if len(data) < offset + 8:
        return None, offset
    n_layer = struct.unpack_from("<I", data, offset + 4)[0]
    rows, offset = _read_rows(data, offset + 8, min(2 * n_layer, 2 * MAX_LAYERS), 1, transposed=False)
    return StateLayout(n_layer, rows), offset


def _read_rows(data: bytes, offset: int, most: int, count: int, *, transposed: bool) -> tuple[tuple[Rows, ...], int]:
    """Up to `most` tensors of `count` cells, as far as they lie within `data`."""
    found: list[Rows] = []
    while len(found) < most and len(data) >= offset + 12:
        rows = Rows(*struct.unpack_from("<iII" if transposed else "<iQ", data, offset))
        if offset + 12 + rows.cell_bytes * count > len(data):
            break
        found.append(rows)
        offset += 12 + rows.cell_bytes * count
    return tuple(found), offset
