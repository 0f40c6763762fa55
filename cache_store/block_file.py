"""Block files on disk: written in one step, read without a copy, never trusted.

Files are immutable and replaced only by rename. Reading a part maps it: measured on 6 MB parts in the page cache,
map + xxh3 ran at 9.9 GB/s and map + xxh3 + merge into one cold buffer at 4.0 (memcpy there 6.2), pread straight
into that buffer + xxh3 at 1.5. A map has one danger: a truncated file or a failing disk kills the process with
SIGBUS. MADV_POPULATE_READ (Linux 5.14) fetches every page first and fails with an error instead; where it is not
to be had the part is read into memory.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from llmcli.base.files import fsync_dir
from llmcli.base.text import printable
from llmcli.cache_store.block_format import (
    MAX_HEADER_BYTES,
    BlockHeader,
    DamagedError,
    PartEntry,
    check_part,
    parse_header,
)

_MADV_POPULATE_READ = 22  # linux/mman.h; Python's mmap does not name it
_AT_ONCE = 16  # buffers for one writev; POSIX promises that so many are taken (IOV_MAX), and no block has more
_SMALL_BYTES = 64 << 10  # below this one pread is quicker than a map
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def write_temp(temp: Path, buffers: Iterable[memoryview]) -> int:
    """Write `buffers` to the new file `temp`, readable by this user alone, and fsync it. Returns the bytes written.

    Raises OSError and then leaves nothing behind. `temp` must lie in the folder of the file it becomes.
    """
    handle = os.open(temp, _WRITE_FLAGS, 0o600)
    try:
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(handle, 0o600)  # a umask may have taken bits away
            written = _write_all(handle, buffers)
            os.fsync(handle)
        finally:
            os.close(handle)
    except BaseException:
        remove(temp)
        raise
    return written


def replace_file(path: Path, temp: Path, data: bytes) -> None:
    """Put a small file at `path` in one durable step, by way of `temp` in the same folder. Raises OSError."""
    write_temp(temp, [memoryview(data)])
    try:
        os.replace(temp, path)
    except OSError:
        remove(temp)
        raise
    fsync_dir(path.parent)


def read_small(path: Path, most_bytes: int) -> bytes:
    """A small file whole; empty where it is larger than that, or not a file (a pipe would be waited for).

    Raises OSError.
    """
    handle = os.open(path, _READ_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return b""
        data = pread(handle, most_bytes + 1, 0)
        return data if len(data) <= most_bytes else b""
    finally:
        os.close(handle)


def remove(path: Path | str) -> bool:
    """Remove a file if it is there and may be removed; says whether it was."""
    with contextlib.suppress(OSError):
        os.unlink(path)
        return True
    return False


def read_header(path: Path | str) -> tuple[BlockHeader, os.stat_result]:
    """The header of the block at `path` and the file's stat. Raises FileNotFoundError and DamagedError."""
    handle = _open(path)
    try:
        return _header_of(handle, str(path))
    finally:
        os.close(handle)


def read_part(path: Path | str, expected_key: bytes, name: str) -> memoryview:
    """The verified bytes of one part, mapped; valid as long as the view lives, even if the file is removed.

    Raises FileNotFoundError where the file is gone, DamagedError for anything that is not the block `expected_key`.
    The header is read again here: since the look-up the file may have been replaced by another copy of the block.
    """
    handle = _open(path)
    try:
        header, _ = _header_of(handle, str(path))
        if header.key != expected_key:
            raise DamagedError(f"{printable(str(path))}: holds another block")
        if (entry := header.parts.get(name)) is None:
            raise DamagedError(f"{printable(str(path))}: has no part {name!r}", removable=False)
        return read_entry(handle, entry, str(path))
    finally:
        os.close(handle)


def read_entry(handle: int, entry: PartEntry, where: str) -> memoryview:
    """The verified bytes of one part of an open file. Raises DamagedError, naming the file as `where`."""
    try:
        data = _map(handle, entry)
        if data is None:
            data = memoryview(pread(handle, entry.nbytes, entry.offset))
    except OSError as error:
        raise DamagedError(f"{printable(where)}: {error.strerror}", removable=False) from None
    check_part(data, entry, where)
    return data


def _open(path: Path | str) -> int:
    try:
        return os.open(path, _READ_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise DamagedError(f"{printable(str(path))}: {error.strerror}", removable=False) from None


def _header_of(handle: int, path: str) -> tuple[BlockHeader, os.stat_result]:
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise DamagedError(f"{printable(path)}: not a regular file", removable=False)
        head = pread(handle, min(MAX_HEADER_BYTES, facts.st_size), 0)
    except OSError as error:
        raise DamagedError(f"{printable(path)}: {error.strerror}", removable=False) from None
    return parse_header(head, facts.st_size, path), facts


def _map(handle: int, entry: PartEntry) -> memoryview | None:
    """A view of the mapped part with all its pages present; None where the system cannot promise that.

    None for small parts too: reading them is quicker than mapping them.
    """
    if entry.nbytes <= _SMALL_BYTES or sys.platform != "linux":
        return None
    start = entry.offset - entry.offset % mmap.ALLOCATIONGRANULARITY
    length = entry.offset + entry.nbytes - start
    try:
        mapped = mmap.mmap(handle, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=start)
        mapped.madvise(_MADV_POPULATE_READ)
    except (OSError, ValueError):  # an old kernel, no address space, or a page that cannot be had: read() will say
        return None
    return memoryview(mapped)[entry.offset - start :]


def pread(handle: int, nbytes: int, offset: int) -> bytes:
    """Up to `nbytes` from `offset`; fewer only at the end of the file."""
    if not hasattr(os, "pread"):
        os.lseek(handle, offset, os.SEEK_SET)
    chunks, missing = [], nbytes
    while missing:
        chunk = os.pread(handle, missing, offset) if hasattr(os, "pread") else os.read(handle, missing)
        if not chunk:
            break
        chunks.append(chunk)
        missing, offset = missing - len(chunk), offset + len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _write_all(handle: int, buffers: Iterable[memoryview]) -> int:
    """A whole block with one system call where that can be had: in the page cache a file that came in one piece lies in
    larger pieces itself, and is mapped and unmapped in half the time (2.4 ms against 4.6 for 94 MB).
    """
    total, more = 0, iter(buffers)
    while left := [buffer.cast("B") for buffer in itertools.islice(more, _AT_ONCE) if buffer.nbytes]:
        while left:
            written = os.writev(handle, left) if hasattr(os, "writev") else os.write(handle, left[0])
            total += written
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if left:
                left[0] = left[0][written:]
    return total
