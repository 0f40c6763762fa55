"""The bytes of a block file, version 1, little-endian. Pure: nothing here opens a file.

    fixed      magic, version, header bytes, file bytes, key, parent, grandparent, fingerprint, salt digest,
               first position, tokens, parts, flags, preview bytes, time of writing
    per part   name[16], offset, bytes, xxh3_128
    tokens     int32 each
    preview    UTF-8, for people
    zeros      up to a multiple of 64
    xxh3_128   of everything above
    parts      one after the other; the first starts right behind the header, the last ends with the file

Every byte of the file is under exactly one checksum. The header fits one page, so one small read tells all about
a block but its parts. The grandparent is there so that a chain can be climbed by path: a path needs key and parent.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import xxhash

from llmcli.base.errors import LlmcliError
from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.cache_store.keys import BLOCK_TOKENS, FORMAT_VERSION, KEY_BYTES, NO_KEY, TOKEN_BYTES, Key, Namespace

MAGIC = b"\x89LLMKV\r\n"  # as in PNG: a byte above 127 and a line end, so a text-mode copy is noticed at once
MAX_HEADER_BYTES = 4096
MAX_FILE_BYTES = 4 << 30  # no model comes near; a made-up sparse file could otherwise ask for any amount
MAX_PARTS = 8
MAX_PREVIEW_BYTES = 512
PART_NAME_BYTES = 16
CHECKSUM_BYTES = 16
_ALIGN = 64
_INEXACT = 1
_FIXED = struct.Struct("<8sIIQ32s32s32s32s32sIHBBHd")
_PART = struct.Struct("<16sQQ16s")


class DamagedError(LlmcliError):
    """A block that must not be used.

    removable   True where the file's own bytes are wrong; False for a failing disk, a vanished file or a format
                that another version of llmcli may be able to read
    """

    def __init__(self, message: str, *, removable: bool = True) -> None:
        super().__init__(message, hint="llmcli cache verify --repair")
        self.removable = removable


class PartEntry(NamedTuple):
    """Where a part lies in the file and what its bytes hash to."""

    offset: int
    nbytes: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What a block file says about itself. `tokens` are packed; `start_tokens` is the position of the first one."""

    key: Key
    parent: Key
    grandparent: Key
    fingerprint: bytes
    salt: bytes
    start_tokens: int
    tokens: bytes
    exact: bool
    preview: str
    created_s: float
    header_bytes: int
    file_bytes: int
    parts: Mapping[str, PartEntry]

    @property
    def n_tokens(self) -> int:
        """Tokens in this block."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def namespace(self) -> Namespace:
        """The fingerprint and salt that the block was written for."""
        return Namespace(self.fingerprint, self.salt)

    def key_is_its_own(self) -> bool:
        """Whether the key follows from what the header says: false for a header that was made up."""
        follows = self.key == self.namespace.key(self.parent, self.tokens, exact=self.exact)
        is_first = self.parent == self.namespace.root
        return follows and is_first == (self.start_tokens == 0) == (self.grandparent == NO_KEY)


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A block about to be written: the header's facts and the bytes of each part."""

    namespace: Namespace
    key: Key
    parent: Key
    grandparent: Key
    start_tokens: int
    tokens: bytes
    exact: bool
    preview: str
    created_s: float
    parts: Mapping[str, memoryview]


