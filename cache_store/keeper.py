"""The store as its owner handles it: names, lists, plans, statistics, checks, moving chains. The commands' side.

Kept apart from `store` because a run needs none of it: nothing here is imported on the way to an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmcli.base.errors import LlmcliError, ResourceError, UsageError
from llmcli.base.text import printable
from llmcli.cache_store import maintain, portable
from llmcli.cache_store.block_file import read_header
from llmcli.cache_store.block_format import DamagedError
from llmcli.cache_store.catalog import Catalog, Entry, RemovalPlan
from llmcli.cache_store.chain import climb
from llmcli.cache_store.context import WRITABLE, Context
from llmcli.cache_store.counters import Usage
from llmcli.cache_store.index_schema import as_bytes, as_int, as_key, counters
from llmcli.cache_store.keys import KEY_BYTES, Fingerprint, Key
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.names import Name
from llmcli.cache_store.policy import free_bytes
from llmcli.cache_store.save import overhead_bytes
from llmcli.cache_store.upkeep import flush

MIN_KEY_TEXT = 4


@dataclass(frozen=True, slots=True)
class Stats:
    """The store in numbers. dedupe_ratio: bytes the entries would take on their own, by the bytes they take."""

    entries: int
    blocks: int
    stored_bytes: int
    overhead_bytes: int
    budget_bytes: int
    free_bytes: int
    pinned: int
    dedupe_ratio: float
    usage: Usage


class Keeper:
    """Works on a store opened by `PrefixStore`; get one from `PrefixStore.keeper()`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def name(self, ref: BlockRef, name: str, *, pin: bool) -> Name:
        """Let `name` stand for the chain up to `ref`, and keep it from eviction where `pin`. Raises UsageError."""
        self._require_writable()
        try:
            return self._context.names.save(name, ref.key, ref.parent, pinned=pin)
        except OSError as error:
            raise ResourceError(f"cannot keep the name {name!r}: {error.strerror}") from None

    def unname(self, name: str) -> bool:
        """Forget a name and its pin; says whether there was one."""
        self._require_writable()
        return self._context.names.remove(name)

    def names(self) -> list[Name]:
        """All names and pins."""
        return self._context.names.all()

    def find(self, text: str) -> tuple[Key, Key]:
        """(key, parent) of what the user means: a name, else the beginning of a key. Raises LlmcliError."""
        if named := self._context.names.get(text):
            return named.key, named.parent
        found = self._by_key(text.lower())
        if len(found) == 1:
            return found[0]
        what = "no stored prefix is called" if not found else "more than one stored prefix starts with"
        raise LlmcliError(f"{what} {printable(text)!r}", hint="llmcli cache ls")

    def chain(self, text: str) -> tuple[BlockRef, ...]:
        """The blocks of a chain, by name or key, first block first. Raises LlmcliError where one is missing."""
        key, parent = self.find(text)
        blocks = climb(self._context.layout, key, parent)
        if blocks is None:
            raise LlmcliError(
                f"{printable(text)!r} is no longer whole: blocks are missing or damaged", hint="llmcli cache verify"
            )
        return tuple(blocks)

    def end(self, text: str) -> BlockRef:
        """The last block of a chain, by name or key, whether the chain is whole or not. Raises LlmcliError."""
        key, parent = self.find(text)
        path = self._context.layout.block(parent, key)
        try:
            return BlockRef.of(read_header(path)[0], path)
        except (FileNotFoundError, DamagedError):
            raise LlmcliError(
                f"{printable(text)!r} is no longer there, or damaged", hint="llmcli cache verify"
            ) from None

    def entries(self) -> list[Entry]:
        """Every chain, the last used first."""
        return self._catalog().entries()

    def entry(self, key: Key) -> Entry | None:
        """One chain."""
        return self._catalog().entry(key)

    def plan_rm(self, text: str) -> RemovalPlan:
        """What removing this entry would free: its private blocks and its names."""
        return self._catalog().plan_removal(self.find(text)[0])

    def plan_prune(
        self,
        *,
        unused_s: float | None = None,
        max_bytes: int | None = None,
        fingerprints: frozenset[bytes] | None = None,
    ) -> RemovalPlan:
        """What pruning would remove; without arguments what the policy (lifetime, budget) asks for now."""
        if unused_s is None and max_bytes is None and fingerprints is None:
            unused_s, max_bytes = self._context.policy.ttl_s, self._budget_bytes(self._stored_bytes())
        since_s = None if unused_s is None else time.time() - unused_s
        return self._catalog().plan_prune(unused_since_s=since_s, max_bytes=max_bytes, fingerprints=fingerprints)

    def plan_forget(self, fingerprints: frozenset[bytes]) -> RemovalPlan:
        """What removing everything stored under these fingerprints would free; pinned or not."""
        return self._catalog().plan_forget(fingerprints)

    def carry_out(self, plan: RemovalPlan) -> tuple[int, int]:
        """Remove what the plan says, as far as it is still true: (blocks, bytes) that went."""
        self._require_writable()
        return maintain.carry_out(self._context, plan)

    def clear(self) -> tuple[int, int]:
        """Remove everything: (blocks, bytes) that went."""
        self._require_writable()
        return maintain.clear(self._context)

    def verify(self, *, repair: bool, on_bytes: Callable[[int], None] | None = None) -> maintain.Verified:
        """Read and check every byte."""
        return maintain.verify(self._context, repair=repair, on_bytes=on_bytes)

    def stats(self) -> Stats:
        """The store in numbers."""
        flush(self._context)
        catalog, totals = self._catalog(), dict[str, float]()
        with self._context.index.reading() as connection:
            if connection is not None:
                totals = counters(connection)
        stored = sum(row.nbytes for row in catalog.rows.values())
        return Stats(
            len(catalog.entries()), len(catalog.rows), stored, overhead_bytes(self._context),
            self._budget_bytes(stored), free_bytes(self._context.layout.base), len(self._context.names.pinned()),
            catalog.dedupe_ratio(), Usage.of(totals),
        )  # fmt: skip

    def fingerprints(self) -> list[Fingerprint]:
        """What is stored for: every known fingerprint."""
        return self._context.fingerprints.all()

    def bytes_by_fingerprint(self) -> dict[bytes, int]:
        """What is stored under each fingerprint."""
        flush(self._context)
        found: dict[bytes, int] = {}
        with self._context.index.reading() as connection:
            if connection is not None:
                rows = connection.execute("SELECT fingerprint, SUM(nbytes) FROM blocks GROUP BY fingerprint")
                found = {as_bytes(digest): as_int(total) for digest, total in rows}
        return found

    def export_chain(self, text: str, target: Path) -> int:
        """Write a chain into one portable file; returns its bytes. Raises LlmcliError, OSError."""
        chain = self.chain(text)
        digest = self._fingerprint_of(chain[-1])
        fingerprint = self._context.fingerprints.get(digest)
        if fingerprint is None:
            raise LlmcliError(f"what {printable(text)!r} was computed with is not known any more")
        return portable.export_chain(chain, fingerprint, target)

    def import_chain(self, source: Path, expected: Fingerprint | None) -> portable.Imported:
        """Store the chain in `source`; ModelError where it is for something other than `expected`."""
        self._require_writable()
        imported = portable.import_chain(self._context, source, expected)
        flush(self._context)
        return imported

    def _fingerprint_of(self, ref: BlockRef) -> bytes:
        return read_header(ref.path)[0].fingerprint

    def _catalog(self) -> Catalog:
        flush(self._context)
        with self._context.index.reading() as connection:
            if connection is not None:
                return Catalog.load(connection, self._context.names.all())
        return Catalog((), ())

    def _by_key(self, text: str) -> list[tuple[Key, Key]]:
        """Up to two blocks whose key starts with these hexadecimal digits."""
        if not MIN_KEY_TEXT <= len(text) <= 2 * KEY_BYTES or not set(text) <= set("0123456789abcdef"):
            return []
        lowest = bytes.fromhex(text.ljust(2 * KEY_BYTES, "0"))
        highest = bytes.fromhex(text.ljust(2 * KEY_BYTES, "f"))
        with self._context.index.reading() as connection:
            if connection is not None:
                rows = connection.execute(
                    "SELECT key, parent FROM blocks WHERE key BETWEEN ? AND ? LIMIT 2", (lowest, highest)
                )
                return [(as_key(key), as_key(parent)) for key, parent in rows]
        return []

    def _stored_bytes(self) -> int:
        return sum(row.nbytes for row in self._catalog().rows.values())

    def _budget_bytes(self, stored: int) -> int:
        return self._context.policy.budget_bytes(free_bytes(self._context.layout.base), stored)

    def _require_writable(self) -> None:
        if self._context.mode != WRITABLE:
            raise UsageError("the prefix store is read-only", hint="llmcli cache path")
