"""Whether what is stored may be used at all: what the states look like, and on which grid a restore is exact.

Both are found out on this machine with this model, once, and noted under the fingerprint. The self-test restores what
was saved, computes the rest of the prompt, and holds the logits against those of the run that computed everything. The
restore ends where that run made no cut, so that the test also tells whether a cut at a multiple of 64 changes bits
here. It costs 65 to 192 computed tokens, after the answer; where a run ended before its test (Ctrl-C in a long
prefill), the next one makes up for it before it restores, at the price of the first 256 tokens computed twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.cache_store.keys import BLOCK_TOKENS, GRID_TOKENS, Fingerprint, Scalar
from llmcli.cache_store.reasons import MissReason
from llmcli.cache_store.store import Match, PrefixStore
from llmcli.engine.engine import Engine
from llmcli.engine.kv_description import UnknownLayoutError, from_json, to_json
from llmcli.engine.kv_layout import Structure
from llmcli.engine.prefix_identity import base_facts, fingerprint, probe_fingerprint
from llmcli.engine.prefix_report import CacheReport
from llmcli.engine.prefix_restore import Restorer
from llmcli.engine.state_probe import confirm, probe

# What the self-test tries, the finest first: restores may end at multiples of it. Noted as 0: none of them is exact
# here.
_GRIDS = (GRID_TOKENS, BLOCK_TOKENS)
_GRID_NOTE = "exact_grid_tokens"
_STRUCTURE_NOTE = "structure"
# From here on a test before the restore (256 tokens, and 128 again) costs less than what it wins.
_WORTH_TESTING_TOKENS = 2 * BLOCK_TOKENS


class Trust:
    """What is known about the states of one open engine.

    structure     what the parts of a block look like
    fingerprint   what blocks are stored under
    grid_tokens   restores that end at multiples of it are exact; 0: none is; None: not tested yet
    """

    def __init__(self, engine: Engine, store: PrefixStore, settings: Settings) -> None:
        """Raises UnknownLayoutError where the states of this model cannot be stored."""
        self._engine, self._store = engine, store
        facts = base_facts(
            content_id=engine.inspected.content_id,
            build=engine.build.digest,
            model=engine.model,
            plan=engine.plan,
            rope=engine.rope,
            loras=engine.loras,
            settings=settings,
        )
        self._unsaved: list[tuple[Fingerprint, dict[str, Scalar]]] = []
        self.structure = self._known_structure(probe_fingerprint(facts))
        self.fingerprint = fingerprint(facts, self.structure)
        noted = store.notes(self.fingerprint).get(_GRID_NOTE)
        self.grid_tokens = noted if type(noted) is int and noted in (0, *_GRIDS) else None

    def _known_structure(self, under: Fingerprint) -> Structure:
        """The noted structure if llama.cpp still takes it, else a fresh one."""
        noted = self._store.notes(under).get(_STRUCTURE_NOTE)
        if isinstance(noted, str):
            with contextlib.suppress(UnknownLayoutError):
                known = from_json(noted)
                if confirm(self._engine.context, known):
                    return known
        found = probe(self._engine.context)
        self._unsaved.append((under, {_STRUCTURE_NOTE: to_json(found)}))
        return found

    def write_down(self) -> None:
        """Note what was learnt. Not done at once: a slow disk must not delay the first token."""
        while self._unsaved:
            self._store.note(*self._unsaved.pop())

    def allows_restoring(self, *, inexact: bool, report: CacheReport) -> bool:
        """Whether blocks may be restored; `report` is told why not. `inexact`: the user gave exactness up."""
        if self.grid_tokens is None:
            report.miss(MissReason.NOT_TESTED, "a run with these settings has to show first that a restore is exact")
        elif self.grid_tokens == 0 and not inexact:
            report.miss(MissReason.OFF, "restoring is not exact on this machine; --cache max allows it")
        else:
            return True
        return False

    def test_first(self, restorer: Restorer, ids: Sequence[int], match: Match) -> None:
        """Make up for a test that never was, where `match` is worth it. Leaves the session empty.

        Not with recurrent memory: its states lie where they lie, and all before them would have to be computed.
        """
        if self.structure.ends_anywhere and match.matched_tokens >= _WORTH_TESTING_TOKENS:
            self.test(restorer, ids[:BLOCK_TOKENS], None)
            self._engine.session.forget()

    def test(self, restorer: Restorer, ids: Sequence[int], cold: bytes | None) -> None:
        """The self-test, on `ids`, of which all that is whole is stored. Leaves anything in the session.

        cold   the logits behind `ids` as a run without the store computed them; None: computed here
        Stays untested where a restore fails, and where Ctrl-C ends it.
        """
        if self.structure.ends_anywhere and len(ids) <= 2 * GRID_TOKENS:  # too short for a cut of its own
            ids, cold = (list(ids[:GRID_TOKENS]) * 3)[: 2 * GRID_TOKENS + 1], None
        with contextlib.suppress(LlmcliError):
            if cold is None:
                self._engine.session.forget()
                cold = self._logits(ids)
            for grid in self._grids():
                if (is_exact := self._is_exact(restorer, ids, self._test_end(len(ids), grid), cold)) is None:
                    return
                if is_exact:
                    break
            self.grid_tokens = grid if is_exact else 0
            self._unsaved.append((self.fingerprint, {_GRID_NOTE: self.grid_tokens}))

    def _grids(self) -> tuple[int, ...]:
        """The coarse grid is good only where a cold run cuts at every multiple of it, too."""
        return _GRIDS if BLOCK_TOKENS % self._engine.plan.n_ubatch == 0 else (GRID_TOKENS,)

    def _test_end(self, n_tokens: int, grid: int) -> int:
        """Where the restore of a test ends: where a cold run makes no cut, as far as that can be had.

        A cold run cuts at multiples of 256 and at the last one of 64. Recurrent memory can only end where a state is
        kept, and that is a cut.
        """
        last = (n_tokens - 1) // GRID_TOKENS * GRID_TOKENS
        if grid != GRID_TOKENS or not self.structure.ends_anywhere:
            return last // grid * grid
        return last - GRID_TOKENS if (last - GRID_TOKENS) % BLOCK_TOKENS else last - 2 * GRID_TOKENS

    def _is_exact(self, restorer: Restorer, ids: Sequence[int], end: int, cold: bytes) -> bool | None:
        """Whether a restore that ends at `end` leads to the cold logits; None where that cannot be told."""
        match = restorer.match(ids[:-1])
        blocks = [ref for ref in match.blocks if ref.start_tokens < end]
        if not blocks or match.matched_tokens < end:
            return None
        if restorer.attempt(ids, blocks, end, CacheReport("test")) is not None:
            return None
        return self._logits(ids[end:]) == cold

    def _logits(self, ids: Sequence[int]) -> bytes:
        self._engine.session.prefill(ids)
        return bytes(self._engine.context.logits())
