"""The index: an SQLite file that makes the store quick to list, order and count. Never the truth.

Truth is in the block files; whatever the index says about one is checked there. It is opened late (importing sqlite3
costs 6 ms, a hit does not need it) and by any thread, one at a time. What can go wrong, and what happens:

    missing, of another version, foreign, corrupt    rebuilt from the block headers
    no shared memory for WAL (network home)          journal_mode=DELETE
    no locks, unwritable, disk full                  one warning, and an index in memory for this process
    busy for too long                                this change is lost; the next opening looks after it

How the file is made and replaced beside other processes: index_file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from llmcli.base.text import printable
from llmcli.cache_store.index_file import FILL_TIMEOUT_S, Headers, IndexFile, is_busy, rollback
from llmcli.cache_store.index_schema import BrokenIndexError

_GLANCE_S = 0.05


class Index:
    """One process's use of the index.

    path      the SQLite file
    headers   walks all blocks of the store: (header, time of last use); for a rebuild
    warn      told once, in one line, when the index cannot be kept on disk
    """

    def __init__(self, path: Path, headers: Headers, warn: Callable[[str], None], *, in_memory: bool = False) -> None:
        self._file, self._warn = IndexFile(path, headers), warn
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._opened = (0, 0)  # process id, inode
        self._in_memory = in_memory
        self.missed_changes = False

    @property
    def in_memory(self) -> bool:
        """Whether this process could not use the file and counts for itself."""
        return self._in_memory

    @contextlib.contextmanager
    def reading(self, *, build: bool = True) -> Iterator[sqlite3.Connection | None]:
        """A connection to read from. None where there is no good index and `build` forbids the time to make one.

        An SQLite error inside the body ends the body quietly; set the result for that case before.
        """
        if not self._lock.acquire(timeout=-1 if build else _GLANCE_S):
            yield None  # another thread is writing, or making the index
            return
        try:
            yield self._ready(build=build)
        except (sqlite3.Error, BrokenIndexError) as error:
            self._failed(error)
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection | None]:
        """A transaction that excludes every other process: all of it happens, or nothing.

        None where the index cannot be had; the body then does its work on the files alone. An SQLite error inside
        the body ends the body quietly: files are made first and rows are only a copy of what they say.
        """
        with self._lock:
            connection = self._ready(build=True)
            if connection is not None and not self._begin(connection):
                connection = None
            if connection is None:
                self.missed_changes = True
                yield None
                return
            try:
                yield connection
                connection.execute("COMMIT")
            except (sqlite3.Error, BrokenIndexError) as error:
                self.missed_changes = True
                rollback(connection)
                self._failed(error)
            except BaseException:
                rollback(connection)
                raise

    def close(self) -> None:
        """Close the connection; a later use opens it again."""
        with self._lock:
            if self._connection is not None and self._opened[0] == os.getpid():
                self._connection.close()
            self._connection = None

    def rebuild(self) -> None:
        """Throw the index away and read it from the block headers."""
        with self._lock:
            self.close()
            if not self._in_memory:
                with self._file.gate(FILL_TIMEOUT_S):
                    self._file.remove()
            self._ready(build=True)

    def _ready(self, *, build: bool) -> sqlite3.Connection | None:
        """The open connection, opened and filled first where needed."""
        if self._connection is not None and self._opened == (os.getpid(), self._inode):
            return self._connection
        if self._opened[0] == os.getpid():
            self.close()
        self._connection = None  # after a fork the parent's connection is dropped without being closed
        if self._in_memory:
            self._connection = self._file.in_memory() if build else None
            self._opened = (os.getpid(), 0)
        else:
            self._connect(build=build)
        return self._connection

    def _connect(self, *, build: bool) -> None:
        with self._file.gate(FILL_TIMEOUT_S if build else _GLANCE_S) as is_ours:
            if is_ours or build:
                self._connection = self._open(build=build)
            self._opened = (os.getpid(), self._inode)

    def _open(self, *, build: bool) -> sqlite3.Connection | None:
        try:
            return self._file.open(build=build)
        except BrokenIndexError:
            return self._open_again() if build else None
        except (sqlite3.Error, OSError) as error:
            return self._open_in_memory(error) if build else None

    @property
    def _inode(self) -> int:
        return 0 if self._in_memory else self._file.inode

    def _open_again(self) -> sqlite3.Connection | None:
        """After a broken file: a fresh one, in memory where even that does not work."""
        try:
            self._file.remove()
            return self._file.open(build=True)
        except (sqlite3.Error, OSError, BrokenIndexError) as error:
            return self._open_in_memory(error)

    def _open_in_memory(self, error: Exception) -> sqlite3.Connection:
        self._warn(f"the prefix store's index cannot be used ({printable(str(error))}); going on without it")
        self._in_memory = True
        return self._file.in_memory()

    def _begin(self, connection: sqlite3.Connection) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        """After an error in use: decide what the next use will find."""
        if isinstance(error, sqlite3.OperationalError) and is_busy(error):
            return
        broken = isinstance(error, BrokenIndexError) or not isinstance(error, sqlite3.OperationalError)
        self.close()
        if self._in_memory:
            return
        with self._file.gate(FILL_TIMEOUT_S):
            if self._opened != (os.getpid(), self._inode):
                return  # another process has replaced it: the next use opens the new one
            if broken or "no such" in str(error):
                with contextlib.suppress(OSError):
                    self._file.remove()
                return
        self._connection = self._open_in_memory(error)
        self._opened = (os.getpid(), 0)
