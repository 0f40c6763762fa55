"""The tables of the index, and the few statements that both a rebuild and a save need.

children holds the token ids of each block once, big-endian, ordered by parent and ids: the stored block that shares
the longest run with a prompt is then a neighbour of the prompt in that order, found without looking at the others.
gone remembers why blocks vanished, so that a miss can be explained: see cache_store/gone.py.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

from llmcli.cache_store import gone
from llmcli.cache_store.block_format import BlockHeader
from llmcli.cache_store.keys import KEY_BYTES, Key, Namespace, sortable

APPLICATION_ID = 0x4C4D4B56  # "LMKV"
INDEX_VERSION = 1
PAGE_BYTES = 8192  # a row of children is up to 1.1 KB; with 4096 SQLite would give each an overflow page
_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "afs", "lustre", "gpfs", "ceph", "gluster", "fuse.sshfs", "beegfs")

_BLOCKS = (
    "CREATE TABLE blocks (key BLOB PRIMARY KEY, parent BLOB NOT NULL, fingerprint BLOB NOT NULL, salt BLOB NOT NULL,"
    " start_tokens INTEGER NOT NULL, n_tokens INTEGER NOT NULL, nbytes INTEGER NOT NULL, created_s REAL NOT NULL,"
    " used_s REAL NOT NULL, hits INTEGER NOT NULL, exact INTEGER NOT NULL, preview TEXT NOT NULL) WITHOUT ROWID"
)
_CHILDREN = (
    "CREATE TABLE children (parent BLOB NOT NULL, tokens BLOB NOT NULL, key BLOB NOT NULL,"
    " PRIMARY KEY (parent, tokens, key)) WITHOUT ROWID"
)
SCHEMA = (
    _BLOCKS,
    _CHILDREN,
    "CREATE INDEX blocks_by_use ON blocks (used_s)",
    "CREATE TABLE gone (key BLOB PRIMARY KEY, reason TEXT NOT NULL, gone_s REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID",
)


class BrokenIndexError(Exception):
    """The index holds what this package never wrote. It never leaves `Index`, which rebuilds the file."""


def as_key(value: object) -> Key:
    """A column as a block key; raises BrokenIndexError for anything else."""
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise BrokenIndexError(f"a key of type {type(value).__name__}")
    return Key(value)


def as_bytes(value: object) -> bytes:
    """A column as bytes; raises BrokenIndexError for anything else."""
    if not isinstance(value, bytes):
        raise BrokenIndexError(f"bytes of type {type(value).__name__}")
    return value


def as_int(value: object) -> int:
    """A column as a count; raises BrokenIndexError for anything else."""
    if not isinstance(value, int) or value < 0:
        raise BrokenIndexError(f"a count of type {type(value).__name__}")
    return value


def as_float(value: object) -> float:
    """A column as a number; raises BrokenIndexError for anything else."""
    if not isinstance(value, float | int):
        raise BrokenIndexError(f"a number of type {type(value).__name__}")
    return float(value)


def insert_block(connection: sqlite3.Connection, header: BlockHeader, used_s: float) -> bool:
    """A row for a block that is in its place; says whether it was new to the index."""
    added = connection.execute(
        "INSERT OR IGNORE INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
        (
            header.key, header.parent, header.fingerprint, header.salt, header.start_tokens, header.n_tokens,
            header.file_bytes, header.created_s, used_s, int(header.exact), header.preview,
        ),
    ).rowcount  # fmt: skip
    if added != 1:
        return False
    connection.execute(
        "INSERT OR IGNORE INTO children VALUES (?, ?, ?)", (header.parent, sortable(header.tokens), header.key)
    )
    add_to_counter(connection, "stored_bytes", header.file_bytes)
    return True


def delete_block(connection: sqlite3.Connection, key: Key, reason: str | None, now_s: float) -> int:
    """Drop the row of a block and remember why it went; returns its bytes (0 where there was no row).

    reason   None: another file takes its place, so nothing went
    """
    row = connection.execute(
        "SELECT parent, nbytes, fingerprint, salt, start_tokens, exact FROM blocks WHERE key = ?", (key,)
    ).fetchone()
    if row is None:
        return 0
    parent, nbytes = as_key(row[0]), as_int(row[1])
    connection.execute("DELETE FROM blocks WHERE key = ?", (key,))
    child = connection.execute("SELECT tokens FROM children WHERE parent = ? AND key = ?", (parent, key)).fetchone()
    if child is not None:
        ids = as_bytes(child[0])
        connection.execute("DELETE FROM children WHERE parent = ? AND tokens = ? AND key = ?", (parent, ids, key))
        if reason is not None:
            namespace, exact = Namespace(as_bytes(row[2]), as_bytes(row[3])), bool(row[5])
            tokens = sortable(ids)  # swaps the bytes of each id, so it is its own inverse
            gone.remember(
                connection, namespace, parent, as_int(row[4]), tokens, exact=exact, reason=reason, now_s=now_s
            )
    add_to_counter(connection, "stored_bytes", -nbytes)
    return nbytes


def add_to_counter(connection: sqlite3.Connection, name: str, amount: float) -> None:
    """Add to a counter, which starts at 0."""
    connection.execute(
        "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        (name, amount),
    )


def counters(connection: sqlite3.Connection) -> dict[str, float]:
    """All counters by name."""
    return {str(name): as_float(value) for name, value in connection.execute("SELECT name, value FROM counters")}


def journal_mode(path: Path) -> str:
    """WAL, or DELETE where the file lies on a network: WAL needs memory that all its users share."""
    return "DELETE" if sys.platform == "linux" and _file_system(path).startswith(_NETWORK_FILE_SYSTEMS) else "WAL"


def _file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that `path` lies on; empty where the system does not tell (proc(5), mountinfo)."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    real, best, found = os.path.realpath(path), -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = fields[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), right.split()[0]
    return found
