"""Stored blocks into a session: as many as are legal, sound and worth it; a block that is not shortens the run.

Nothing here decides whether blocks may be trusted at all: that is `prefix_trust`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llmcli.base.records import dataclass
from llmcli.cache_store.block_format import DamagedError
from llmcli.cache_store.keys import Fingerprint
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.reasons import MissReason, shares_too_little
from llmcli.cache_store.store import Match, PrefixStore
from llmcli.engine.context import AbortedError
from llmcli.engine.engine import Engine
from llmcli.engine.kv_layout import STATE, Structure
from llmcli.engine.prefix_report import CacheOptions, CacheReport
from llmcli.engine.state_io import Block, RestoreFailedError, StateMover


@dataclass(frozen=True, slots=True)
class Restored:
    """What the session holds now.

    blocks     what it was restored from, none where nothing was
    is_sound   False where a block was found damaged on the way
    """

    blocks: tuple[BlockRef, ...]
    end_tokens: int
    is_sound: bool


class Restorer:
    """Looks up and restores for one session, under one fingerprint."""

    def __init__(
        self, engine: Engine, store: PrefixStore, fingerprint: Fingerprint, structure: Structure, options: CacheOptions
    ) -> None:
        self._engine, self._store, self._options = engine, store, options
        self._fingerprint, self._structure = fingerprint, structure

    def match(self, ids: Sequence[int]) -> Match:
        """The longest stored run of `ids` that can be restored in this mode."""
        exact, ending = self._options.mode != "max", None if self._structure.ends_anywhere else STATE
        return self._store.match(self._fingerprint, ids, exact_only=exact, ending_part=ending)

    def restore(self, ids: Sequence[int], match: Match, step: int, report: CacheReport) -> Restored:
        """Restore as much of `match` as is legal and sound, ended at a multiple of `step` tokens.

        `report` is told the reason where nothing is; the bytes read are added to it.
        """
        blocks, limit, is_sound = match.blocks, match.matched_tokens, True
        while blocks:
            blocks, end = self._legal(blocks, limit, step)
            if end < self._options.policy.min_tokens or not blocks:
                if is_sound:
                    least = max(self._options.policy.min_tokens, step)
                    report.miss(MissReason.SHARES_TOO_LITTLE, shares_too_little(limit, least, usable=end))
                break
            if not self._is_worth_it(blocks, end, report):
                break
            failed_at = self.attempt(ids, blocks, end, report)
            if failed_at is None:
                return Restored(blocks, end, is_sound)
            is_sound, blocks = False, blocks[:failed_at]
        return Restored((), 0, is_sound)

    def _legal(self, blocks: tuple[BlockRef, ...], limit: int, step: int) -> tuple[tuple[BlockRef, ...], int]:
        """The longest run that ends where all parts of the state can end, and that end."""
        if self._structure.ends_anywhere:
            end = min(blocks[-1].end_tokens, limit) // step * step
            return tuple(ref for ref in blocks if ref.start_tokens < end), end
        while blocks and not (
            STATE in blocks[-1].part_bytes and blocks[-1].end_tokens <= limit and blocks[-1].end_tokens % step == 0
        ):
            blocks = blocks[:-1]
        return blocks, blocks[-1].end_tokens if blocks else 0

    def _is_worth_it(self, blocks: Sequence[BlockRef], end: int, report: CacheReport) -> bool:
        nbytes = sum(
            ref.part_bytes.get(name, 0) for ref in blocks for name in self._structure.needed_parts(ref.end_tokens, end)
        )
        if self._store.rates(self._fingerprint).worth_restoring(end, nbytes):
            return True
        report.miss(MissReason.COSTS_MORE)
        return False

    def attempt(self, ids: Sequence[int], blocks: Sequence[BlockRef], end: int, report: CacheReport) -> int | None:
        """Restore exactly these; None where it worked, else the number of the first block not to be used again.

        The session holds the first `end` of `ids` then, or nothing. A block that cannot be used is removed.
        """
        current, session = 0, self._engine.session

        def read(number: int, ref: BlockRef, name: str) -> memoryview:
            nonlocal current
            current = number
            data = self._read(number, ref, name)
            report.read_bytes += data.nbytes
            return data

        chain = [
            Block(ref.start_tokens, ref.token_ids, functools.partial(read, number, ref))
            for number, ref in enumerate(blocks)
        ]
        session.forget()
        try:
            StateMover(self._engine.context, self._structure).restore(chain, end)
        except AbortedError:
            return 0
        except DamagedError as error:
            report.miss(MissReason.DAMAGED, error.message)
            return current
        except RestoreFailedError as error:
            # Where all blocks are as they should be and the whole is not, nobody knows which one lies: the first goes,
            # and with it all, or the next run would fail in the same way.
            failed = error.block or 0
            self._store.reject(blocks[failed], error.message)
            report.miss(MissReason.DAMAGED, error.message)
            return failed
        session.tokens.extend(ids[:end])
        return None

    def _read(self, number: int, ref: BlockRef, name: str) -> memoryview:
        """A verified part of the size it must have: a made-up block can be as large as a disk, and is not read."""
        if self._engine.stop.is_set():
            raise AbortedError("interrupted")
        found, expected = ref.part_bytes.get(name), self._structure.part_bytes(name, ref.n_tokens)
        if found != expected:
            raise RestoreFailedError(f"the {name} part has {found or 0} bytes, expected {expected}", block=number)
        return self._store.read(ref, name)
