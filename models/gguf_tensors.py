"""The list of tensors in the header of a GGUF file: name, shape, type and place of each, all of them checked."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import NamedTuple

from llmcli.models.gguf_source import U32, U64, Source, quoted
from llmcli.models.gguf_types import GGML_TYPES, REMOVED_TYPES
from llmcli.models.tensor_list import Kind, TensorList

MAX_NAME_BYTES = 63  # GGML_MAX_NAME holds one more for the final NUL
MAX_DIMENSIONS = 4
_PLAIN_SIZE = 1 << 31
_PIECE_BYTES = 1 << 16
_USUAL_ENTRY_BYTES = 96
# The length of the name, at most what one byte holds; the name; number of dimensions, likewise; shape, type, offset.
_LONGEST_CUT_BYTES = 8 + 255 + 4 + 8 * 255 + 4 + 8
_CAREFUL_ENTRIES = 512  # about as many as a piece holds: beside an odd one the others are read twice and not each time


def read_tensors(source: Source, count: int) -> TensorList:
    """The next `count` entries. Raises ModelError for what is no tensor, or is there twice."""
    found = _Columns([], [], [], set(), {})
    while len(found.names) < count:
        if not _read_plain(source, count - len(found.names), found):
            for _ in range(min(_CAREFUL_ENTRIES, count - len(found.names))):
                _read_entry(source, found)
    return TensorList(found.names, found.kinds, found.offsets)


class _Columns(NamedTuple):
    """What was read so far; `known`: shapes and types by their bytes, since most entries have those of another one."""

    names: list[bytes]
    kinds: list[Kind]
    offsets: list[int]
    seen: set[bytes]
    known: dict[bytes, Kind | None]

    def add(self, names: Iterable[bytes], kinds: Iterable[Kind], offsets: Iterable[int]) -> None:
        self.names.extend(names)
        self.kinds.extend(kinds)
        self.offsets.extend(offsets)


def _read_plain(source: Source, most: int, found: _Columns) -> bool:
    """Add as many entries as one look shows; none, and False, where anything is odd about any of them."""
    piece = source.ahead(min(_PIECE_BYTES, most * _USUAL_ENTRY_BYTES + _LONGEST_CUT_BYTES))
    parts, taken = _cut(piece, most)
    fresh, known = set(parts.names), found.known
    if not fresh or len(fresh) < len(parts.names) or not found.seen.isdisjoint(fresh) or not _are_plain(fresh):
        return False
    if any(parts.zeros):
        return False
    known.update((middle, _plain_kind(middle)) for middle in set(parts.middles).difference(known))
    kinds = [kind for middle in parts.middles if (kind := known[middle])]
    if len(kinds) < len(parts.names):
        return False
    found.add(parts.names, kinds, struct.unpack(f"<{len(kinds)}Q", b"".join(parts.offsets)))
    found.seen.update(fresh)
    source.position += taken
    return True


def _are_plain(names: set[bytes]) -> bool:
    lengths = set(map(len, names))
    return min(lengths) > 0 and max(lengths) <= MAX_NAME_BYTES and b"\0" not in b" ".join(names)


class _Parts(NamedTuple):
    """Entries cut up: their names; number of dimensions, shape and type; offsets; and what has to be zero."""

    names: list[bytes]
    middles: list[bytes]
    offsets: list[bytes]
    zeros: bytes


def _cut(piece: bytes, most: int) -> tuple[_Parts, int]:
    """Up to `most` entries and how many bytes they are, cut without a look at what they say.

    A list of models runs through this loop a hundred thousand times. So it does nothing that can be done later for all
    entries together.
    """
    names: list[bytes] = []
    middles: list[bytes] = []
    offsets: list[bytes] = []
    zeros: list[bytes] = []
    at, last = 0, len(piece) - _LONGEST_CUT_BYTES
    while at <= last and len(names) < most:
        behind = at + 8 + piece[at]
        end = behind + 8 + 8 * piece[behind]
        zeros.append(piece[at + 1 : at + 8])
        names.append(piece[at + 8 : behind])
        middles.append(piece[behind:end])
        at = end + 8
        offsets.append(piece[end:at])
    return _Parts(names, middles, offsets, b"".join(zeros)), at


def _plain_kind(what: bytes) -> Kind | None:
    """(shape, type, bytes of the tensor) of the middle of an entry: number of dimensions, shape, type."""
    (dimensions,) = U32.unpack_from(what)
    if not 0 < dimensions <= MAX_DIMENSIONS:
        return None
    *shape, type_id = struct.unpack_from(f"<{dimensions}QI", what, 4)
    kind = GGML_TYPES.get(type_id)
    if kind is None or min(shape) == 0 or max(shape) > _PLAIN_SIZE or shape[0] % kind.block_elements:
        return None
    rows = math.prod(shape[1:])
    if rows * shape[0] >= 1 << 63:
        return None
    return tuple(shape), type_id, shape[0] // kind.block_elements * kind.block_bytes * rows


def _read_entry(source: Source, found: _Columns) -> None:
    start, index = source.position, len(found.names)
    raw = source.text(MAX_NAME_BYTES, f"the name of tensor {index}")
    name = raw.decode("utf-8", "surrogateescape")
    if not raw or b"\0" in raw:
        source.fail(f"the name of tensor {index} is {quoted(name)}", start)
    if raw in found.seen:
        source.fail(f"tensor {quoted(name)} is there twice", start)
    kind = _read_kind(source, f"tensor {quoted(name)}")
    offset = source.number(U64, "the offset of tensor", name)
    found.seen.add(raw)
    found.add([raw], [kind], [offset])


def _read_kind(source: Source, what: str) -> Kind:
    start = source.position
    dimensions = source.number(U32, f"the shape of {what}")
    if dimensions > MAX_DIMENSIONS:
        source.fail(f"{what} has {dimensions} dimensions, expected at most {MAX_DIMENSIONS}", start)
    shape = tuple(source.number(U64, f"the shape of {what}") for _ in range(dimensions)) or (1,)
    elements = 1
    for size in shape:
        elements *= size
        if not 0 < size < 1 << 63 or elements >= 1 << 63:
            source.fail(f"{what} has shape {list(shape)}, expected sizes from 1 and a product below 2^63", start + 4)
    type_at = source.position
    type_id = source.number(U32, f"the type of {what}")
    kind = GGML_TYPES.get(type_id)
    if kind is None:
        known = REMOVED_TYPES.get(type_id)
        found = f"type {type_id} ({known}, which llama.cpp has removed)" if known else f"the unknown type {type_id}"
        source.fail(f"{what} has {found}", type_at)
    blocks, rest = divmod(shape[0], kind.block_elements)
    if rest:
        source.fail(f"{what} has rows of {shape[0]}, expected a multiple of {kind.block_elements} ({kind.name})", start)
    return shape, type_id, blocks * kind.block_bytes * (elements // shape[0])