def pack_header(block: NewBlock) -> bytes:
    """The header of `block`; hashes its parts. Raises ValueError for what the format cannot hold."""
    n_tokens = len(block.tokens) // TOKEN_BYTES
    if not 1 <= n_tokens <= BLOCK_TOKENS or len(block.parts) > MAX_PARTS or not 0 <= block.start_tokens < 1 << 32:
        raise ValueError(f"a block of {n_tokens} tokens at {block.start_tokens} with {len(block.parts)} parts")
    preview = block.preview.encode("utf-8", "replace")[:MAX_PREVIEW_BYTES]
    body_bytes = _FIXED.size + _PART.size * len(block.parts) + len(block.tokens) + len(preview) + CHECKSUM_BYTES
    header_bytes = -(-body_bytes // _ALIGN) * _ALIGN
    entries, offset = [], header_bytes
    for name, data in block.parts.items():
        entries.append(_PART.pack(_pack_name(name), offset, data.nbytes, xxhash.xxh3_128_digest(data)))
        offset += data.nbytes
    if offset > MAX_FILE_BYTES:
        raise ValueError(f"a block of {offset} bytes")
    fixed = _FIXED.pack(
        MAGIC, FORMAT_VERSION, header_bytes, offset, block.key, block.parent, block.grandparent,
        block.namespace.fingerprint, block.namespace.salt, block.start_tokens, n_tokens, len(block.parts),
        0 if block.exact else _INEXACT, len(preview), block.created_s,
    )  # fmt: skip
    packed = b"".join((fixed, *entries, block.tokens, preview)).ljust(header_bytes - CHECKSUM_BYTES, b"\0")
    return packed + xxhash.xxh3_128_digest(packed)


def parse_header(data: bytes, file_bytes: int, where: str) -> BlockHeader:
    """Read a header from the first bytes of a file of `file_bytes`; `where` names it in messages.

    Raises DamagedError unless everything is as `pack_header` writes it. No length is used before it is checked.
    """
    if len(data) < _FIXED.size or not data.startswith(MAGIC):
        _damaged(where, "not a block file")
    (_, version, header_bytes, stated_bytes, key, parent, grandparent, fingerprint, salt, start, n_tokens, n_parts,
     flags, preview_bytes, created_s) = _FIXED.unpack_from(data)  # fmt: skip
    if version != FORMAT_VERSION:
        raise DamagedError(f"{printable(where)}: format {version}, this llmcli reads {FORMAT_VERSION}", removable=False)
    if stated_bytes != file_bytes or file_bytes > MAX_FILE_BYTES:
        _damaged(where, f"{file_bytes} bytes, expected {min(stated_bytes, MAX_FILE_BYTES)}")
    body_bytes = _FIXED.size + _PART.size * n_parts + TOKEN_BYTES * n_tokens + preview_bytes + CHECKSUM_BYTES
    if not body_bytes <= header_bytes <= min(len(data), MAX_HEADER_BYTES) or flags & ~_INEXACT:
        _damaged(where, "a header with wrong lengths")
    checked = header_bytes - CHECKSUM_BYTES
    if xxhash.xxh3_128_digest(data[:checked]) != data[checked:header_bytes]:
        _damaged(where, "the header's checksum does not match")
    if not 1 <= n_tokens <= BLOCK_TOKENS or n_parts > MAX_PARTS or preview_bytes > MAX_PREVIEW_BYTES:
        _damaged(where, "a header with impossible counts")
    tokens_at = _FIXED.size + _PART.size * n_parts
    preview_at = tokens_at + TOKEN_BYTES * n_tokens
    return BlockHeader(
        Key(key), Key(parent), Key(grandparent), fingerprint, salt, start, data[tokens_at:preview_at],
        not flags & _INEXACT, data[preview_at : preview_at + preview_bytes].decode("utf-8", "replace"), created_s,
        header_bytes, file_bytes, _parse_parts(data, n_parts, header_bytes, file_bytes, where),
    )  # fmt: skip


def stated_file_bytes(data: bytes) -> int | None:
    """How long the block file that starts with `data` says it is; None where it is no block file. Not checked."""
    if len(data) < _FIXED.size or not data.startswith(MAGIC):
        return None
    return int(_FIXED.unpack_from(data)[3])


def _parse_parts(data: bytes, n_parts: int, offset: int, file_bytes: int, where: str) -> dict[str, PartEntry]:
    """The part table; the parts must follow each other without a gap from `offset` to the end of the file."""
    parts: dict[str, PartEntry] = {}
    for number in range(n_parts):
        raw_name, part_offset, nbytes, checksum = _PART.unpack_from(data, _FIXED.size + _PART.size * number)
        name = raw_name.rstrip(b"\0").decode("ascii", "replace")
        if part_offset != offset or nbytes > file_bytes - offset or name in parts:
            _damaged(where, "a part outside its place")
        parts[name] = PartEntry(part_offset, nbytes, checksum)
        offset += nbytes
    if offset != file_bytes:
        _damaged(where, f"parts end at {offset}, the file at {file_bytes}")
    return parts


def check_part(data: memoryview, entry: PartEntry, where: str) -> None:
    """Raises DamagedError unless `data` are the bytes that were written."""
    if data.nbytes != entry.nbytes or xxhash.xxh3_128_digest(data) != entry.checksum:
        _damaged(where, "a part's checksum does not match")


def _pack_name(name: str) -> bytes:
    raw = name.encode("ascii", "strict")
    if not 1 <= len(raw) <= PART_NAME_BYTES or b"\0" in raw:
        raise ValueError(f"{name!r} is not a part name: 1 to {PART_NAME_BYTES} ASCII characters")
    return raw


def _damaged(where: str, what: str) -> NoReturn:
    raise DamagedError(f"{printable(where)}: {what}")


assert _FIXED.size + _PART.size * MAX_PARTS + BLOCK_TOKENS * TOKEN_BYTES + MAX_PREVIEW_BYTES <= MAX_HEADER_BYTES - 128  # noqa: S101
assert KEY_BYTES == 32  # noqa: S101
