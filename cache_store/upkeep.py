"""What is done now and then, off the hot path: durable folders, late changes to the index, expiry, and the traces of
killed processes. Called by `PrefixStore.flush`, once per answer, and at the end.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from llmcli.base.files import fsync_dir
from llmcli.cache_store import gone
from llmcli.cache_store.block_file import read_header, remove
from llmcli.cache_store.block_format import DamagedError
from llmcli.cache_store.context import WRITABLE, Context
from llmcli.cache_store.index_schema import add_to_counter, as_key, delete_block, insert_block
from llmcli.cache_store.keys import Key

if TYPE_CHECKING:
    import sqlite3

_EXPIRE_AT_ONCE = 256


def flush(context: Context) -> None:
    """Make saved blocks durable and write what waits for the index. Never raises for what the disk does."""
    while context.dirty_folders:
        fsync_dir(context.dirty_folders.pop())
    if context.mode != WRITABLE:
        return
    if context.dead:
        reconcile(context)
    if context.pending:
        _write_pending(context)
    if context.policy.ttl_s is not None and context.index_is_used:
        _expire(context, time.time() - context.policy.ttl_s)


def close(context: Context) -> None:
    """The last flush; the marker stays where the index missed something, for the next opening to see."""
    if context.abandoned:
        return
    flush(context)
    missed = False
    if context.index_is_used:
        missed = context.index.missed_changes and not context.index.in_memory
        context.index.close()
    context.writer.end(keep_marker=missed)


def reconcile(context: Context) -> tuple[int, int]:
    """Compare the index with the folder names: (rows added, rows dropped). Reads headers of unknown blocks only."""
    added = dropped = 0
    with context.index.writing() as connection:
        if connection is not None:
            known = {as_key(row[0]): as_key(row[1]) for row in connection.execute("SELECT key, parent FROM blocks")}
            for name, path in context.layout.all_blocks():
                if known.pop(name.key, None) is None:
                    added += _add(connection, name.key, path)
            for key, parent in known.items():
                if not os.path.exists(context.layout.block(parent, key)):
                    delete_block(connection, key, "removed", time.time())
                    dropped += 1
            connection.execute(
                "INSERT OR REPLACE INTO counters SELECT 'stored_bytes', coalesce(sum(nbytes), 0) FROM blocks"
            )
            while context.dead:
                remove(context.dead.pop())
    return added, dropped


def _add(connection: sqlite3.Connection, key: Key, path: str) -> int:
    try:
        header, facts = read_header(path)
    except (FileNotFoundError, DamagedError):
        return 0
    sound = header.key == key and header.key_is_its_own()
    return int(sound and insert_block(connection, header, facts.st_mtime))


def _write_pending(context: Context) -> None:
    counts, uses, damaged = context.pending.take()
    with context.index.writing() as connection:
        if connection is None:
            return
        for name, amount in counts.items():
            add_to_counter(connection, name, amount)
        for used, (when_s, times) in uses.items():
            connection.execute(
                "UPDATE blocks SET used_s = max(used_s, ?), hits = hits + ? WHERE key = ?", (when_s, times, used)
            )
        for key in damaged:
            if not _is_saved_again(connection, context, Key(key)):
                delete_block(connection, Key(key), "damaged", time.time())
        gone.trim(connection)


def _is_saved_again(connection: sqlite3.Connection, context: Context, key: Key) -> bool:
    """Whether a block that was removed has a file by now, of this run or another: its row is that file's."""
    row = connection.execute("SELECT parent FROM blocks WHERE key = ?", (key,)).fetchone()
    return row is not None and os.path.exists(context.layout.block(as_key(row[0]), key))


def _expire(context: Context, before_s: float) -> None:
    from llmcli.cache_store.evict import expire

    with context.index.writing() as connection:
        if connection is not None:
            expire(connection, context.layout, before_s, context.names.pinned(), _EXPIRE_AT_ONCE)
