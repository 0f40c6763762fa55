"""The prefix store's seat in the engine: restores what is stored of a prompt, saves what is new of it.

The only module that knows both sides: tokens and blocks there, sessions and KV states here. `run`, and everything
else that prefills, uses it in this order:

    with open_prefix_cache(engine, options, settings, notify) as prefix:
        prefix.restore(ids)             the session holds the first `session.tokens` of them now
        … prefill the rest, calling prefix.advance() after each piece and prefix.prefilled() at its end …
        … generate …
        prefix.finish(timings)          saving ends; the self-test, once per fingerprint

Never raises for what is stored or for the disk: whatever is odd is a miss, with its reason in the report.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llmcli.base.settings import Settings
from llmcli.cache_store.block_format import DamagedError
from llmcli.cache_store.cost import Rates
from llmcli.cache_store.keys import Fingerprint
from llmcli.cache_store.match import BlockRef, Difference
from llmcli.cache_store.reasons import MissReason
from llmcli.cache_store.store import Match, PrefixStore
from llmcli.engine.engine import Engine
from llmcli.engine.kv_description import UnknownLayoutError, from_json, to_json
from llmcli.engine.kv_layout import STATE, Structure
from llmcli.engine.prefix_identity import base_facts, fingerprint, probe_fingerprint
from llmcli.engine.prefix_report import MODEL_NAME_NOTE, MODEL_PATH_NOTE, CacheOptions, CacheReport, store_folder
from llmcli.engine.prefix_save import Saver, plan_spans
from llmcli.engine.session import GRID_TOKENS
from llmcli.engine.state_io import Block, RestoreFailedError, StateMover
from llmcli.engine.state_probe import confirm, probe

_FINISH_S = 60.0
# What the self-test tries, the finest first: restores may end at multiples of it. Noted as 0: none of them is exact
# here.
_GRIDS = (GRID_TOKENS, 256)
_GRID_NOTE = "exact_grid_tokens"
_STRUCTURE_NOTE = "structure"


class PrefixCache:
    """The store as seen by one session."""

    def __init__(self, engine: Engine, store: PrefixStore, options: CacheOptions, settings: Settings) -> None:
        self._engine, self._store, self._options = engine, store, options
        self._session = engine.session
        self._facts = base_facts(
            content_id=engine.inspected.content_id,
            build=engine.build.digest,
            model=engine.model,
            plan=engine.plan,
            rope=engine.rope,
            loras=engine.loras,
            settings=settings,
        )
        self._structure = self._known_structure()
        self._fingerprint = fingerprint(self._facts, self._structure)
        self._grid = self._known_grid()
        self._saver: Saver | None = None
        self._states: tuple[int, ...] = ()
        self._cold_logits: bytes | None = None
        self._ids: Sequence[int] = ()
        self._refs: tuple[BlockRef, ...] = ()
        self.report = CacheReport(options.mode)

    def _known_structure(self) -> Structure:
        """The noted structure if llama.cpp still takes it, else a fresh one. Raises UnknownLayoutError."""
        under = probe_fingerprint(self._facts)
        noted = self._store.notes(under).get(_STRUCTURE_NOTE)
        if isinstance(noted, str):
            with contextlib.suppress(UnknownLayoutError):
                known = from_json(noted)
                if confirm(self._engine.context, known):
                    return known
        found = probe(self._engine.context)
        if self._may_write:
            self._store.note(under, {_STRUCTURE_NOTE: to_json(found)})
        return found

    def _known_grid(self) -> int | None:
        """The grid on which restores were proved exact; 0: on none; None: not tested yet."""
        noted = self._store.notes(self._fingerprint).get(_GRID_NOTE)
        return noted if isinstance(noted, int) and noted in (0, *_GRIDS) else None

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
        return self._fingerprint

    @property
    def structure(self) -> Structure:
        """What the parts of a block look like."""
        return self._structure

    @property
    def grid_tokens(self) -> int | None:
        """Restores that end at multiples of it are exact; 0: none is; None: not tested yet."""
        return self._grid

    @property
    def wants_boundaries(self) -> bool:
        """Whether `restore` has use for boundaries: recurrent states are kept at them, rows are cut anywhere."""
        return not self._structure.ends_anywhere

    @property
    def cuts(self) -> tuple[int, ...]:
        """Positions at which the prefill must stop because a recurrent state is to be kept there."""
        return self._states

    # Restoring

    def restore(self, ids: Sequence[int], boundaries: Sequence[int] = ()) -> None:
        """Put the longest stored and trusted prefix of `ids` into the empty session, and get ready to save the rest.

        boundaries   positions behind which prompts are likely to differ (end of the system prompt, of a file)
        """
        begun = time.perf_counter()
        self._ids = ids
        self._states = self._state_positions(boundaries)
        match = self._match(ids[:-1])
        self._note_miss(match)
        if match.blocks and self._trusted() and not self._load(match.blocks, match.matched_tokens, begun):
            match = self._match(ids[:-1])  # what is damaged is gone now, and is to be saved again
        self._prepare_saving(match)

    def _match(self, ids: Sequence[int]) -> Match:
        exact, ending = self._options.mode != "max", None if self._structure.ends_anywhere else STATE
        return self._store.match(self._fingerprint, ids, exact_only=exact, ending_part=ending)

    def _trusted(self) -> bool:
        if self._grid is None:
            self._miss(MissReason.NOTHING_STORED, "what is stored has not been tested yet")
        elif self._grid == 0 and self._options.mode != "max":
            self._miss(MissReason.OFF, "restoring is not exact on this machine; --cache max allows it")
        else:
            return True
        return False

    def _load(self, blocks: tuple[BlockRef, ...], limit: int, begun: float) -> bool:
        """Restore as much of `blocks` as is legal and sound, `limit` tokens at most; a damaged block shortens it.

        False where one was damaged.
        """
        sound = True
        while blocks:
            blocks, end = self._legal(blocks, limit)
            if not blocks or not self._is_worth_it(blocks, end):
                break
            failed_at = self._try(blocks, end)
            if failed_at is None:
                self._account(blocks, end, time.perf_counter() - begun)
                break
            sound, blocks = False, blocks[:failed_at]
        return sound

    def _legal(self, blocks: tuple[BlockRef, ...], limit: int) -> tuple[tuple[BlockRef, ...], int]:
        """The longest run that ends where all parts of the state can end, and that end."""
        step = 1 if self._options.mode == "max" else self._grid or 1
        if self._structure.ends_anywhere:
            end = min(blocks[-1].end_tokens, limit) // step * step
            return tuple(ref for ref in blocks if ref.start_tokens < end), end
        while blocks and not (
            STATE in blocks[-1].part_bytes and blocks[-1].end_tokens <= limit and blocks[-1].end_tokens % step == 0
        ):
            blocks = blocks[:-1]
        return blocks, blocks[-1].end_tokens if blocks else 0

    def _is_worth_it(self, blocks: Sequence[BlockRef], end: int) -> bool:
        if end < self._options.policy.min_tokens:
            self._miss(MissReason.TOO_SHORT, f"{end} tokens")
            return False
        nbytes = sum(
            ref.part_bytes[name]
            for ref in blocks
            for name in self._structure.needed_parts(ref.end_tokens, end)
            if name in ref.part_bytes
        )
        if self._store.rates(self._fingerprint).worth_restoring(end, nbytes):
            return True
        self._miss(MissReason.COSTS_MORE)
        return False

    def _try(self, blocks: Sequence[BlockRef], end: int) -> int | None:
        """Restore; None where it worked, else the number of the first block not to be used again."""
        current = 0

        def reader(number: int, ref: BlockRef) -> Callable[[str], memoryview]:
            def read(name: str) -> memoryview:
                nonlocal current
                current = number
                data = self._store.read(ref, name)
                self.report.read_bytes += data.nbytes
                return data

            return read

        mover = StateMover(self._engine.context, self._structure)
        chain = [Block(ref.start_tokens, ref.token_ids, reader(i, ref)) for i, ref in enumerate(blocks)]
        self._session.tokens.clear()
        try:
            mover.restore(chain, end)
        except DamagedError as error:
            self._miss(MissReason.DAMAGED, error.message)
            return current
        except RestoreFailedError as error:
            failed = blocks[error.block or 0]
            self._store.reject(failed, error.message)
            self._miss(MissReason.DAMAGED, error.message)
            return error.block or 0
        self._session.tokens.extend(self._ids[:end])
        return None

    def _account(self, blocks: Sequence[BlockRef], end: int, taken_s: float) -> None:
        self._refs = tuple(blocks)
        report = self.report
        report.source, report.restored_tokens, report.restore_s = "disk", end, taken_s
        report.miss_reason, report.miss_detail = None, ""

    def _note_miss(self, match: Match) -> None:
        if match.miss_reason is not None:
            self._miss(match.miss_reason, match.miss_detail)
        if match.difference is not None:
            self.report.first_difference = self._readable(match.difference)

    def _miss(self, reason: MissReason, detail: str = "") -> None:
        self.report.miss_reason, self.report.miss_detail = str(reason), detail

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
        if self._structure.ends_anywhere:
            return ()
        grid = self._grid or GRID_TOKENS
        ends = {position // grid * grid for position in (*boundaries, len(self._ids) - 1)}
        return tuple(sorted(end for end in ends if end >= self._options.policy.min_tokens))

    def _prepare_saving(self, match: Match) -> None:
        if not self._may_write or len(self._ids) < self._options.policy.min_tokens:
            return
        whole = match.whole_blocks
        start = whole[-1].end_tokens if whole else 0
        exact_end = len(self._ids) // GRID_TOKENS * GRID_TOKENS
        end = len(self._ids) if self._options.mode == "max" else exact_end
        if not self._structure.ends_anywhere:
            end = max(self._states, default=0)
        if end > start:
            spans = plan_spans(start, end, self._states, exact_end=exact_end)
            parent = whole[-1] if whole else None
            self._saver = Saver(
                self._store, self._fingerprint, self._structure, self._session, self._ids, spans, parent
            )

    def advance(self, _done: int = 0, _total: int = 0) -> None:
        """Take out the blocks that are complete now; called after every piece of a prefill, as its on_progress."""
        if self._saver:
            self._saver.pump()

    def prefilled(self) -> None:
        """The prompt is computed: keep its logits where the fingerprint has not been tested yet."""
        if self._grid is None and self._may_write and len(self._ids) > GRID_TOKENS:
            self._cold_logits = bytes(self._engine.context.logits())

    def saved(self) -> tuple[BlockRef, ...]:
        """Wait until what is new of the prompt is on disk; the exact blocks that lie wholly inside it."""
        if self._saver:
            self._saver.finish(_FINISH_S)
        end = len(self._ids) // GRID_TOKENS * GRID_TOKENS if self._structure.ends_anywhere else len(self._ids)
        ending = None if self._structure.ends_anywhere else STATE
        return self._store.match(self._fingerprint, self._ids[:end], ending_part=ending).whole_blocks

    def finish(self, prefill_tok_s: float | None, prefill_tokens: int) -> None:
        """End saving, record what was won, and test the fingerprint if it is new. Empties the session in that case."""
        report, known = self.report, self._store.rates(self._fingerprint)
        # A few tokens behind a restored prefix tell little of the rate of a long prefill.
        measured = prefill_tok_s if prefill_tokens >= GRID_TOKENS else None
        rate = measured or known.prefill_tok_s or prefill_tok_s
        if report.restored_tokens and rate:
            report.saved_s = report.restored_tokens / rate - report.restore_s
        done, saver = True, self._saver
        if saver:
            done, report.written_bytes = saver.finish(_FINISH_S), saver.written_bytes
        if done and self._cold_logits is not None and not self._engine.stop.is_set():
            self._self_test(self._cold_logits)
        if self._may_write:
            self._record(
                Rates(
                    prefill_tok_s=measured,
                    restore_bytes_s=report.read_bytes / report.restore_s if report.restored_tokens else None,
                    save_bytes_s=saver.written_bytes / saver.writing_s if saver and saver.written_bytes else None,
                )
            )

    def _record(self, measured: Rates) -> None:
        report = self.report
        self._store.used(
            self._refs,
            hit_tokens=report.restored_tokens,
            miss_tokens=len(self._ids) - report.restored_tokens,
            saved_s=max(report.saved_s or 0.0, 0.0),
            read_bytes=report.read_bytes,
        )
        self._store.learn_rates(self._fingerprint, measured)
        found = self._engine.resolved
        self._store.note(
            self._fingerprint, {MODEL_NAME_NOTE: found.name, MODEL_PATH_NOTE: str(found.path.absolute())}
        )

    def _self_test(self, cold: bytes) -> None:
        """Restore what was just saved, compute the rest, compare with the cold logits: the grid is trusted if equal."""
        report, self.report = self.report, CacheReport("test")
        try:
            for grid in _GRIDS:
                end = (len(self._ids) - 1) // grid * grid
                if (outcome := self._is_exact(end, cold)) is None:
                    return
                if outcome:
                    self._store.note(self._fingerprint, {_GRID_NOTE: grid})
                    return
            self._store.note(self._fingerprint, {_GRID_NOTE: 0})
        finally:
            self.report = report

    def _is_exact(self, end: int, cold: bytes) -> bool | None:
        """Whether a restore that ends at `end` leads to the cold logits; None where that cannot be told."""
        match = self._match(self._ids[:end])
        if match.matched_tokens < end or end <= 0 or self._try(match.blocks, end) is not None:
            return None
        self._session.prefill(self._ids[end:])
        return bytes(self._engine.context.logits()) == cold


@contextlib.contextmanager
def open_prefix_cache(
    engine: Engine, options: CacheOptions, settings: Settings, notify: Callable[[str], None]
) -> Iterator[PrefixCache | None]:
    """The store for this engine's session; None where it is off, or where this model's memory cannot be stored."""
    if options.mode == "off":
        yield None
        return
    folder = store_folder(options, settings)
    readonly = options.mode == "readonly"
    with PrefixStore.open(folder, options.policy, salt=options.salt, readonly=readonly, notify=notify) as store:
        try:
            cache = PrefixCache(engine, store, options, settings)
        except UnknownLayoutError as error:
            notify(f"the prefix store is off for this model: {error.message}")
            cache = None
        yield cache
