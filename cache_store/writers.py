"""Who is writing right now, and what a killed writer left behind.

A process that writes holds a locked file under writers/, and its temp files carry that file's name. The kernel drops
the lock however the process ends, so a marker that can be locked belongs to a process that died in the middle: its
temp files are garbage, and the index may lack blocks that it renamed into place. No folder is scanned as long as
nobody died.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from llmcli.base.errors import ResourceError
from llmcli.base.files import file_lock
from llmcli.cache_store.block_file import remove
from llmcli.cache_store.layout import TEMP_PREFIX, Layout

_INHERITED: list[contextlib.ExitStack] = []
_UNLOCKABLE_AGE_S = 24 * 3600.0  # where locks do not work a marker counts as alive for a day
# A marker has its lock some microseconds after it is made. Others leave one alone that is so young; a process that is
# not given its turn for longer may still lose it, and makes another.
_MAKING_S = 1.0
_TRIES = 10


class Writer:
    """The marker of this process: made by the first write, removed by `end`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._held = contextlib.ExitStack()
        self._pid = 0
        self._name = ""
        self._numbers = itertools.count()

    def temp_path(self, folder: Path) -> Path:
        """A new temp name in `folder` that can be traced to this process. Raises OSError."""
        self._begin()
        return folder / f"{TEMP_PREFIX}{self._name}-{next(self._numbers)}"

    def end(self, *, keep_marker: bool) -> None:
        """Drop the lock; `keep_marker` leaves the file so that the next opening looks after the index."""
        if self._pid == os.getpid():
            if not keep_marker:
                remove(self._layout.writers / self._name)
            self._held.close()
        self._pid = 0

    def _begin(self) -> None:
        if self._pid == os.getpid():
            return
        if self._pid:
            # After a fork the child shares its parent's lock, and must neither use its names nor let go of the lock.
            _INHERITED.append(self._held)
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError, ResourceError):  # another process took it for a dead one's
                self._name = self._make_marker()
                self._pid = os.getpid()
                return
        raise OSError(errno.EAGAIN, "cannot make a writer's marker")

    def _make_marker(self) -> str:
        """Lock a new file first and name it afterwards: under its own name nobody ever sees it unlocked."""
        self._held = contextlib.ExitStack()
        name = f"{os.getpid():x}-{secrets.token_hex(4)}"
        unseen = self._layout.writers / f"{TEMP_PREFIX}{name}"
        os.close(os.open(unseen, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.chmod(unseen, 0o600)
        try:
            self._held.enter_context(file_lock(unseen, timeout_s=0, create=False))
        except FileNotFoundError:
            raise
        except OSError:  # no locks here: the marker's age has to do
            pass
        os.replace(unseen, self._layout.writers / name)
        return name


def dead_writers(layout: Layout) -> list[Path]:
    """The markers of processes that ended in the middle of writing. Usually there are none to look at."""
    try:
        names = os.listdir(layout.writers)
    except OSError:
        return []
    return [layout.writers / name for name in names if not _is_alive(layout.writers / name)]


def sweep_temps(layout: Layout, dead: list[Path]) -> int:
    """Remove the temp files of the writers in `dead`; returns how many there were.

    A marker that never got its name had no temp files yet: it goes at once.
    """
    for marker in [marker for marker in dead if marker.name.startswith(TEMP_PREFIX)]:
        remove(marker)
        dead.remove(marker)
    owners = {marker.name for marker in dead}
    removed = 0
    for path in temp_files(layout):
        owner = path.name.removeprefix(TEMP_PREFIX).rpartition("-")[0]
        if owner in owners and remove(path):
            removed += 1
    return removed


def stray_temps(layout: Layout) -> list[Path]:
    """Temp files that belong to no living writer."""
    # In this order: a writer that begins between the two steps has no file in the list.
    temps = list(temp_files(layout))
    alive = {path.name for path in _markers(layout) if _is_alive(path)}
    strays = (path for path in temps if path.name.removeprefix(TEMP_PREFIX).rpartition("-")[0] not in alive)
    return [path for path in strays if path.exists()]


def temp_files(layout: Layout) -> Iterator[Path]:
    """Every temp file in the store, whoever wrote it."""
    folders = [Path(shard.path) for shard in layout.shards() if shard.is_dir(follow_symlinks=False)]
    for folder in (*folders, layout.fingerprints, layout.names):
        with contextlib.suppress(OSError):
            yield from (folder / name for name in os.listdir(folder) if name.startswith(TEMP_PREFIX))


def _markers(layout: Layout) -> list[Path]:
    try:
        return [layout.writers / name for name in os.listdir(layout.writers)]
    except OSError:
        return []


def _is_alive(marker: Path) -> bool:
    try:
        age_s = time.time() - marker.stat().st_mtime
        if marker.name.startswith(TEMP_PREFIX) and 0 <= age_s < _MAKING_S:
            return True
        with file_lock(marker, timeout_s=0, create=False):
            return not marker.exists()  # its owner ended properly before we had the lock
    except ResourceError:  # held
        return True
    except FileNotFoundError:  # ended properly while we looked
        return True
    except OSError:  # no locks on this file system
        return age_s < _UNLOCKABLE_AGE_S
