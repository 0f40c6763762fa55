"""A chain in one file, to prefill on a strong machine and restore on a small one.

    magic, version, manifest bytes, manifest (JSON: fingerprint description, blocks, tokens), xxh3_128 of the above
    block files, one after the other, first block first

Nothing in the file names a path or a key that is believed: keys are computed again from fingerprint, salt of this
store and tokens, so a chain can move between salts, and a hostile file can at most fill its own fingerprint's chain.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from llmcli.base.errors import LlmcliError, ModelError
from llmcli.base.text import printable
from llmcli.cache_store.block_file import pread, read_entry, read_header, read_part, remove, write_temp
from llmcli.cache_store.block_format import (
    CHECKSUM_BYTES,
    MAX_HEADER_BYTES,
    BlockHeader,
    DamagedError,
    NewBlock,
    PartEntry,
    pack_header,
    parse_header,
    stated_file_bytes,
)
from llmcli.cache_store.context import Context
from llmcli.cache_store.keys import Fingerprint, unpack_tokens
from llmcli.cache_store.layout import TEMP_PREFIX
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.reasons import other_reason
from llmcli.cache_store.save import save_block

MAGIC = b"\x89LLMPX\r\n"
VERSION = 1
_HEAD = struct.Struct("<8sII")
_MAX_MANIFEST_BYTES = 64 << 10
_MAX_BLOCKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an export file says about itself."""

    fingerprint: Fingerprint
    blocks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: the last block that is now stored, how much was new, and why it stopped early, if it did."""

    fingerprint: Fingerprint
    end: BlockRef | None
    blocks: int
    tokens: int
    written_bytes: int
    refused: str | None


def export_chain(chain: Sequence[BlockRef], fingerprint: Fingerprint, target: Path) -> int:
    """Write the blocks of `chain` to `target` in one step; returns its bytes. Raises DamagedError, OSError."""
    manifest = {
        "description": dict(fingerprint.description),
        "blocks": len(chain),
        "tokens": chain[-1].end_tokens,
    }
    raw = json.dumps(manifest, sort_keys=True, allow_nan=False).encode()
    head = _HEAD.pack(MAGIC, VERSION, len(raw)) + raw
    temp = target.parent / f"{TEMP_PREFIX}{os.getpid():x}-{target.name}"[:200]
    try:
        buffers = _export_buffers(chain, head + xxhash.xxh3_128_digest(head))
        written = write_temp(temp, buffers)
        os.replace(temp, target)
    except OSError as error:
        if error.filename is None or os.fspath(error.filename) == str(temp):  # a failed write names no file
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise
    finally:
        remove(temp)
    return written


def _export_buffers(chain: Sequence[BlockRef], head: bytes) -> Iterator[memoryview]:
    """The file piece by piece, one block mapped at a time. Keys follow from the salt that a block was saved under."""
    yield memoryview(head)
    for ref in chain:
        parts = {name: read_part(ref.path, ref.key, name) for name in ref.part_bytes}
        block = NewBlock(
            read_header(ref.path)[0].namespace, ref.key, ref.parent, ref.grandparent, ref.start_tokens,
            ref.tokens, ref.exact, ref.preview, ref.created_s, parts,
        )  # fmt: skip
        yield memoryview(pack_header(block))
        yield from parts.values()


def read_manifest(source: Path) -> Manifest:
    """What is in an export file. Raises LlmcliError where it is not one, OSError."""
    with _opened(source) as (handle, where):
        return _manifest(handle, where)[0]


def import_chain(context: Context, source: Path, expected: Fingerprint | None) -> Imported:
    """Store the chain in `source`. Every block is checked before it is stored.

    expected   the fingerprint of the model at hand; ModelError, before anything is stored, where it is another.
    Raises DamagedError (what came before the damage stays stored: it was sound), LlmcliError, OSError.
    """
    with _opened(source) as (handle, where):
        manifest, offset = _manifest(handle, where)
        if expected is not None and expected.digest != manifest.fingerprint.digest:
            reason, told = other_reason(manifest.fingerprint, expected)
            raise ModelError(f"{where} does not fit: {str(reason).replace('_', ' ')} ({told})")
        return _import_blocks(context, handle, manifest, offset, where)


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[tuple[int, str]]:
    """The handle of an export file, and how messages name it."""
    handle = os.open(source, os.O_RDONLY)
    try:
        yield handle, printable(str(source))
    except DamagedError as error:
        error.hint = "copy or export it again"  # nothing is wrong with the store
        raise
    finally:
        os.close(handle)


def _import_blocks(context: Context, handle: int, manifest: Manifest, offset: int, where: str) -> Imported:
    size = os.fstat(handle).st_size
    end: BlockRef | None = None
    before: BlockHeader | None = None
    written = 0
    for number in range(manifest.blocks):
        header = _header_at(handle, offset, size, f"{where}, block {number}")
        _require_next(header, before, manifest.fingerprint, f"{where}, block {number}")
        parts = {
            name: read_entry(handle, PartEntry(offset + part.offset, part.nbytes, part.checksum), where)
            for name, part in header.parts.items()
        }
        stored = save_block(
            context, manifest.fingerprint, end, unpack_tokens(header.tokens), parts,
            preview=header.preview, exact=header.exact,
        )  # fmt: skip
        written += stored.written_bytes
        if stored.ref is None:
            tokens = end.end_tokens if end else 0
            return Imported(manifest.fingerprint, end, number, tokens, written, stored.refused)
        end, before, offset = stored.ref, header, offset + header.file_bytes
    if offset != size:
        raise DamagedError(f"{where}: {size - offset} bytes behind the last block")
    return Imported(manifest.fingerprint, end, manifest.blocks, end.end_tokens if end else 0, written, None)


def _header_at(handle: int, offset: int, size: int, where: str) -> BlockHeader:
    head = pread(handle, MAX_HEADER_BYTES, offset)
    file_bytes = stated_file_bytes(head)
    if file_bytes is None or file_bytes > size - offset:
        raise DamagedError(f"{where}: not a block, or cut short")
    return parse_header(head, file_bytes, where)


def _require_next(header: BlockHeader, before: BlockHeader | None, fingerprint: Fingerprint, where: str) -> None:
    follows = (
        header.start_tokens == 0
        if before is None
        else (header.parent, header.start_tokens, header.salt)
        == (before.key, before.start_tokens + before.n_tokens, before.salt)
    )
    if not follows or header.fingerprint != fingerprint.digest or not header.key_is_its_own():
        raise DamagedError(f"{where}: does not continue the chain")


def _manifest(handle: int, where: str) -> tuple[Manifest, int]:
    """The manifest and the offset of the first block."""
    head = pread(handle, _HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise LlmcliError(f"{where} is not a prefix that llmcli exported", hint="llmcli cache export NAME FILE")
    _, version, nbytes = _HEAD.unpack(head)
    if version != VERSION:
        raise LlmcliError(f"{where} has version {version}, this llmcli reads {VERSION}", hint="export it again")
    if nbytes > _MAX_MANIFEST_BYTES:
        raise DamagedError(f"{where}: a manifest of {nbytes} bytes")
    rest = pread(handle, nbytes + CHECKSUM_BYTES, _HEAD.size)
    raw, checksum = rest[:nbytes], rest[nbytes:]
    if xxhash.xxh3_128_digest(head + raw) != checksum:
        raise DamagedError(f"{where}: the manifest's checksum does not match")
    return _parse_manifest(raw, where), _HEAD.size + nbytes + CHECKSUM_BYTES


def _parse_manifest(raw: bytes, where: str) -> Manifest:
    try:
        fields = json.loads(raw)
        description, blocks, tokens = fields["description"], fields["blocks"], fields["tokens"]
        fingerprint = Fingerprint.of(description)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DamagedError(f"{where}: the manifest cannot be read") from None
    scalars = all(value is None or isinstance(value, str | int | float) for value in description.values())
    if not scalars or not isinstance(blocks, int) or not isinstance(tokens, int) or not 1 <= blocks <= _MAX_BLOCKS:
        raise DamagedError(f"{where}: the manifest cannot be read")
    return Manifest(fingerprint, blocks, tokens)
