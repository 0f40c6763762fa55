"""Files that are never half written, locks between processes, and checksums.

Order of an atomic write: temp name in the same folder, write, fsync, rename, fsync the folder.
A reader therefore sees the old file or the new one, whatever happens in between.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from llmcli.base.errors import ResourceError

CHUNK_BYTES = 1 << 20
TEMP_PREFIX = ".tmp-"
_LOCK_POLL_S = 0.05
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def make_private_dir(path: Path) -> Path:
    """Create `path` and its parents, the last one readable by this user alone (0700), whatever the umask."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def atomic_write(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Put `data` at `path` in one step. Raises OSError; the old file then stands as it was.

    durable   wait until it is on the disk, which may take as long as writing all that waits to be written there;
              without it a power cut can leave an empty file, so that is for what is no loss
    """
    temp = path.parent / f"{TEMP_PREFIX}{os.urandom(8).hex()}"  # as tempfile does it, which takes 10 ms to import
    handle = os.open(temp, _NEW_FILE, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            if durable:
                os.fsync(out.fileno())
        os.chmod(temp, mode)
        os.replace(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise
    if durable:
        fsync_dir(path.parent)


def fsync_dir(path: Path) -> None:
    """Make renames inside `path` durable, where the system can (a folder cannot be opened on Windows)."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256_file(path: Path, *, on_bytes: Callable[[int], None] | None = None) -> str:
    """The hexadecimal sha256 of the file; `on_bytes` is told the bytes hashed so far, once per MiB."""
    import hashlib  # OpenSSL behind it, 4 ms; most runs hash nothing

    digest, done = hashlib.sha256(), 0
    with open(path, "rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if on_bytes:
                on_bytes(done)
    return digest.hexdigest()


@contextlib.contextmanager
def file_lock(
    path: Path,
    *,
    timeout_s: float | None = None,
    on_wait: Callable[[], None] | None = None,
    create: bool = True,
    poll_s: float = _LOCK_POLL_S,
) -> Iterator[None]:
    """Hold an exclusive lock on `path`, kept afterwards: removing it would split the lock.

    The kernel drops the lock when the process ends, however it ends. `on_wait` is called once if another
    process holds it, and it is tried again every `poll_s`. Raises ResourceError after `timeout_s` seconds, OSError
    where the folder is unwritable, FileNotFoundError where the file is missing and `create` is off.
    """
    with open(path, "ab" if create else "rb+", opener=_open_at_once) as handle:
        deadline, told = None if timeout_s is None else time.monotonic() + timeout_s, False
        while not _try_lock(handle.fileno()):
            if on_wait and not told:
                on_wait()
            told = True
            if deadline is not None and time.monotonic() > deadline:
                raise ResourceError(f"{path} is locked by another process", hint="wait for it, or end it")
            time.sleep(poll_s)
        try:
            yield
        finally:
            _unlock(handle.fileno())


def _open_at_once(path: str, flags: int) -> int:
    """For a pipe in the lock's place, where a plain open would wait for its reader: that is an error then."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(fd: int) -> bool:
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)
