"""The list of tensors in the header of a GGUF file: name, shape, type and place of each, all of them checked."""

from __future__ import annotations

import math
import struct
from functools import partial
from typing import NamedTuple, TypeAlias

from llmcli.models.gguf_source import U32, U64, Source, quoted
from llmcli.models.gguf_types import GGML_TYPES, REMOVED_TYPES

MAX_NAME_BYTES = 63  # GGML_MAX_NAME holds one more for the final NUL
MAX_DIMENSIONS = 4
_PLAIN_SIZE = 1 << 31
_PIECE_BYTES = 1 << 16
_USUAL_ENTRY_BYTES = 96
# The length of the name, at most what one byte holds; the name; number of dimensions, likewise; shape, type, offset.
_LONGEST_CUT_BYTES = 8 + 255 + 4 + 8 * 255 + 4 + 8
_CAREFUL_ENTRIES = 512  # about as many as a piece holds: beside an odd one the others are read twice and not each time
_Kind: TypeAlias = tuple[tuple[int, ...], int, int]


class GgufTensor(NamedTuple):
    """One entry of the tensor list. A tuple, because a list of models makes a hundred thousand of them.

    shape   ggml order: the fastest dimension first, at least one
    offset  from the start of the data, in bytes
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        """How many weights it holds."""
        return math.prod(self.shape)


_made_of = partial(tuple.__new__, GgufTensor)  # of a tuple, without a call of Python's


def read_tensors(source: Source, count: int) -> tuple[GgufTensor, ...]:
    """The next `count` entries. Raises ModelError for what is no tensor, or is there twice."""
    found: list[GgufTensor] = []
    names: set[str] = set()
    # Most entries have a shape and type that another one had: what they come to is looked up by their bytes.
    kinds: dict[bytes, _Kind | None] = {}
    while len(found) < count:
        plain = _read_plain(source, count - len(found), names, kinds)
        found += plain
        for _ in range(0 if plain else min(_CAREFUL_ENTRIES, count - len(found))):
            found.append(_read_entry(source, len(found), names))
    return tuple(found)


def _read_plain(source: Source, most: int, names: set[str], kinds: dict[bytes, _Kind | None]) -> list[GgufTensor]:
    """As many entries as one look shows, if nothing is odd about any of them; else none, and nothing is passed."""
    piece = source.ahead(min(_PIECE_BYTES, most * _USUAL_ENTRY_BYTES + _LONGEST_CUT_BYTES))
    parts, taken = _cut(piece, most)
    text = b" ".join(parts.names)
    if any(parts.zeros) or not text.isascii() or b"\0" in text:
        return []
    ordered = text.decode("ascii").split(" ")
    fresh = {name for name in ordered if 0 < len(name) <= MAX_NAME_BYTES}
    # A blank in a name makes more of them than there were; so does no entry at all, of which split makes one name.
    if len(ordered) != len(parts.names) or len(fresh) < len(ordered) or not names.isdisjoint(fresh):
        return []
    kinds.update((middle, _plain_kind(middle)) for middle in set(parts.middles).difference(kinds))
    found = [kind for middle in parts.middles if (kind := kinds[middle])]
    if len(found) < len(ordered):
        return []
    names |= fresh
    source.position += taken
    shapes, type_ids, sizes = zip(*found, strict=True)
    offsets = struct.unpack(f"<{len(found)}Q", b"".join(parts.offsets))
    return list(map(_made_of, zip(ordered, shapes, type_ids, offsets, sizes, strict=True)))


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


def _plain_kind(what: bytes) -> _Kind | None:
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


def _read_entry(source: Source, index: int, names: set[str]) -> GgufTensor:
    start = source.position
    raw = source.text(MAX_NAME_BYTES, f"the name of tensor {index}")
    name = raw.decode("utf-8", "surrogateescape")
    if not raw or b"\0" in raw:
        source.fail(f"the name of tensor {index} is {quoted(name)}", start)
    if name in names:
        source.fail(f"tensor {quoted(name)} is there twice", start)
    names.add(name)
    return _read_tensor(source, name)


def _read_tensor(source: Source, name: str) -> GgufTensor:
    start = source.position
    what = f"tensor {quoted(name)}"
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
    nbytes = blocks * kind.block_bytes * (elements // shape[0])
    return GgufTensor(name, shape, type_id, source.number(U64, f"the offset of {what}"), nbytes)
