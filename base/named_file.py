"""Files at names that the user chose: whole or not at all, and what stood there before stays until then.

Unlike files of our own, they have the rights that the umask gives, and what has no content to lose (a pipe, a terminal)
is written to as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from llmcli.base.files import TEMP_PREFIX, fsync_dir

# A file that may be written in a folder that may not, or that is mounted: nothing can be put in its place.
_FIXED = (errno.EACCES, errno.EPERM, errno.EBUSY)


def write_named(path: str | os.PathLike[str], data: bytes, *, over: bool) -> None:
    """Put `data` there in one step; with `over` in the place of a file that is there.

    Raises FileExistsError where something is there and `over` is off, OSError with the name of the file, ValueError.
    """
    name = os.fspath(path)
    try:
        if os.path.lexists(name) and not over:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if over and os.path.exists(name) and not os.path.isfile(name):
            _write_as_it_is(name, data)
        else:
            _write_whole(Path(os.path.realpath(name)), data, over=over)
    except OSError as error:  # of a temporary file, or of none
        raise OSError(error.errno, error.strerror, name) from None


def _write_as_it_is(name: str, data: bytes) -> None:
    with open(name, "wb") as out:
        out.write(data)


def _write_whole(path: Path, data: bytes, *, over: bool) -> None:
    temp = path.with_name(TEMP_PREFIX + secrets.token_hex(8))
    try:
        with open(temp, "xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if over and path.exists():
            os.chmod(temp, stat.S_IMODE(path.stat().st_mode))
        _move(temp, path, over=over)
    except OSError as error:
        if not (over and error.errno in _FIXED and path.is_file()):
            raise
        _write_as_it_is(str(path), data)
    finally:
        with contextlib.suppress(OSError):
            temp.unlink()
    fsync_dir(path.parent)


def _move(temp: Path, path: Path, *, over: bool) -> None:
    """Rename it. Without `over` a link is made instead, which fails where somebody has just made such a file."""
    if not over:
        try:
            os.link(temp, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        else:
            return
    os.replace(temp, path)
