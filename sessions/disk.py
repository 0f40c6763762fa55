"""The bytes of a session file on the disk: appended whole or not at all, and what it means where that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from llmcli.base.errors import LlmcliError, ResourceError

# The system refuses to write, however much room there is.
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.EISDIR, errno.ENOTDIR)


def size_of(path: Path) -> int:
    """The bytes of a file, 0 of none."""
    return path.stat().st_size if path.exists() else 0


def require_writable(path: Path) -> None:
    """Raises LlmcliError: better now than behind an answer that took minutes."""
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        raise unwritable(path.stem, error) from None


def unwritable(name: str | None, error: OSError) -> LlmcliError:
    """What a failure to write means: nothing that room would help, or not enough of it."""
    kind = LlmcliError if error.errno in FORBIDDEN else ResourceError
    return kind(f"session {name} cannot be written: {error.strerror}")


def append(path: Path, start: int, data: bytes, *, durable: bool) -> None:
    """All of it from `start` on, where what is sound ends, or nothing."""
    handle = os.open(path, os.O_WRONLY)
    try:
        if os.fstat(handle).st_size > start:
            os.ftruncate(handle, start)
        os.lseek(handle, start, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if durable:
            os.fsync(handle)
    except OSError:
        os.ftruncate(handle, start)
        raise
    finally:
        os.close(handle)
