"""The list of tensors in the header of a GGUF file: name, shape, type and place of each, all of them checked."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple, TypeAlias

from llmcli.base.text import printable
from llmcli.models.gguf_source import U32, U64, Source
from llmcli.models.gguf_types import GGML_TYPES, REMOVED_TYPES

MAX_NAME_BYTES = 63  # GGML_MAX_NAME holds one more for the final NUL
MAX_DIMENSIONS = 4
_PLAIN_SIZE = 1 << 31
# An entry without name and shape: the length of the name, the number of dimensions, type and offset.
_FRAME_BYTES = 8 + 4 + 4 + 8
_LONGEST_ENTRY_BYTES = _FRAME_BYTES + MAX_NAME_BYTES + 8 * MAX_DIMENSIONS
_PIECE_BYTES = 1 << 16
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


def read_tensors(source: Source, count: int) -> tuple[GgufTensor, ...]:
    """The next `count` entries. Raises ModelError for what is no tensor, or is there twice."""
    found: list[GgufTensor] = []
    names: set[str] = set()
    # Most entries have a shape and type that another one had: what they come to is looked up by their bytes.
    kinds: dict[bytes, _Kind | None] = {}
    while len(found) < count:
        start = source.position
        _read_plain(source, count, found, names, kinds)
        if source.position == start:
            found.append(_read_entry(source, len(found), names))
    return tuple(found)


def _read_plain(
    source: Source, count: int, found: list[GgufTensor], names: set[str], kinds: dict[bytes, _Kind | None]
) -> None:
    """As many entries as follow with nothing odd about them, without a call for each field; stops before others."""
    at, unpack = 0, U64.unpack_from
    piece = bytes(memoryview(source.data)[source.position : min(source.filled, source.position + _PIECE_BYTES)])
    last = len(piece) - _LONGEST_ENTRY_BYTES
    while at <= last and len(found) < count:
        (size,) = unpack(piece, at)
        if not 0 < size <= MAX_NAME_BYTES:
            break
        behind = at + 8 + size
        end = behind + 8 + 8 * piece[behind]
        what, raw = piece[behind:end], piece[at + 8 : behind]
        kind = kinds[what] if what in kinds else kinds.setdefault(what, _plain_kind(what))
        name = raw.decode("ascii", "ignore")
        if kind is None or len(name) != size or "\0" in name or name in names:
            break
        names.add(name)
        found.append(GgufTensor(name, kind[0], kind[1], unpack(piece, end)[0], kind[2]))
        at = end + 8
    source.position += at


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


def quoted(name: str) -> str:
    """A name of the file inside a message: short, harmless on a terminal."""
    return repr(printable(name[:64])) if len(name) <= 64 else repr(printable(name[:64]) + "…")
