"""Reading a file of ours that is small: never a pipe, which would be waited for, nor more bytes than it can have."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_plain(path: Path, flags: int = _FLAGS, mode: int = 0o600) -> int:
    """`os.open` of a regular file, or of the null device. Raises OSError for everything else.

    The null device is what people link a file to that is to stay empty.
    """
    with_flags = flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        _require_plain(os.stat(path).st_mode, path)  # before it is opened: to open a device may do something
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    handle = os.open(path, with_flags, mode)
    try:
        _require_plain(os.fstat(handle).st_mode, path)
    except OSError:
        os.close(handle)
        raise
    return handle


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The whole file. Raises OSError, also for what is no plain file and for more than `most_bytes`."""
    with os.fdopen(open_plain(path), "rb") as source:
        data = source.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes", str(path))
    return data


def _require_plain(mode: int, path: Path) -> None:
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and os.path.samefile(path, os.devnull)):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))
