"""The index: an SQLite file that makes the store quick to list, order and count. Never the truth.

Truth is in the block files; whatever the index says about one is checked there. It is opened late (importing sqlite3
costs 6 ms, a hit does not need it) and by any thread, one at a time. What can go wrong, and what happens:

    missing, of another version, foreign, corrupt    rebuilt from the block headers
    no shared memory for WAL (network home)          journal_mode=DELETE
    no locks, unwritable, disk full                  one warning, and an index in memory for this process
    busy for too long                                this change is lost; the next opening looks after it

Opening, filling and replacing the file is for one process at a time (index.lock): a file that is taken away while
another process opens it would give that process half a database.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from llmcli.base.errors import ResourceError
from llmcli.base.files import file_lock
from llmcli.base.text import printable
from llmcli.cache_store.block_format import BlockHeader
from llmcli.cache_store.index_schema import (
    APPLICATION_ID,
    INDEX_VERSION,
    PAGE_BYTES,
    SCHEMA,
    BrokenIndexError,
    insert_block,
    journal_mode,
)

_OPTIONS: Any = {"timeout": 5.0, "isolation_level": None, "check_same_thread": False}  # seconds; BEGIN is written out
_PRAGMAS = (
    "synchronous=OFF",  # files are the truth: a power cut may cost rows, or the index, which is then rebuilt
    "wal_autocheckpoint=128",  # 1 MiB and not SQLite's 1000 pages: the WAL counts towards the budget
    "journal_size_limit=1048576",
    "trusted_schema=OFF",
    "cell_size_check=ON",
    "temp_store=MEMORY",
)
_FILL_TIMEOUT_S = 30.0
_POLL_S = 0.02
_GLANCE_S = 0.05
Headers = Callable[[], Iterable[tuple[BlockHeader, float]]]


class Index:
    """One process's use of the index.

    path      the SQLite file
    headers   walks all blocks of the store: (header, time of last use); for a rebuild
    warn      told once, in one line, when the index cannot be kept on disk
    """

    def __init__(self, path: Path, headers: Headers, warn: Callable[[str], None], *, in_memory: bool = False) -> None:
        self._path = path
        self._gate_path = path.with_suffix(".lock")
        self._headers = headers
        self._warn = warn
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
                self._rollback(connection)
                self._failed(error)
            except BaseException:
                self._rollback(connection)
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
                with self._gate(_FILL_TIMEOUT_S):
                    _unlink_database(self._path)
            self._ready(build=True)

    def _ready(self, *, build: bool) -> sqlite3.Connection | None:
        """The open connection, opened and filled first where needed."""
        if self._connection is not None and self._opened == (os.getpid(), self._inode()):
            return self._connection
        if self._opened[0] == os.getpid():
            self.close()
        self._connection = None  # after a fork the parent's connection is dropped without being closed
        with self._gate(_FILL_TIMEOUT_S if build else _GLANCE_S) as is_ours:
            if build or is_ours:
                self._connection = self._connect(build=build)
            self._opened = (os.getpid(), self._inode())
        return self._connection

    def _connect(self, *, build: bool) -> sqlite3.Connection | None:
        try:
            return self._open_patiently() if build else self._open(build=False)
        except BrokenIndexError:
            return self._open_again() if build else None
        except (sqlite3.Error, OSError) as error:
            return self._open_in_memory(error) if build else None

    @contextlib.contextmanager
    def _gate(self, timeout_s: float) -> Iterator[bool]:
        """Keep other processes from opening, filling or replacing the file; False where one of them holds on to it.

        Where there are no locks SQLite's own waiting has to do.
        """
        with contextlib.ExitStack() as held:
            is_ours = True
            if not self._in_memory:
                try:
                    _make_private(self._gate_path)
                    held.enter_context(file_lock(self._gate_path, timeout_s=timeout_s, create=False, poll_s=_POLL_S))
                except ResourceError:
                    is_ours = False
                except OSError:
                    pass
            yield is_ours

    def _inode(self) -> int:
        """The inode of the file, so that a file replaced by another process's rebuild is noticed; 0 in memory."""
        if self._in_memory:
            return 0
        try:
            return self._path.stat().st_ino
        except OSError:
            return -1

    def _open_patiently(self) -> sqlite3.Connection | None:
        """Open and fill; wait where another process is filling the same file (setting WAL does not wait by itself)."""
        deadline = time.monotonic() + _FILL_TIMEOUT_S
        while True:
            try:
                return self._open(build=True)
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _open(self, *, build: bool) -> sqlite3.Connection | None:
        if self._in_memory:
            return self._fill(_set_up(sqlite3.connect(":memory:", **_OPTIONS))) if build else None
        if not build and not self._path.exists():
            return None
        if self._path.is_symlink():  # what it leads to is not ours to fill
            raise BrokenIndexError("a link")
        _make_private(self._path)
        connection: sqlite3.Connection = sqlite3.connect(str(self._path), **_OPTIONS)
        try:
            _set_up(connection)
            if self._is_good(connection):
                return connection
            if build:
                return self._fill(connection)
        except (sqlite3.OperationalError, OSError):
            connection.close()
            raise
        except (sqlite3.DatabaseError, BrokenIndexError) as error:  # corrupt, or not a database
            connection.close()
            raise BrokenIndexError(str(error)) from None
        connection.close()
        return None

    def _is_good(self, connection: sqlite3.Connection) -> bool:
        """False for an empty file, to be filled; raises BrokenIndexError for another version or a foreign file."""
        with _one_state(connection):
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            named = connection.execute("PRAGMA application_id").fetchone()[0]
            statements = [row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")]
        if (found, named, statements) == (0, 0, []):
            return False
        if (found, named) != (INDEX_VERSION, APPLICATION_ID) or sorted(statements) != sorted(SCHEMA):
            raise BrokenIndexError(f"version {found}, application {named:#x}")
        return True

    def _fill(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Make the tables and a row for every block, in one transaction."""
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        if not self._in_memory:
            connection.execute(f"PRAGMA journal_mode={journal_mode(self._path)}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not self._is_good(connection):  # nobody else filled it while we waited
                for statement in SCHEMA:
                    connection.execute(statement)
                for header, used_s in self._headers():
                    insert_block(connection, header, used_s)
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={INDEX_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            self._rollback(connection)
            raise
        return connection

    def _open_again(self) -> sqlite3.Connection | None:
        """After a broken file: a fresh one, in memory where even that does not work."""
        try:
            _unlink_database(self._path)
            return self._open(build=True)
        except (sqlite3.Error, OSError, BrokenIndexError) as error:
            return self._open_in_memory(error)

    def _open_in_memory(self, error: Exception) -> sqlite3.Connection | None:
        self._warn(f"the prefix store's index cannot be used ({printable(str(error))}); going on without it")
        self._in_memory = True
        return self._open(build=True)

    def _begin(self, connection: sqlite3.Connection) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        """After an error in use: decide what the next use will find."""
        if isinstance(error, sqlite3.OperationalError) and _is_busy(error):
            return
        broken = isinstance(error, BrokenIndexError) or not isinstance(error, sqlite3.OperationalError)
        self.close()
        if self._in_memory:
            return
        with self._gate(_FILL_TIMEOUT_S):
            if self._opened != (os.getpid(), self._inode()):
                return  # another process has replaced it: the next use opens the new one
            if broken or "no such" in str(error):
                with contextlib.suppress(OSError):
                    _unlink_database(self._path)
                return
        self._connection = self._open_in_memory(error)
        self._opened = (os.getpid(), 0)

    @staticmethod
    def _rollback(connection: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")


@contextlib.contextmanager
def _one_state(connection: sqlite3.Connection) -> Iterator[None]:
    """Several reads see the database at one moment, also while another process fills it."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _set_up(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.text_factory = _decode
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _make_private(path: Path) -> None:
    """An empty file for this user alone, unless there is one. SQLite itself would go by the umask."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.chmod(path, 0o600)


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return "locked" in str(error) and "protocol" not in str(error)


def _unlink_database(path: Path) -> None:
    """Remove the file and what lies beside it; the side files first, or the next file would inherit them."""
    for suffix in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")
