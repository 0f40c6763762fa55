"""What the store holds, as people see it: chains, what each shares with others, and plans to remove some of it.

An entry is the end of a chain, or a named block inside one. Its private bytes are those of the blocks that no other
entry needs: removing the entry frees exactly them. Plans are values; nothing is removed here.
"""

from __future__ import annotations

import functools
import heapq
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from llmcli.cache_store.apart import partings, word_start
from llmcli.cache_store.index_schema import as_float, as_int, as_key
from llmcli.cache_store.keys import Key
from llmcli.cache_store.names import Name

ASKED = "asked for"


@dataclass(frozen=True, slots=True)
class Row:
    """A block as the index knows it."""

    key: Key
    parent: Key
    fingerprint: bytes
    start_tokens: int
    n_tokens: int
    nbytes: int
    created_s: float
    used_s: float
    hits: int
    exact: bool
    preview: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One chain.

    tokens           from position 0 to its end
    chain_bytes      all its blocks, the shared ones too
    private_bytes    what removing it would free
    hits             uses of its chain: prompts that restored some of it and went on into no other branch
    used_s           the last of them, or when it was stored
    preview          how its text starts; private_preview: how the part that is its own starts
    apart            how its text reads from where it parts from that of what is stored beside it
    """

    key: Key
    parent: Key
    fingerprint: bytes
    blocks: int
    tokens: int
    chain_bytes: int
    private_bytes: int
    created_s: float
    used_s: float
    hits: int
    pinned: bool
    names: tuple[str, ...]
    preview: str
    private_preview: str
    apart: str


@dataclass(frozen=True, slots=True)
class Doomed:
    """A block that a plan would remove, and why."""

    key: Key
    parent: Key
    nbytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """What would go: blocks in the order in which they can (ends of chains first), and names."""

    blocks: tuple[Doomed, ...]
    names: tuple[str, ...]
    kept_bytes: int

    @property
    def nbytes(self) -> int:
        """The bytes that would be freed."""
        return sum(block.nbytes for block in self.blocks)


class Catalog:
    """All rows of the index at one moment, and the tree they form."""

    def __init__(self, rows: Iterable[Row], names: Iterable[Name]) -> None:
        self.rows: dict[Key, Row] = {row.key: row for row in sorted(rows, key=lambda row: row.start_tokens)}
        self.names: dict[Key, list[Name]] = {}
        for name in names:
            self.names.setdefault(name.key, []).append(name)
        self.children: dict[Key, list[Key]] = {}
        for row in self.rows.values():
            self.children.setdefault(row.parent, []).append(row.key)
        # Parents come first in self.rows; a row whose parent is missing or does not end where it starts is adrift.
        self.chain_bytes: dict[Key, int] = {}
        self.adrift: set[Key] = set()
        for row in self.rows.values():
            parent = self.rows.get(row.parent)
            fits = row.start_tokens == (parent.start_tokens + parent.n_tokens if parent else 0)
            if not fits or row.parent in self.adrift:
                self.adrift.add(row.key)
            self.chain_bytes[row.key] = row.nbytes + self.chain_bytes.get(row.parent, 0)
        self.entries_below = self._count_entries()

    @classmethod
    def load(cls, connection: sqlite3.Connection, names: Iterable[Name]) -> Catalog:
        """Read all rows. Memory grows with the store here, so this is for the commands that list it."""
        rows = connection.execute(
            "SELECT key, parent, fingerprint, start_tokens, n_tokens, nbytes, created_s, used_s, hits, exact, preview"
            " FROM blocks"
        )
        return cls((_row(row) for row in rows), names)

    def entries(self) -> list[Entry]:
        """Every chain, the last used first."""
        found = [self._entry(row) for row in self.rows.values() if self._is_entry(row.key)]
        return sorted(found, key=lambda entry: (-entry.used_s, entry.key))

    def entry(self, key: Key) -> Entry | None:
        """The chain that ends with `key`, even where it is only the beginning of others."""
        row = self.rows.get(key)
        return self._entry(row) if row and key not in self.adrift else None

    def plan_removal(self, key: Key) -> RemovalPlan:
        """What removing the entry `key` frees: its name, and its blocks down to the first one that others need."""
        doomed = [Doomed(row.key, row.parent, row.nbytes, ASKED) for row in self._private(key)]
        names = tuple(name.name for name in self.names.get(key, ()))
        return self._plan(doomed, names)

    def plan_prune(
        self, *, unused_since_s: float | None, max_bytes: int | None, fingerprints: frozenset[bytes] | None
    ) -> RemovalPlan:
        """What to remove: blocks adrift, then ends of chains, oldest first, while a reason applies.

        unused_since_s   remove what was not used since then
        max_bytes        remove until no more than this is left
        fingerprints     remove only what belongs to these (and all of it where nothing else is asked)
        """
        adrift = sorted(self.adrift, key=lambda key: -self.rows[key].start_tokens)
        doomed = [self._doom(key, "its beginning is gone") for key in adrift]
        left = sum(row.nbytes for row in self.rows.values()) - sum(block.nbytes for block in doomed)
        only_asked = unused_since_s is None and max_bytes is None and fingerprints is not None
        waiting = {key: len(keys) for key, keys in self.children.items()}
        ready = [self._turn(row) for row in self.rows.values() if not waiting.get(row.key)]
        heapq.heapify(ready)
        while ready:
            row = self.rows[heapq.heappop(ready)[-1]]
            over = max_bytes is not None and left > max_bytes
            old = unused_since_s is not None and row.used_s < unused_since_s
            wanted = fingerprints is None or row.fingerprint in fingerprints
            if row.key in self.adrift or self._is_pinned(row.key) or not wanted or not (over or old or only_asked):
                continue
            doomed.append(self._doom(row.key, "unused for long" if old else "over the budget" if over else ASKED))
            left -= row.nbytes
            waiting[row.parent] -= 1
            if not waiting[row.parent] and row.parent in self.rows:
                heapq.heappush(ready, self._turn(self.rows[row.parent]))
        return self._plan(doomed, ())

    def plan_forget(self, fingerprints: frozenset[bytes]) -> RemovalPlan:
        """All that was stored under these fingerprints, ends of chains first, with its names: the pinned ones too."""
        rows = [row for row in self.rows.values() if row.fingerprint in fingerprints]
        doomed = [self._doom(row.key, ASKED) for row in reversed(rows)]
        names = tuple(name.name for row in rows for name in self.names.get(row.key, ()))
        return self._plan(doomed, names)

    def dedupe_ratio(self) -> float:
        """The bytes that the entries would take on their own, by the bytes they take: 1 where nothing is shared."""
        stored = sum(row.nbytes for row in self.rows.values())
        alone = sum(self.chain_bytes[row.key] for row in self.rows.values() if self._is_entry(row.key))
        return alone / stored if stored else 1.0

    @staticmethod
    def _turn(row: Row) -> tuple[float, int, Key]:
        """The order of eviction: a sort key."""
        return (row.used_s, -row.start_tokens, row.key)

    def _doom(self, key: Key, reason: str) -> Doomed:
        row = self.rows[key]
        return Doomed(key, row.parent, row.nbytes, reason)

    def _plan(self, doomed: list[Doomed], names: tuple[str, ...]) -> RemovalPlan:
        total = sum(row.nbytes for row in self.rows.values())
        return RemovalPlan(tuple(doomed), names, total - sum(block.nbytes for block in doomed))

    def _is_pinned(self, key: Key) -> bool:
        return any(name.pinned for name in self.names.get(key, ()))

    def _is_entry(self, key: Key) -> bool:
        return key not in self.adrift and (key in self.names or not self.children.get(key))

    def _count_entries(self) -> dict[Key, int]:
        """How many entries need each block: itself included where it is one."""
        counts = {key: int(self._is_entry(key)) for key in self.rows}
        for row in reversed(self.rows.values()):
            if row.parent in counts:
                counts[row.parent] += counts[row.key]
        return counts

    @functools.cached_property
    def _uses(self) -> dict[Key, int]:
        """How often each chain was used up to its block and no further in another branch.

        A use counts for every block that it goes through. What went on into one branch is no use of the others: it
        is taken off where they part.
        """
        uses: dict[Key, int] = {}
        for row in self.rows.values():
            went_on = sum(self.rows[child].hits for child in self.children.get(row.key, ()))
            uses[row.key] = uses.get(row.parent, 0) + max(0, row.hits - went_on)
        return uses

    @functools.cached_property
    def _parting_at(self) -> dict[Key, int]:
        siblings = ({key: self.rows[key].preview for key in keys} for keys in self.children.values())
        return {key: at for texts in siblings for key, at in partings(texts).items()}

    def _apart(self, private: list[Row], end: Row) -> str:
        """The text of the first block of its own that tells the entry from others, from that place on."""
        for row in reversed(private or [end]):
            if (at := self._parting_at[row.key]) < len(row.preview):
                return row.preview[word_start(row.preview, at) :]
        return end.preview

    def _used_s(self, chain: list[Row]) -> float:
        """When it was used last: what is true of its uses is true of their times."""
        latest = chain[-1].used_s
        for row in chain[:-1]:
            if all(self.rows[child].used_s < row.used_s for child in self.children[row.key]):
                latest = max(latest, row.used_s)
        return latest

    def _private(self, key: Key) -> list[Row]:
        """The blocks that only the entry `key` needs, last one first."""
        found: list[Row] = []
        row = self.rows.get(key) if key not in self.adrift else None
        while row is not None and self.entries_below[row.key] == 1:
            found.append(row)
            row = self.rows.get(row.parent)
        return found if self._is_entry(key) else []

    def chain(self, key: Key) -> list[Row]:
        """The rows of the chain that ends with `key`, first block first."""
        found: list[Row] = []
        row = self.rows.get(key)
        while row is not None and len(found) < len(self.rows):
            found.append(row)
            row = self.rows.get(row.parent)
        return found[::-1]

    def _entry(self, row: Row) -> Entry:
        chain, private, names = self.chain(row.key), self._private(row.key), self.names.get(row.key, [])
        return Entry(
            row.key, row.parent, row.fingerprint, len(chain), row.start_tokens + row.n_tokens,
            self.chain_bytes[row.key], sum(block.nbytes for block in private), row.created_s, self._used_s(chain),
            self._uses[row.key],
            any(name.pinned for name in names), tuple(name.name for name in names),
            chain[0].preview, private[-1].preview if private else row.preview, self._apart(private, row),
        )  # fmt: skip


def _row(values: tuple[object, ...]) -> Row:
    key, parent, fingerprint, start, n_tokens, nbytes, created_s, used_s, hits, exact, preview = values
    return Row(
        as_key(key), as_key(parent), as_key(fingerprint), as_int(start), as_int(n_tokens), as_int(nbytes),
        as_float(created_s), as_float(used_s), as_int(hits), bool(exact), str(preview),
    )  # fmt: skip
