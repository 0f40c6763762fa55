"""How fast a disk is, and of what kind: tried with a file of some megabytes, within a second. Knows nothing of models.

Reading is timed behind a request to the system to forget the file's pages, where it takes such requests (Linux);
elsewhere what comes back may be from memory, and is not told.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from llmcli.hardware.kernel_files import REAL_ROOT, read_text

_CHUNK_BYTES = 4 << 20
_TRY_BYTES = 32 << 20
_BUDGET_S = 1.0
_NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs")


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Bytes per second; None where it was not to be had. kind: the file system, as the mount table has it."""

    path: str
    kind: str | None
    write_bytes_s: float | None
    read_bytes_s: float | None

    @property
    def is_network(self) -> bool:
        """Whether the files are on another machine."""
        return self.kind is not None and self.kind.startswith(_NETWORK)


def try_disk(folder: Path, *, most_bytes: int = _TRY_BYTES) -> DiskSpeed:
    """Write a temporary file into the nearest folder that exists, make it durable, read it back, remove it."""
    nearest = next(place for place in (folder, *folder.parents) if place.is_dir())
    write = read = None
    with contextlib.suppress(OSError):
        write, read = _write_and_read(nearest, most_bytes)
    return DiskSpeed(str(folder), file_system(nearest), write, read)


def _write_and_read(folder: Path, most_bytes: int) -> tuple[float, float | None]:
    chunk = os.urandom(_CHUNK_BYTES)  # some disks do not write zeros
    with tempfile.NamedTemporaryFile(prefix=".llmcli-try-", dir=folder, buffering=0) as file:
        begun, written = time.perf_counter(), 0
        while written < most_bytes and time.perf_counter() - begun < _BUDGET_S:
            written += file.write(chunk)
        os.fsync(file.fileno())
        write_s = time.perf_counter() - begun
        return written / write_s, _read_speed(file.fileno(), written)


def _read_speed(handle: int, size: int) -> float | None:
    if sys.platform == "win32" or not hasattr(os, "posix_fadvise"):
        return None
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    begun, at = time.perf_counter(), 0
    while at < size and time.perf_counter() - begun < _BUDGET_S:
        at += len(os.pread(handle, _CHUNK_BYTES, at))
    return at / (time.perf_counter() - begun)


def file_system(folder: Path, root: Path = REAL_ROOT) -> str | None:
    """The kind of file system a folder is on (ext4, nfs4, overlay), None where the mount table does not tell."""
    longest, kind = "", None
    wanted = os.path.realpath(folder)
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        left, dash, right = line.partition(" - ")
        words = left.split(" ")
        if dash and len(words) > 4:
            point = words[4].encode().decode("unicode_escape")
            inside = wanted == point or wanted.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(longest):  # of two at one place, the later one hides the earlier
                longest, kind = point, right.split(" ")[0]
    return kind


def drop_from_page_cache(folder: Path) -> int:
    """Let the system forget what it holds of the files below `folder`; how many there were. Needs no rights."""
    if not hasattr(os, "posix_fadvise") or sys.platform == "win32":
        return 0
    count = 0
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)  # what is not on the disk yet cannot be dropped
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                count += 1
            finally:
                os.close(handle)
    return count
