"""The prefix store's seat in the engine: restores what is stored of a prompt, saves what is new of it.

The only place that knows both sides: tokens and blocks there, sessions and KV states here. `run`, and everything
else that prefills, uses it in this order:

    with open_prefix_cache(engine, options, settings, notify) as prefix:
        prefix.restore(ids)             the session holds the first `session.tokens` of them now
        … prefill the rest, calling prefix.advance() after each piece and prefix.prefilled() at its end …
        … generate …
        prefix.finish(timings)          saving ends; the self-test, once per fingerprint

Never raises for what is stored or for the disk: whatever is odd is a miss, with its reason in the report. Nothing is
written to the disk by the thread that computes before `finish`.

    prefix_trust     what states look like here, and whether a restore is exact
    prefix_restore   blocks into the session
    prefix_save      blocks out of it, and the writer thread
    prefix_report    options and account
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cache_store.cost import Rates
from llmcli.cache_store.keys import GRID_TOKENS, Fingerprint
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.parting import Difference
from llmcli.cache_store.reasons import MissReason, too_short
from llmcli.cache_store.store import Match, PrefixStore
from llmcli.engine.context import AbortedError
from llmcli.engine.engine import Engine
from llmcli.engine.kv_layout import STATE, Structure
from llmcli.engine.prefix_report import MODEL_NAME_NOTE, MODEL_PATH_NOTE, CacheOptions, CacheReport, store_folder
from llmcli.engine.prefix_restore import Restorer
from llmcli.engine.prefix_save import Saver, plan_spans
from llmcli.engine.prefix_trust import Trust


class PrefixCache:
    """The store as seen by one session."""

    def __init__(
        self,
        engine: Engine,
        store: PrefixStore,
        options: CacheOptions,
        settings: Settings,
        notify: Callable[[str], None],
    ) -> None:
        """Raises UnknownLayoutError where the states of this model cannot be stored."""
        self._engine, self._store, self._options, self._notify = engine, store, options, notify
        self._session = engine.session
        self._trust = Trust(engine, store, settings)
        self._restorer = Restorer(engine, store, self.fingerprint, self.structure, options)
        self._saver: Saver | None = None
        self._states: tuple[int, ...] = ()
        self._cold_logits: bytes | None = None
        self._ids: Sequence[int] = ()
        self._refs: tuple[BlockRef, ...] = ()
        self._passed: tuple[BlockRef, ...] = ()  # stored blocks that the prompt goes through, restored or not
        self._held_tokens = 0  # what the session held before, computed or restored for an earlier prompt
        self.report = CacheReport(options.mode)

    @property
    def _may_write(self) -> bool:
        return self._options.mode != "readonly" and self._store.mode == "writable"

    @property
    def store(self) -> PrefixStore:
        """The store behind it."""
        return self._store

    @property
    def fingerprint(self) -> Fingerprint:
        """What the blocks of this session are stored under."""
        return self._trust.fingerprint

    @property
    def structure(self) -> Structure:
        """What the parts of a block look like."""
        return self._trust.structure

    @property
    def grid_tokens(self) -> int | None:
        """Restores that end at multiples of it are exact; 0: none is; None: not tested yet."""
        return self._trust.grid_tokens

    @property
    def wants_boundaries(self) -> bool:
        """Whether `restore` has use for boundaries: recurrent states are kept at them, rows are cut anywhere."""
        return not self.structure.ends_anywhere

    @property
    def cuts(self) -> tuple[int, ...]:
        """Positions at which the prefill must stop because a recurrent state is to be kept there."""
        return self._states

    # Restoring

    def restore(self, ids: Sequence[int], boundaries: Sequence[int] = ()) -> None:
        """Put the longest stored and trusted prefix of `ids` into the empty session, and get ready to save the rest.

        boundaries   positions behind which prompts are likely to differ (end of the system prompt, of a file)
        """
        self._ids = ids
        match = self._restorer.match(ids[:-1])
        self._note_miss(match)
        if match.blocks and self.grid_tokens is None:
            self._trust.test_first(self._restorer, ids, match)
            match = self._restorer.match(ids[:-1])  # a damaged block may have gone
        self._states = self._state_positions(boundaries)
        is_enough = match.miss_reason is None
        if is_enough and self._trust.allows_restoring(inexact=self._options.mode == "max", report=self.report):
            begun = time.perf_counter()
            step = 1 if self._options.mode == "max" else self.grid_tokens or 1
            found = self._restorer.restore(ids, match, step, self.report)
            if found.blocks:
                self._refs, self._passed = found.blocks, (*match.whole_blocks, *match.passed)
                self.report.hit(found.end_tokens, time.perf_counter() - begun)
            if not found.is_sound:
                match = self._restorer.match(ids[:-1])  # what is damaged is gone now, and is to be saved again
        self._prepare_saving(match)

    def _note_miss(self, match: Match) -> None:
        if match.miss_reason == MissReason.TOO_SHORT:  # the look-up was for all tokens but the last
            self.report.miss(MissReason.TOO_SHORT, too_short(len(self._ids), self._options.policy.min_tokens))
        elif match.miss_reason is not None:
            self.report.miss(match.miss_reason, match.miss_detail)
        if match.difference is not None:
            self.report.first_difference = self._readable(match.difference)

    def _readable(self, difference: Difference) -> dict[str, Any]:
        tokenizer = self._engine.model.tokenizer

        def text(ids: Sequence[int]) -> str:
            known = (token for token in ids if 0 <= token < tokenizer.n_vocab)
            return b"".join(tokenizer.piece(token, special=True) for token in known).decode("utf-8", "replace")

        return {
            "position_tokens": difference.position_tokens,
            "stored": text(difference.stored),
            "prompt": text(difference.prompt),
        }

    # Saving

    def _state_positions(self, boundaries: Sequence[int]) -> tuple[int, ...]:
        """Where a recurrent state is kept: at the last grid point before each boundary and before the prompt's end."""
        if self.structure.ends_anywhere:
            return ()
        grid = self.grid_tokens or GRID_TOKENS
        ends = {position // grid * grid for position in (*boundaries, len(self._ids) - 1)}
        return tuple(sorted(end for end in ends if end >= self._options.policy.min_tokens))

    def _prepare_saving(self, match: Match) -> None:
        if not self._may_write or len(self._ids) < self._options.policy.min_tokens:
            return
        whole = match.whole_blocks
        start = whole[-1].end_tokens if whole else 0
        end = len(self._ids) if self._options.mode == "max" else len(self._ids) // GRID_TOKENS * GRID_TOKENS
        if not self.structure.ends_anywhere:
            end = max(self._states, default=0)
        if end > start:
            exact_end, parting = self._exact_end(start), self._parting(match)
            spans = plan_spans(start, end, self._states, exact_end=exact_end, parting=parting)
            parent = whole[-1] if whole else None
            self._saver = Saver(self._store, self.fingerprint, self.structure, self._session, self._ids, spans, parent)

    def _parting(self, match: Match) -> int:
        """Where the prompt leaves a stored block in its middle, on the grid; 0 where it does not."""
        leaves = match.partial_last_tokens and match.matched_tokens < len(self._ids) - 1
        return match.matched_tokens // GRID_TOKENS * GRID_TOKENS if leaves else 0

    def _exact_end(self, start: int) -> int:
        """Up to where a cold run has the bits of this one, in what is saved from `start` on.

        Nowhere, if it goes on off the grid or behind tokens that were decoded one by one (`--cache max`). The last cut
        before the prompt's end counts as another cold run's only where cuts at multiples of 64 were proved exact.
        """
        if self.report.restored_tokens % (self.grid_tokens or GRID_TOKENS) or not all(ref.exact for ref in self._refs):
            return start
        count = len(self._ids) if self.grid_tokens == GRID_TOKENS else len(self._ids) - 1
        return count // GRID_TOKENS * GRID_TOKENS

    def advance(self, _done: int = 0, _total: int = 0) -> None:
        """Take out the blocks that are complete now; called after every piece of a prefill, as its on_progress."""
        if self._saver:
            self._saver.pump()

    def prefilled(self) -> None:
        """The prompt is computed: keep its logits where the fingerprint has not been tested yet."""
        if self.grid_tokens is None and self._may_write and len(self._ids) > GRID_TOKENS:
            self._cold_logits = bytes(self._engine.context.logits())

    def saved(self) -> tuple[BlockRef, ...]:
        """Wait until what is new of the prompt is on disk; the exact blocks that lie wholly inside it."""
        if self._saver:
            self._saver.finish()
        end = len(self._ids) // GRID_TOKENS * GRID_TOKENS if self.structure.ends_anywhere else len(self._ids)
        ending = None if self.structure.ends_anywhere else STATE
        return self._store.match(self.fingerprint, self._ids[:end], ending_part=ending).whole_blocks

    def finish(self, prefill_tok_s: float | None, prefill_tokens: int) -> None:
        """End saving, record what was won, and test the fingerprint if it is new. Empties the session in that case."""
        report, saver, known = self.report, self._saver, self._store.rates(self.fingerprint)
        # A few tokens behind a restored prefix tell little of the rate of a long prefill.
        measured = prefill_tok_s if prefill_tokens >= GRID_TOKENS else None
        rate = measured or known.prefill_tok_s or prefill_tok_s
        if report.restored_tokens and rate:
            report.saved_s = report.restored_tokens / rate - report.restore_s
        is_done = True
        if saver:
            self._end(is_done=(is_done := saver.finish()))
            report.written_bytes = saver.written_bytes
        if not is_done or not self._may_write:
            return
        if self._cold_logits is not None and not self._engine.stop.is_set():
            self._trust.test(self._restorer, self._ids, self._cold_logits)
        self._record(
            Rates(
                prefill_tok_s=measured,
                restore_bytes_s=self._restore_rate(known),
                save_bytes_s=saver.written_bytes / saver.writing_s if saver and saver.written_bytes else None,
            )
        )

    def close(self) -> None:
        """End what `finish` did not get to end: after an error, what is taken out already is still written."""
        if self._saver:
            self._end(is_done=self._saver.leave())

    def _end(self, *, is_done: bool) -> None:
        if not is_done:
            self._store.abandon()
        if self._saver and self._saver.bug:
            error, self._saver.bug = self._saver.bug, None
            self._notify(
                f"the prefix was not saved, an internal error, please report it: {type(error).__name__}: "
                + printable(str(error))
            )

    def _restore_rate(self, known: Rates) -> float | None:
        """Bytes per second of this restore. One that was passed over counts as faster than known: what is never tried
        is never measured again, and one slow day would switch the store off for good.
        """
        report = self.report
        if report.restored_tokens:
            return report.read_bytes / report.restore_s
        if report.miss_reason == MissReason.COSTS_MORE and known.restore_bytes_s:
            return 2 * known.restore_bytes_s
        return None

    def _record(self, measured: Rates) -> None:
        report = self.report
        known = {ref.key for ref in self._refs}
        self._store.used(
            (*self._refs, *(ref for ref in self._passed if ref.key not in known)),
            hit_tokens=report.restored_tokens,
            miss_tokens=len(self._ids) - report.restored_tokens - self._held_tokens,
            saved_s=max(report.saved_s or 0.0, 0.0),
            read_bytes=report.read_bytes,
        )
        self._trust.write_down()
        self._store.learn_rates(self.fingerprint, measured)
        found = self._engine.resolved
        self._store.note(self.fingerprint, {MODEL_NAME_NOTE: found.name, MODEL_PATH_NOTE: str(found.path.absolute())})


_Cache = TypeVar("_Cache", bound=PrefixCache)


@contextlib.contextmanager
def open_prefix_cache(
    engine: Engine,
    options: CacheOptions,
    settings: Settings,
    notify: Callable[[str], None],
    kind: type[_Cache] = PrefixCache,  # type: ignore[assignment]  # the default of the type, too
) -> Iterator[_Cache | None]:
    """The store for this engine's session; None where it is off, or where this model's memory cannot be stored."""
    if options.mode == "off":
        yield None
        return
    folder = store_folder(options, settings)
    readonly = options.mode == "readonly"
    with PrefixStore.open(folder, options.policy, salt=options.salt, readonly=readonly, notify=notify) as store:
        try:
            cache = kind(engine, store, options, settings, notify)
        except AbortedError:  # Ctrl-C: what comes next will notice, too
            cache = None
        except LlmcliError as error:
            notify(f"the prefix store is off for this model: {error.message}")
            cache = None
        try:
            yield cache
        finally:
            if cache:
                cache.close()
