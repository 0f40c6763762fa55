"""The prefix store's front: the one class that the engine and the commands use.

    look-up   match, read, used                  main thread; no SQLite on a hit
    saving    put, flush                         any one thread beside it
    people    keeper(): names, entries, plans, stats, verify, export, import

Nothing here raises for what the environment does: a store that cannot be used misses, and says so once. What raises
is the caller's mistake (ValueError, UsageError) and a block that must not be used (DamagedError, from `read`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.cache_store.block_file import read_part, remove
from llmcli.cache_store.block_format import DamagedError
from llmcli.cache_store.context import OFF, WRITABLE, Context, open_context
from llmcli.cache_store.cost import Rates
from llmcli.cache_store.keys import (
    Fingerprint,
    Key,
    Namespace,
    Scalar,
    pack_tokens,
    sortable,
)
from llmcli.cache_store.match import BlockRef, Found, Walk
from llmcli.cache_store.parting import Difference
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.reasons import MissReason, other_reason, shares_too_little, stored_elsewhere, too_short
from llmcli.cache_store.save import Stored, save_block

if TYPE_CHECKING:
    from llmcli.cache_store.keeper import Keeper

BytesLike = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Match:
    """What is stored of a prompt.

    blocks                 in order; the last one may be shared only in part
    matched_tokens         from position 0; all of them are in `blocks`
    partial_last_tokens    how many tokens of the last block count; 0 where all of them do
    difference             where the prompt leaves the nearest stored one; None where nothing near is stored
    miss_reason, miss_detail   set where fewer tokens than the policy's minimum match
    passed                 whole blocks that the prompt goes through too, and that cannot be restored as asked
    """

    blocks: tuple[BlockRef, ...]
    matched_tokens: int
    partial_last_tokens: int
    difference: Difference | None
    miss_reason: MissReason | None
    miss_detail: str
    passed: tuple[BlockRef, ...] = ()

    @property
    def whole_blocks(self) -> tuple[BlockRef, ...]:
        """The blocks that match from end to end; a new block is put behind the last of them."""
        return self.blocks[:-1] if self.partial_last_tokens else self.blocks


class PrefixStore:
    """One opened store. Use `open`, and `close` at the end (or `with`)."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @classmethod
    def open(
        cls, root: Path, policy: Policy, *, salt: str = "", readonly: bool = False, notify: Callable[[str], None]
    ) -> PrefixStore:
        """Open the store under `root`, made where it is missing. Never raises for the state of the disk.

        salt     keeps tenants apart: chains saved under one are not found under another
        notify   gets each warning, one line, once
        """
        return cls(open_context(root, policy, salt, notify, readonly=readonly))

    def __enter__(self) -> PrefixStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def mode(self) -> str:
        """`writable`, `readonly` or `off`."""
        return self._context.mode

    @property
    def trouble(self) -> str | None:
        """Why it could not be opened for writing, where that was not asked for."""
        return self._context.trouble

    @property
    def root(self) -> Path:
        """The folder that the store lives in."""
        return self._context.layout.root

    def match(
        self,
        fingerprint: Fingerprint,
        tokens: Sequence[int],
        *,
        exact_only: bool = True,
        ending_part: str | None = None,
    ) -> Match:
        """The longest stored run of `tokens`.

        exact_only    pass over blocks that were put as not exact, and what follows them
        ending_part   the last block must have this part ("state"), and is never shared in part
        """
        policy = self._context.policy
        if self.mode == OFF:
            return _miss(MissReason.OFF)
        if len(tokens) < policy.min_tokens:
            return _miss(MissReason.TOO_SHORT, too_short(len(tokens), policy.min_tokens))
        prompt, damaged = pack_tokens(tokens), list[DamagedError]()

        def on_damage(path: str, key: Key, error: DamagedError) -> None:
            damaged.append(error)
            self._drop(path, key, error)

        now_s = time.time()
        walk = Walk(
            self._context.layout, Namespace.of(fingerprint, self._context.salt), prompt, exact_only, ending_part,
            lambda used_s: policy.expired(used_s, now_s), on_damage, self._neighbours,
        )  # fmt: skip
        found = walk.find()
        matched, reason, detail = found.tokens, None, ""
        if matched < policy.min_tokens:
            reason, detail = self._why(fingerprint, walk, found, damaged)
        return _as_match(found, matched, reason, detail)

    def read(self, ref: BlockRef, part: str) -> memoryview:
        """The verified bytes of a part. Raises DamagedError; the block is then gone, and what follows it unreachable.

        The view is read-only and mapped, no copy is made; release it (or let it go) to unmap it.
        """
        try:
            return read_part(ref.path, ref.key, part)
        except FileNotFoundError:
            raise DamagedError(f"{printable(ref.path)}: removed in the meantime", removable=False) from None
        except DamagedError as error:
            self._drop(ref.path, ref.key, error)
            raise

    def reject(self, ref: BlockRef, why: str) -> None:
        """Remove a block that the engine could not use although its bytes are whole; what follows it is unreachable."""
        self._drop(ref.path, ref.key, DamagedError(f"{printable(ref.path)}: {why}"))

    def used(
        self, refs: Sequence[BlockRef], *, hit_tokens: int, miss_tokens: int, saved_s: float, read_bytes: int
    ) -> None:
        """Record a prompt: the blocks that it is a use of (they become the last used), and what that won."""
        if self.mode != WRITABLE:
            return
        now_s, pending = time.time(), self._context.pending
        for ref in refs:
            with contextlib.suppress(OSError):  # removed in the meantime
                os.utime(ref.path, (now_s, now_s))
            pending.use(ref.key, now_s)
        counts = {"hit_tokens": hit_tokens, "miss_tokens": miss_tokens, "saved_s": saved_s, "read_bytes": read_bytes}
        for name, amount in counts.items():
            pending.count(name, amount)
        pending.count("lookups")
        pending.count("hits", int(hit_tokens > 0))

    def put(
        self,
        fingerprint: Fingerprint,
        parent: BlockRef | None,
        tokens: Sequence[int],
        parts: Mapping[str, BytesLike],
        *,
        preview: str = "",
        exact: bool = True,
    ) -> Stored:
        """Keep 1 to 256 tokens behind `parent` (None: from position 0). Idempotent; safe beside other processes.

        parts     name -> bytes. "state" holds exactly at the block's end; every other one may be cut between tokens
        preview   how the block's text starts, for `cache ls`
        exact     False for tokens that were decoded one by one: a cold prefill would give other bytes
        Raises ValueError for a block that the format cannot hold. The parts are written before this returns.
        """
        views = {name: memoryview(data).cast("B") for name, data in parts.items()}
        return save_block(self._context, fingerprint, parent, tokens, views, preview=preview, exact=exact)

    def flush(self) -> None:
        """Make what was put durable and bring the index up to date: once per answer, in the thread that puts."""
        from llmcli.cache_store.upkeep import flush

        flush(self._context)

    def abandon(self) -> None:
        """A thread that puts is stuck and is not waited for: `close` then leaves everything to the next opening."""
        self._context.abandoned = True

    def close(self) -> None:
        """Flush and end. The store may be used again afterwards; it then opens itself."""
        from llmcli.cache_store.upkeep import close

        close(self._context)

    def rates(self, fingerprint: Fingerprint) -> Rates:
        """The speeds measured under this fingerprint."""
        return Rates.from_notes(self.notes(fingerprint))

    def learn_rates(self, fingerprint: Fingerprint, measured: Rates) -> None:
        """Blend newly measured speeds in."""
        self.note(fingerprint, self.rates(fingerprint).blended(measured).as_notes())

    def notes(self, fingerprint: Fingerprint) -> Mapping[str, Scalar]:
        """What was noted under this fingerprint, such as the result of its self-test."""
        return self._context.fingerprints.notes(fingerprint.digest)

    def note(self, fingerprint: Fingerprint, learnt: Mapping[str, Scalar]) -> None:
        """Add to the notes of this fingerprint."""
        if self.mode == WRITABLE:
            try:
                self._context.fingerprints.remember(fingerprint)
                self._context.fingerprints.note(fingerprint.digest, learnt)
            except OSError as error:
                self._context.stop_writing(error)

    def keeper(self) -> Keeper:
        """The owner's side of this store: names, lists, plans, statistics, checks, export and import."""
        from llmcli.cache_store.keeper import Keeper

        return Keeper(self._context)

    def _neighbours(self, parent: Key, rest: bytes) -> list[Key] | None:
        from llmcli.cache_store.evict import neighbours

        with self._context.index.reading(build=False) as connection:
            if connection is not None:
                return [key for key, _ in neighbours(connection, parent, sortable(rest))]
        return None

    def _drop(self, path: str, key: Key, error: DamagedError) -> None:
        """Remove a file whose own bytes are wrong, so that it is computed and saved again."""
        if error.removable and self.mode == WRITABLE and remove(path):
            self._context.pending.damaged(key)
            self._context.pending.count("damaged_blocks")
            self._context.warn(f"a damaged block was removed from the prefix store ({error.message})", once_as="damage")

    def _why(
        self, fingerprint: Fingerprint, walk: Walk, found: Found, damaged: list[DamagedError]
    ) -> tuple[MissReason, str]:
        """Why too little of the prompt was found. Only asked on a miss: the time it takes is lost beside a prefill."""
        least = self._context.policy.min_tokens
        if damaged:
            return MissReason.DAMAGED, damaged[0].message
        if walk.expired_tokens >= least:
            return MissReason.EXPIRED, ""
        if gone := self._gone_reason(walk, found):
            return gone, ""
        known = self._context.fingerprints.all()
        other = stored_elsewhere(self._context.layout, known, fingerprint, self._context.salt, walk.prompt)
        if other:
            return other_reason(other, fingerprint)
        if not walk.reached_tokens:
            return MissReason.NOTHING_STORED, ""
        return MissReason.SHARES_TOO_LITTLE, shares_too_little(walk.reached_tokens, least, usable=found.tokens)

    def _gone_reason(self, walk: Walk, found: Found) -> MissReason | None:
        """Why what was stored of this prompt was removed, if it once was there."""
        if not self._context.layout.index.exists():
            return None
        from llmcli.cache_store.gone import glance, reason_of

        parents = [(walk.namespace.root, 0), *((ref.key, ref.end_tokens) for ref in found.blocks)]
        word = None
        is_ours, path = self.mode == WRITABLE, self._context.layout.index
        with self._context.index.reading(build=False) if is_ours else glance(path) as connection:
            if connection is not None:
                word = reason_of(
                    connection, walk.namespace, parents, walk.prompt, exact_only=walk.exact_only,
                    min_tokens=self._context.policy.min_tokens,
                )  # fmt: skip
        return next((reason for reason in MissReason if reason == word), None)


def _miss(reason: MissReason, detail: str = "") -> Match:
    return Match((), 0, 0, None, reason, detail)


def _as_match(found: Found, matched: int, reason: MissReason | None, detail: str) -> Match:
    blocks = (*found.blocks, found.partial) if found.partial else found.blocks
    return Match(blocks, matched, found.partial_tokens, found.difference, reason, detail, found.passed)
