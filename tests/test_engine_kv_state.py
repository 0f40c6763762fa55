"""The bytes of sequence states, without llama.cpp: `kv_layout`, `kv_description` and `kv_state`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import struct
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.engine.kv_description import UnknownLayoutError, digest, from_json, to_json
from llmcli.engine.kv_layout import (
    ATTENTION,
    KINDS,
    MAGIC,
    SCRATCH,
    STATE,
    WINDOW,
    CellLayout,
    Rows,
    StateLayout,
    Structure,
)
from llmcli.engine.kv_state import MAX_SPAN_TOKENS, PartRefusedError, check_part, join_window, parse_structure

F16, Q8 = 1, 8
PLAIN = CellLayout(False, "none", (Rows(F16, 8), Rows(F16, 6)), (Rows(Q8, 34), Rows(Q8, 34)))
TRANSPOSED = CellLayout(True, "none", (Rows(F16, 8), Rows(F16, 6)), (Rows(F16, 2, 4), Rows(F16, 2, 3)))
LATENT = CellLayout(False, "none", (Rows(F16, 80), Rows(F16, 80)), ())
STATES = StateLayout(4, (Rows(0, 24), Rows(0, 24), Rows(0, 0), Rows(0, 0)))
STRUCTURES = {
    "plain": Structure("plain", attention=PLAIN),
    "transposed": Structure("plain", attention=TRANSPOSED),
    "latent": Structure("plain", attention=LATENT),
    "token cells": Structure("plain", attention=dataclasses.replace(PLAIN, cell_extra="token")),
    "position cells": Structure("plain", attention=dataclasses.replace(TRANSPOSED, cell_extra="position")),
    "window": Structure("window", 64, PLAIN, TRANSPOSED),
    "window of latent layers": Structure("window", 64, LATENT, LATENT),
    "hybrid": Structure("hybrid", attention=TRANSPOSED, recurrent=STATES),
    "hybrid-window": Structure("hybrid-window", 64, PLAIN, PLAIN, STATES),
    "recurrent": Structure("recurrent", recurrent=STATES),
}
PARTS = [(label, name) for label, structure in STRUCTURES.items() for name in structure.part_names]
START, TOKENS = 300, (7, 11, 0, 127, 5)


def written(chunks: Sequence[tuple[bytes, int]], seed: int = 1) -> bytes:
    rng = random.Random(seed)
    return b"".join(fixed + rng.randbytes(nbytes) for fixed, nbytes in chunks)


def part(structure: Structure, name: str, start: int = START, tokens: Sequence[int] = TOKENS) -> bytes:
    return written(list(structure.chunks(name, start, tokens)))


def fixed_offsets(structure: Structure, name: str) -> list[int]:
    found: list[int] = []
    offset = 0
    for fixed, nbytes in structure.chunks(name, START, TOKENS):
        found += range(offset, offset + len(fixed))
        offset += len(fixed) + nbytes
    return found


def refused(
    structure: Structure, name: str, data: bytes | bytearray, start: int = START, tokens: Sequence[int] = TOKENS
) -> bool:
    try:
        check_part(structure, name, memoryview(data), start, tokens)
    except PartRefusedError:
        return True
    return False


def states(structure: Structure, tokens: Sequence[int]) -> tuple[bytes, bytes]:
    """The full and the partial state of `tokens` at 0, as llama.cpp writes them."""
    header = struct.pack("<Ii", MAGIC, SCRATCH)
    sections = [written(list(cells.chunks(0, tokens))) for cells in (structure.attention, structure.window) if cells]
    if structure.recurrent:
        sections.append(written(list(structure.recurrent.chunks(len(tokens) - 1))))
    full = header + b"".join(sections)
    return full, header + b"".join(sections[1:]) if len(structure.part_names) > 1 else full


# The layout


def test_bytes_of_a_plain_part() -> None:
    cells = CellLayout(False, "none", (Rows(F16, 2),), (Rows(F16, 4),))
    expected = struct.pack("<Ii", 0xAF143CD8, 1) + struct.pack("<II", 1, 2)
    expected += struct.pack("<iIi", 9, 1, 1) + struct.pack("<iIi", 10, 1, 1) + struct.pack("<II", 0, 1)
    expected += struct.pack("<iQ", 1, 2) + bytes(4) + struct.pack("<iQ", 1, 4) + bytes(8)
    assert Structure("plain", attention=cells).blank(ATTENTION, 9, (3, 4)) == expected


def test_bytes_of_cells_with_more_in_them() -> None:
    for extra, between in (("token", (0, 0, 42)), ("position", (9, 9, 42))):
        cells = CellLayout(True, extra, (Rows(F16, 2),), (Rows(F16, 2, 3),))
        data = Structure("plain", attention=cells).blank(ATTENTION, 9, (42,))
        assert data[16:40] == struct.pack("<iIiiii", 9, 1, *between, 1)
        assert data[40:] == struct.pack("<IIiQ", 1, 1, 1, 2) + bytes(2) + struct.pack("<iII", 1, 2, 3) + bytes(6)


def test_the_other_sections_of_a_part_are_empty() -> None:
    structure = Structure("hybrid-window", 64, LATENT, LATENT, StateLayout(3, (Rows(0, 8), Rows(0, 4))))
    no_state = struct.pack("<III", 0, 0, 3) + struct.pack("<iQ", 0, 8) + struct.pack("<iQ", 0, 4)
    no_window = struct.pack("<II", 1, 0)
    header = struct.pack("<Ii", MAGIC, SCRATCH)
    cells = written(list(LATENT.chunks(START, TOKENS)), seed=0)
    assert len(part(structure, ATTENTION)) == len(header + cells + no_window + no_state)
    assert part(structure, ATTENTION).endswith(no_window + no_state)
    assert part(structure, WINDOW)[8:].startswith(struct.pack("<II", 1, 5))
    assert part(structure, WINDOW).endswith(no_state)
    with_state = struct.pack("<IiIII", 1, 304, 0, 0, 3) + struct.pack("<iQ", 0, 8) + bytes(8) + struct.pack("<iQ", 0, 4)
    assert structure.blank(STATE, START, TOKENS) == header + no_window + with_state + bytes(4)
    assert structure.without_rows() == header + no_window + no_state


@pytest.mark.parametrize(("label", "name"), PARTS)
@pytest.mark.parametrize("count", [1, 5, 256])
def test_sizes_are_those_of_the_bytes(label: str, name: str, count: int) -> None:
    structure = STRUCTURES[label]
    assert structure.part_bytes(name, count) == len(structure.blank(name, 0, range(count)))
    if structure.attention and name == ATTENTION:
        assert structure.attention_bytes(count) == sum(
            len(f) + n for f, n in structure.attention.chunks(0, [0] * count)
        )
        assert structure.attention_bytes(0) == 8


def test_needed_parts() -> None:
    structure = STRUCTURES["hybrid-window"]
    assert structure.part_names == (ATTENTION, WINDOW, STATE)
    assert structure.needed_parts(256, 512) == (ATTENTION,)
    assert structure.needed_parts(448, 512) == (ATTENTION,)  # the token at 512 sees 449 and those behind
    assert structure.needed_parts(449, 512) == (ATTENTION, WINDOW)
    assert structure.needed_parts(512, 512) == (ATTENTION, WINDOW, STATE)
    assert STRUCTURES["window"].needed_parts(512, 400) == (ATTENTION, WINDOW)
    assert STRUCTURES["plain"].needed_parts(256, 512) == (ATTENTION,)
    assert STRUCTURES["recurrent"].needed_parts(256, 512) == ()
    assert [s.ends_anywhere for s in STRUCTURES.values()] == [s.recurrent is None for s in STRUCTURES.values()]


# check_part


@pytest.mark.parametrize(("label", "name"), PARTS)
def test_the_part_itself_passes(label: str, name: str) -> None:
    check_part(STRUCTURES[label], name, memoryview(part(STRUCTURES[label], name)), START, TOKENS)


@pytest.mark.parametrize(("label", "name"), PARTS)
def test_every_changed_byte_of_the_structure_is_refused(label: str, name: str) -> None:
    structure = STRUCTURES[label]
    data, offsets = bytearray(part(structure, name)), fixed_offsets(structure, name)
    for offset, change in itertools.product(offsets, (0x01, 0x80, 0xFF)):
        data[offset] ^= change
        assert refused(structure, name, data), offset
        data[offset] ^= change
    rows = sorted(set(range(len(data))) - set(offsets))
    for offset in rows:  # the store's checksum is there for these
        data[offset] ^= 0xFF
        assert not refused(structure, name, data)


@pytest.mark.parametrize(("label", "name"), PARTS)
@given(data=st.data())
def test_other_sizes_and_other_bytes_are_refused(label: str, name: str, data: st.DataObject) -> None:
    structure = STRUCTURES[label]
    whole = part(structure, name)
    assert refused(structure, name, whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert refused(structure, name, whole + data.draw(st.binary(min_size=1, max_size=50)))
    assert refused(structure, name, data.draw(st.binary(max_size=400)))


@pytest.mark.parametrize(("label", "name"), PARTS)
def test_a_part_fits_its_own_tokens_and_structure_only(label: str, name: str) -> None:
    structure, data = STRUCTURES[label], part(STRUCTURES[label], name)
    own = list(structure.chunks(name, START, TOKENS))
    assert refused(structure, name, data, START + 1)
    assert refused(structure, name, data, START, (*TOKENS, 1))
    for other_label, other_name in PARTS:
        other = list(STRUCTURES[other_label].chunks(other_name, START, TOKENS))
        assert refused(STRUCTURES[other_label], other_name, data) == (other != own)
    if structure.attention and structure.attention.cell_extra != "none":
        assert refused(structure, name, data, START, (8, *TOKENS[1:]))


@pytest.mark.parametrize("start", [-1, (1 << 31) - MAX_SPAN_TOKENS, 1 << 40])
def test_impossible_positions_are_refused(start: int) -> None:
    assert refused(STRUCTURES["plain"], ATTENTION, b"", start)


def test_impossible_spans_are_refused_without_memory_for_them() -> None:
    tracemalloc.start()
    try:
        assert refused(STRUCTURES["plain"], ATTENTION, b"", 0, ())
        assert refused(STRUCTURES["plain"], ATTENTION, b"", 0, range(MAX_SPAN_TOKENS + 1))
        assert refused(STRUCTURES["plain"], STATE, b"")
        assert refused(STRUCTURES["plain"], "", b"")
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_the_message_names_the_place() -> None:
    data = bytearray(part(STRUCTURES["plain"], ATTENTION))
    data[17] ^= 1
    with pytest.raises(PartRefusedError, match=r"^the attn part differs from its layout at byte 17$"):
        check_part(STRUCTURES["plain"], ATTENTION, memoryview(data), START, TOKENS)


# join_window


@pytest.mark.parametrize("cells", [PLAIN, TRANSPOSED, LATENT])
@pytest.mark.parametrize("bounds", [(0, 5), (0, 2, 5), (0, 1, 2, 3, 4, 5)])
@pytest.mark.parametrize("kind", ["window", "hybrid-window"])
def test_pieces_join_to_the_whole(cells: CellLayout, bounds: tuple[int, ...], kind: str) -> None:
    structure = Structure(kind, 2, PLAIN, cells, STATES if kind == "hybrid-window" else None)
    whole = part(structure, WINDOW)
    pieces = [(end - start, memoryview(cut(structure, whole, start, end))) for start, end in itertools.pairwise(bounds)]
    out = bytearray(len(whole))
    join_window(structure, START, TOKENS, pieces, memoryview(out))
    assert out == whole


def cut(structure: Structure, whole: bytes, start: int, end: int) -> bytes:
    """The part of tokens [start, end) of a part, element by element."""
    assert structure.window is not None
    rows = iter((*structure.window.keys, *structure.window.values))
    pieces, offset = [], 0
    for (fixed, nbytes), (small, _) in zip(
        structure.chunks(WINDOW, START, TOKENS),
        structure.chunks(WINDOW, START + start, TOKENS[start:end]),
        strict=True,
    ):
        offset += len(fixed)
        pieces.append(small)
        if nbytes:
            row = next(rows)
            for unit, cell in itertools.product(range(row.units), range(start, end)):
                at = offset + (unit * len(TOKENS) + cell) * row.unit_bytes
                pieces.append(whole[at : at + row.unit_bytes])
        offset += nbytes
    return b"".join(pieces)


# parse_structure


@pytest.mark.parametrize("label", STRUCTURES)
def test_the_structure_is_found_again(label: str) -> None:
    structure = STRUCTURES[label]
    full, partial = states(structure, (0, 1))
    assert parse_structure(tuple(KINDS), structure.window_tokens, full, partial, (0, 1)) == structure
    others = [kind for kind in KINDS if kind != structure.kind]
    with pytest.raises(UnknownLayoutError):
        parse_structure(others, 64, full, partial, (0, 1))


@pytest.mark.parametrize("label", STRUCTURES)
def test_a_state_of_unknown_layout_is_refused(label: str) -> None:
    structure = STRUCTURES[label]
    full, partial = states(structure, (0, 1))
    more = struct.pack("<II", 1, 2)  # as indexer caches have: one section more
    for bad_full, bad_partial in ((full + more, partial + more), (full[:-1], partial[:-1]), (b"", b""), (full, b"")):
        with pytest.raises(UnknownLayoutError):
            parse_structure((structure.kind,), structure.window_tokens, bad_full, bad_partial, (0, 1))


@pytest.mark.parametrize("label", STRUCTURES)
@given(data=st.data())
def test_parsing_ends_whatever_the_bytes(label: str, data: st.DataObject) -> None:
    structure = STRUCTURES[label]
    full, partial = states(structure, (0, 1))
    changed = bytearray(full)
    changed[data.draw(st.integers(0, len(full) - 1))] = data.draw(st.integers(0, 255))
    changed = changed[: data.draw(st.integers(0, len(full)))]
    try:
        found = parse_structure(tuple(KINDS), 64, bytes(changed), bytes(changed[-len(partial) :]), (0, 1))
    except UnknownLayoutError:
        return
    assert found == from_json(to_json(found))


# Descriptions


@pytest.mark.parametrize("label", STRUCTURES)
def test_a_description_comes_back(label: str) -> None:
    text = to_json(STRUCTURES[label])
    assert from_json(text) == STRUCTURES[label] and to_json(from_json(text)) == text and "\n" not in text


def test_digests_tell_structures_apart() -> None:
    assert len({digest(structure) for structure in STRUCTURES.values()}) == len(STRUCTURES)
    assert digest(from_json(to_json(STRUCTURES["window"]))) == digest(STRUCTURES["window"])
    assert len(digest(STRUCTURES["plain"])) == 64


def changed(label: str, **changes: object) -> str:
    return json.dumps(json.loads(to_json(STRUCTURES[label])) | changes)


def cells(**changes: object) -> dict[str, object]:
    return {**json.loads(to_json(STRUCTURES["plain"]))["attention"], **changes}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        changed("plain", kind="other"),
        changed("plain", kind="window"),
        changed("plain", kind=["plain"]),
        changed("plain", window_tokens="64"),
        changed("window", window_tokens=0),
        changed("plain", extra=1),
        changed("plain", attention=cells(keys=[])),
        changed("plain", attention=cells(keys=[[1, 8, 1]] * 1025)),
        changed("plain", attention=cells(keys=[[1, 8, 1]])),
        changed("plain", attention=cells(keys=[[1, -8, 1], [1, 8, 1]])),
        changed("plain", attention=cells(keys=[[1, 0, 1], [1, 8, 1]])),
        changed("plain", attention=cells(keys=[[1, 1 << 29, 1], [1, 8, 1]])),
        changed("plain", attention=cells(keys=[[1, 1 << 70, 1], [1, 8, 1]])),
        changed("plain", attention=cells(keys=[[1, 1 << 26, 1], [1, 8, 1]])),
        changed("plain", attention=cells(keys=[[1, 1 << 62, "x"], [1, 8, 1]])),
        changed("plain", attention=cells(keys=[[1, 8, True], [1, 8, 1]])),
        changed("plain", attention=cells(keys=[[5, 8, 1], [1, 8, 1]])),
        changed("plain", attention=cells(keys=[[1, 8, 2], [1, 8, 1]])),
        changed("plain", attention=cells(keys=[[1.0, 8, 1], [1, 8, 1]])),
        changed("plain", attention=cells(keys="ab")),
        changed("plain", attention=cells(transposed=1)),
        changed("plain", attention=cells(transposed="no")),
        changed("plain", attention=cells(cell_extra="both")),
        changed("plain", attention=cells(cell_extra=["none"])),
        changed("plain", attention=cells(_tensors=[])),
        changed("recurrent", recurrent={"n_layer": 4, "rows": [[0, 8, 1]]}),
        changed("recurrent", recurrent={"n_layer": 4, "rows": [[0, 8, 1]] * 3}),
        changed("recurrent", recurrent={"n_layer": 1, "rows": [[0, 8, 1]] * 4}),
        changed("recurrent", recurrent={"n_layer": 4, "rows": [[0, 8, 1], [0, 4, 1], [0, 4, 1], [0, 4, 1]]}),
        changed("recurrent", recurrent={"n_layer": 4, "rows": [[1, 8, 1]] * 4}),
        changed("recurrent", recurrent={"n_layer": "4", "rows": [[0, 8, 1]] * 4}),
        changed("recurrent", recurrent={"n_layer": 4, "rows": [[0, 1 << 29, 1]] * 4}),
    ],
)
def test_a_description_that_nobody_wrote_is_refused(text: str) -> None:
    with pytest.raises(UnknownLayoutError):
        from_json(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(label=st.sampled_from(sorted(STRUCTURES)), data=st.data())
def test_a_changed_description_is_refused_or_sound(label: str, data: st.DataObject) -> None:
    found = json.loads(to_json(STRUCTURES[label]))
    holder = data.draw(st.sampled_from([found, *(value for value in found.values() if isinstance(value, dict))]))
    holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(JSON)
    try:
        again = from_json(json.dumps(found))
    except UnknownLayoutError:
        return
    assert len(again.blank(again.part_names[0], 0, (0,))) < 1 << 27
