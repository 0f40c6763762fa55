"""A file that is read forward and never trusted: how much of it is left is asked before anything is taken.

The header of a GGUF file is read into memory piece by piece. Mapping the file would be simpler, but a mapped file that
shrinks while it is read kills the process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import struct
from pathlib import Path
from typing import Any, NoReturn

from llmcli.base.errors import ModelError
from llmcli.base.text import printable

MAX_HEADER_BYTES = 128 << 20
MAX_STRINGS = 1 << 21  # in all arrays of a header together
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
_FIRST_READ_BYTES = 1 << 20
_KEPT_BYTES = 1 << 16
_LEAP_READ_BYTES = 1 << 14  # at a time between leaps


class CutOffError(ModelError):
    """The file ends before what its header promises: most likely a download that did not finish."""


class Source:
    """The file, read forward. `position` is the next byte to look at.

    data     what has been read so far: its first `filled` bytes, but for leaps; what is behind means nothing
    leaps    long arrays may be stepped over unread, and are not kept (skim_header)
    buffer   memory to read into, for those who read many files: fresh memory costs more than reading does
    """

    def __init__(self, path: Path, *, buffer: bytearray | None = None, leaps: bool = False) -> None:
        self.path = path
        self.position = self.filled = 0
        self.data = bytearray() if buffer is None else buffer
        self.strings_left = MAX_STRINGS
        self.leaps = leaps
        self.file_bytes = self._open()

    def _open(self) -> int:
        """Open the file; its size."""
        self._file = io.FileIO(open_regular(self.path))
        if self.leaps and hasattr(os, "posix_fadvise"):  # else the system reads on into the weights
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def need(self, count: int, what: str, *, at: int | None = None) -> None:
        """Make `count` bytes from `at` (default: the position) available, or say that the file ends before."""
        start = self.position if at is None else at
        end = start + count
        if end <= self.filled:
            return
        if end > self.file_bytes:
            self.fail_short(what, start, count)
        if end > MAX_HEADER_BYTES:
            self.fail(f"the header is longer than {MAX_HEADER_BYTES} bytes, the limit", start)
        # Growing by doubling: the bytes are copied at most twice in all.
        ahead = self.filled + _LEAP_READ_BYTES if self.leaps else max(2 * self.filled, _FIRST_READ_BYTES)
        target = min(max(end, ahead), self.file_bytes, MAX_HEADER_BYTES)
        if target > len(self.data):
            self.data += bytes(target - len(self.data))
        self.filled = self._fill(self.filled, target)
        if end > self.filled:
            self.fail_short(what, start, count)

    def _fill(self, start: int, end: int) -> int:
        """Read the bytes from `start` to `end` into `data`; how far it came."""
        self._file.seek(start)
        with memoryview(self.data) as view:
            while start < end and (count := self._file.readinto(view[start:end])):
                start += count
        return start

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on; fewer only at the end of the file."""
        self._file.seek(offset)
        pieces: list[bytes] = []
        while count > 0 and (piece := self._file.read(count)):
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def number(self, reader: struct.Struct, what: str, name: str = "") -> Any:
        """The next number; in messages it is `what`, followed by the name that the file gives it."""
        start = self.position
        end = start + reader.size
        if end > self.filled:
            self.need(reader.size, _called(what, name))
        self.position = end
        return reader.unpack_from(self.data, start)[0]

    def text(self, limit: int, what: str, name: str = "") -> bytes:
        """A string: its length in 8 bytes, then its bytes."""
        start = self.position
        begin = start + 8
        if begin > self.filled:
            self.need(8, "the length of " + _called(what, name))
        (size,) = U64.unpack_from(self.data, start)
        if size > limit:
            self.fail(f"{_called(what, name)} is {size} bytes long, expected at most {limit}", start)
        end = begin + size
        if end > self.filled:
            self.need(size, _called(what, name), at=begin)
        self.position = end
        return bytes(self.data[begin:end])

    def ahead(self, count: int) -> bytes:
        """The next `count` bytes, fewer where the file or the limit of a header ends; the position stays."""
        end = min(self.position + count, self.file_bytes, MAX_HEADER_BYTES)
        if end > self.filled:
            self.need(end - self.position, "the list of tensors")
        return bytes(memoryview(self.data)[self.position : end])

    def pass_over(self, count: int, what: str) -> None:
        """Step over `count` bytes; many of them, where leaps are allowed, without reading them."""
        end = self.position + count
        if self.leaps and count > _KEPT_BYTES and end <= min(self.file_bytes, MAX_HEADER_BYTES):
            self.leap(end)
            return
        self.need(count, what)
        self.position = end

    def leap(self, to: int) -> None:
        """Go on at `to`; what lies before it is not read, and `data` means nothing there."""
        self.position = to
        self.filled = max(self.filled, to)

    def cut(self, start: int) -> bytes:
        """The bytes from `start` to the position; none where they are many and nobody will ask for them."""
        if self.leaps and self.position - start > _KEPT_BYTES:
            return b""
        return bytes(memoryview(self.data)[start : self.position])

    def fail_short(self, what: str, start: int, count: int) -> NoReturn:
        """The file ends inside its header."""
        left = max(0, self.file_bytes - start)
        raise CutOffError(
            f"{shown(self.path)} is cut off: at offset {start}, {what} needs {count} bytes, "
            f"and the file has {left} left",
            hint="the download did not finish: pull it again",
        )

    def fail(self, problem: str, offset: int) -> NoReturn:
        """Refuse the file for what stands at this offset."""
        raise ModelError(f"{shown(self.path)} is not a usable GGUF file: at offset {offset}, {problem}")


def _called(what: str, name: str) -> str:
    """Put into words only for a message: a list of models reads ten thousand values."""
    return f"{what} {quoted(name)}" if name else what


def quoted(name: str) -> str:
    """A name of the file inside a message: short, harmless on a terminal."""
    return repr(printable(name[:64])) if len(name) <= 64 else repr(printable(name[:64]) + "…")


def shown(path: Path) -> str:
    """A path as it may stand in a message."""
    return printable(str(path))


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> int:
    """Open a plain file. Nothing else is opened: a pipe would wait for a writer, a device has side effects."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind != stat.S_IFREG:
            raise ModelError(f"{shown(path)} is {_KINDS.get(kind, 'no plain file')}, expected a GGUF file")
        # Non-blocking, in case it became a pipe since; the flags are absent on Windows.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        return os.open(path, flags)
    except FileNotFoundError:
        raise ModelError(f"{shown(path)} does not exist", hint="`llmcli ls` shows the models that are here") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"{shown(path)} cannot be read: {printable(reason)}") from None
