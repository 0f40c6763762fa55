"""The SQLite file of the index: opened, filled from the block headers, replaced where it is broken.

One process at a time does that (index.lock): a file that is taken away while another process opens it would give that
process half a database. A connection that is open already stays good for reading; who uses one compares `inode` first.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from llmcli.base.errors import ResourceError
from llmcli.base.files import file_lock
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
_POLL_S = 0.02
FILL_TIMEOUT_S = 30.0
Headers = Callable[[], Iterable[tuple[BlockHeader, float]]]


class IndexFile:
    """Where the index lies, and `headers` to fill it from: (header, time of last use) of all blocks of the store."""

    def __init__(self, path: Path, headers: Headers) -> None:
        self._path, self._headers = path, headers
        self._gate_path = path.with_suffix(".lock")

    @contextlib.contextmanager
    def gate(self, timeout_s: float) -> Iterator[bool]:
        """Keep other processes from opening, filling or replacing the file; False where one of them holds on to it.

        Where there are no locks SQLite's own waiting has to do.
        """
        with contextlib.ExitStack() as held:
            is_ours = True
            try:
                _make_private(self._gate_path)
                held.enter_context(file_lock(self._gate_path, timeout_s=timeout_s, create=False, poll_s=_POLL_S))
            except ResourceError:
                is_ours = False
            except OSError:
                pass
            yield is_ours

    @property
    def inode(self) -> int:
        """Another one where another process has replaced the file; -1 without a file."""
        try:
            return self._path.stat().st_ino
        except OSError:
            return -1

    def open(self, *, build: bool) -> sqlite3.Connection | None:
        """A connection to a good index; `build` makes one where there is none, else that is None.

        Raises sqlite3.Error and OSError where it cannot be used, BrokenIndexError where it must be replaced.
        """
        return self._open_patiently() if build else self._open(build=False)

    def remove(self) -> None:
        """Remove the file and what lies beside it; the side files first, or the next file would inherit them."""
        for suffix in ("-wal", "-shm", "-journal", ""):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")

    def in_memory(self) -> sqlite3.Connection:
        """An index of what is there now, for this process alone."""
        return self._fill(_set_up(sqlite3.connect(":memory:", **_OPTIONS)), None)

    def _open_patiently(self) -> sqlite3.Connection | None:
        """Open and fill; wait where another process is filling the same file (setting WAL does not wait by itself)."""
        deadline = time.monotonic() + FILL_TIMEOUT_S
        while True:
            try:
                return self._open(build=True)
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _open(self, *, build: bool) -> sqlite3.Connection | None:
        if not build and not self._path.exists():
            return None
        if self._path.is_symlink():  # what it leads to is not ours to fill
            raise BrokenIndexError("a link")
        _make_private(self._path)
        connection: sqlite3.Connection = sqlite3.connect(str(self._path), **_OPTIONS)
        try:
            _set_up(connection)
            if _is_good(connection):
                return connection
            if build:
                return self._fill(connection, self._path)
        except (sqlite3.OperationalError, OSError):
            connection.close()
            raise
        except (sqlite3.DatabaseError, BrokenIndexError) as error:  # corrupt, or not a database
            connection.close()
            raise BrokenIndexError(str(error)) from None
        connection.close()
        return None

    def _fill(self, connection: sqlite3.Connection, path: Path | None) -> sqlite3.Connection:
        """Make the tables and a row for every block, in one transaction."""
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        if path is not None:
            connection.execute(f"PRAGMA journal_mode={journal_mode(path)}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not _is_good(connection):  # nobody else filled it while we waited
                for statement in SCHEMA:
                    connection.execute(statement)
                for header, used_s in self._headers():
                    insert_block(connection, header, used_s)
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={INDEX_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            rollback(connection)
            raise
        return connection


def _is_good(connection: sqlite3.Connection) -> bool:
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


def rollback(connection: sqlite3.Connection) -> None:
    """End a transaction, if there is one, without its changes."""
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
        rollback(connection)


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


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether others hold the database, which passes."""
    return "locked" in str(error) and "protocol" not in str(error)
