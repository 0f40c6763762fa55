"""Why blocks are no longer there: marks in the index, by which a later miss is explained.

A mark is the key that a beginning of the block would have, at each place where a restore could have ended. A prompt
that shares such a beginning has the same mark, whatever stood behind it in the block that is gone. Marks are hashes:
no token outlives its block.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from llmcli.cache_store.keys import BLOCK_TOKENS, GRID_TOKENS, TOKEN_BYTES, Key, Namespace

MAX_MARKS = 50_000


def _ends(start_tokens: int, n_tokens: int) -> list[int]:
    """Where in a block of `n_tokens` a restore can end, the block's own end last."""
    return [*range(GRID_TOKENS - start_tokens % GRID_TOKENS, n_tokens, GRID_TOKENS), n_tokens]


def _marks(
    namespace: Namespace, parent: Key, start_tokens: int, tokens: bytes, *, exact: bool
) -> Iterable[tuple[int, Key]]:
    """(position of its end, mark) for each place of a block that a restore can end at."""
    for end in _ends(start_tokens, len(tokens) // TOKEN_BYTES):
        yield start_tokens + end, namespace.key(parent, tokens[: end * TOKEN_BYTES], exact=exact)


def remember(
    connection: sqlite3.Connection,
    namespace: Namespace,
    parent: Key,
    start_tokens: int,
    tokens: bytes,
    *,
    exact: bool,
    reason: str,
    now_s: float,
) -> None:
    """A block went, for this reason."""
    marks = _marks(namespace, parent, start_tokens, tokens, exact=exact)
    connection.executemany("INSERT OR REPLACE INTO gone VALUES (?, ?, ?)", [(mark, reason, now_s) for _, mark in marks])


def forget(
    connection: sqlite3.Connection, namespace: Namespace, parent: Key, start_tokens: int, tokens: bytes, *, exact: bool
) -> None:
    """A block with these tokens is stored: what was told of one that began like it is over."""
    marks = _marks(namespace, parent, start_tokens, tokens, exact=exact)
    connection.executemany("DELETE FROM gone WHERE key = ?", [(mark,) for _, mark in marks])


def reason_of(
    connection: sqlite3.Connection,
    namespace: Namespace,
    parents: Iterable[tuple[Key, int]],
    prompt: bytes,
    *,
    exact_only: bool,
    min_tokens: int,
) -> str | None:
    """Why the block is gone that shared the longest beginning with `prompt`; None where none of use is known.

    parents      (key, end) of what is stored of the prompt: the root, and each whole block
    min_tokens   a block that shared less would not have been restored
    """
    best_end, best = min(min_tokens, BLOCK_TOKENS) - 1, None
    for parent, start in parents:
        tokens = prompt[start * TOKEN_BYTES : (start + BLOCK_TOKENS) * TOKEN_BYTES]
        if not tokens:
            continue
        for exact in (True,) if exact_only else (True, False):
            for end, mark in _marks(namespace, parent, start, tokens, exact=exact):
                if end > best_end:
                    row = connection.execute("SELECT reason FROM gone WHERE key = ?", (mark,)).fetchone()
                    best_end, best = (end, str(row[0])) if row else (best_end, best)
    return best


@contextlib.contextmanager
def glance(index: Path) -> Iterator[sqlite3.Connection | None]:
    """The index as it lies on the disk, for one who may not write, not even a lock; None where that cannot be read.

    An SQLite error inside the body ends the body quietly: set the result for that case before.
    """
    try:
        connection = sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error:
        yield None
        return
    with contextlib.closing(connection), contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA trusted_schema=OFF")
        yield connection


def trim(connection: sqlite3.Connection) -> None:
    """Forget the oldest marks past MAX_MARKS."""
    (count,) = connection.execute("SELECT count(*) FROM gone").fetchone()
    if count > MAX_MARKS:
        connection.execute(
            "DELETE FROM gone WHERE key IN (SELECT key FROM gone ORDER BY gone_s LIMIT ?)", (count - MAX_MARKS // 2,)
        )
