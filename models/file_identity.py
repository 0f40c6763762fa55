"""What tells one state of a file from another, without reading it. What is remembered of it counts for one state."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple


class FileIdentity(NamedTuple):
    """What tells one state of one file from another; a list in the memos."""

    real_path: str
    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


def file_identity(path: str, real_path_of: Callable[[str], str] = os.path.realpath) -> FileIdentity:
    """The present state of a file. Raises OSError."""
    status = os.stat(path)
    return FileIdentity(
        real_path_of(path),
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
