"""Working on stored prefixes with a model at hand: fill, name, load, compute again. What `llmcli cache` needs of it.

One model is opened for any number of prefixes. Saving goes the way of every answer (engine.prefix), so what is stored
here is what a run would have stored, and finds. A named prefix gets one block more: its last tokens, which end off the
grid, and the recipe of the whole.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from llmcli.base.errors import (
    ContextOverflowError,
    LlmcliError,
    ModelError,
    ResourceError,
    UsageError,
    UserInterruptError,
)
from llmcli.base.settings import Settings
from llmcli.base.units import format_count
from llmcli.cache_store.keys import BLOCK_TOKENS, GRID_TOKENS, Fingerprint
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.reasons import other_reason
from llmcli.cache_store.save import Stored
from llmcli.engine.answer import choose_template
from llmcli.engine.context import AbortedError, Rope
from llmcli.engine.engine import Engine, Reporter, open_engine
from llmcli.engine.interrupt import StopFlag, stop_on_interrupt
from llmcli.engine.kv_layout import STATE
from llmcli.engine.lora import Lora
from llmcli.engine.plan import Request
from llmcli.engine.prefix import PrefixCache, open_prefix_cache
from llmcli.engine.prefix_recipe import RECIPE_PART, Recipe, StablePrefix, stable_prefix, text_of
from llmcli.engine.prefix_report import CacheOptions, CacheReport
from llmcli.engine.prompt import BuiltPrompt, PromptRequest, fit_prompt
from llmcli.engine.state_io import Block, ExportFailedError, RestoreFailedError, StateMover

# Computed behind a stored chain to compare logits: what a run computes at most behind what it restores.
MORE_TOKENS = GRID_TOKENS


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """Which model, opened how, and where the store is."""

    reference: str | None
    plan: Request
    cache: CacheOptions
    rope: Rope = field(default_factory=Rope)
    loras: tuple[Lora, ...] = ()


@dataclass(frozen=True, slots=True)
class Filled:
    """A prefix that is stored now.

    stored_tokens   what a run in the mode `auto` can restore of it
    """

    tokens: int
    stored_tokens: int
    report: CacheReport
    prefill_s: float

    @property
    def computed_tokens(self) -> int:
        """What had to be computed."""
        return self.tokens - self.report.restored_tokens


@dataclass(frozen=True, slots=True)
class Loaded:
    """A chain that was restored whole."""

    tokens: int
    read_bytes: int
    restore_s: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A stored chain against the same tokens computed again.

    tokens                     how many were compared: the exact ones
    largest_logit_difference   after some tokens more were computed behind both; 0: the same bits
    trouble                    why the chain could not be loaded, None where it could
    """

    tokens: int
    largest_logit_difference: float | None
    trouble: str | None = None

    @property
    def is_equal(self) -> bool:
        """Whether what is stored is what this machine computes."""
        return self.trouble is None and self.largest_logit_difference == 0


class Bench:
    """An open model with the store of its prefixes; get one from `open_bench`."""

    def __init__(self, engine: Engine, options: CacheOptions, settings: Settings, reporter: Reporter) -> None:
        self._engine, self._options, self._settings, self._reporter = engine, options, settings, reporter

    def fill(self, recipe: Recipe) -> Filled:
        """Compute and store what every prompt with this beginning shares.

        Raises UsageError where it is too short to be stored, ContextOverflowError, UserInterruptError, ResourceError
        where the store has no room for it.
        """
        filled = self._fill(recipe, keep_whole=False)[0]
        if filled.stored_tokens < min(self._options.policy.min_tokens, filled.tokens):
            raise _not_kept(f"{filled.stored_tokens:,} of its {filled.tokens:,} tokens were kept")
        return filled

    def save(self, recipe: Recipe) -> tuple[Filled, BlockRef]:
        """The same to the last token, and the recipe with it: also the block that a name can be given to.

        Raises ResourceError too, where the store cannot keep it.
        """
        filled, end = self._fill(recipe, keep_whole=True)
        if end is None:
            raise _not_kept("the store is not written to")
        return filled, end

    def _fill(self, recipe: Recipe, *, keep_whole: bool) -> tuple[Filled, BlockRef | None]:
        stable = self._stable(recipe)
        for note in stable.notes:
            self._reporter.notify(note)
        least = self._options.policy.min_tokens
        if len(stable.ids) < least:
            raise UsageError(
                f"this prefix has {format_count(len(stable.ids), 'token')}, and the store keeps from {least} on",
                hint=f"--cache-min-tokens {max(1, len(stable.ids))}",
            )
        self._forget()
        with self._cache() as prefix:
            prefix.restore(stable.ids, stable.boundaries if prefix.wants_boundaries else ())
            computed, prefill_s = self._prefill(prefix, stable.ids)
            blocks, end = prefix.saved(), Stored(None)
            if keep_whole:
                end = _keep_end(prefix, self._engine, blocks, stable.ids, replace(recipe, text=stable.text))
            prefix.finish(computed / prefill_s if prefill_s else None, computed)
            prefix.report.written_bytes += end.written_bytes
        stored_tokens = blocks[-1].end_tokens if blocks else 0
        return Filled(len(stable.ids), stored_tokens, prefix.report, prefill_s), end.ref

    def load(self, chain: Sequence[BlockRef]) -> Loaded:
        """Restore a chain whole, its inexact end too. Raises LlmcliError where it cannot be."""
        tokens, n_ctx = chain[-1].end_tokens, self._engine.context.n_ctx
        if tokens > n_ctx:
            raise ContextOverflowError(
                f"the prefix has {tokens:,} tokens and the context {n_ctx:,}", hint=f"-c {tokens}"
            )
        begun = time.perf_counter()
        with self._cache() as prefix:
            read = _restore(prefix, self._engine, chain, tokens)
        return Loaded(tokens, read, time.perf_counter() - begun)

    def compare(self, chain: Sequence[BlockRef]) -> Compared | None:
        """Restore the exact part of a chain and compute some tokens behind it; then compute everything, and compare.

        None where nothing in it can be compared: the end of no block is exact, or restoring is exact nowhere here.
        """
        session = self._engine.session
        with self._cache() as prefix, _interruptible(self._engine.stop):
            grid = prefix.grid_tokens or GRID_TOKENS
            exact = [ref for ref in chain if ref.exact and ref.end_tokens % grid == 0]
            if not prefix.structure.ends_anywhere:
                exact = [ref for ref in exact if STATE in ref.part_bytes]
            if not exact or prefix.grid_tokens == 0:
                return None
            end = exact[-1].end_tokens
            ids = [token for ref in chain for token in ref.token_ids][:end]
            more = (ids * MORE_TOKENS)[:MORE_TOKENS]
            try:
                _restore(prefix, self._engine, [ref for ref in chain if ref.end_tokens <= end], end)
            except LlmcliError as error:
                return Compared(end, None, error.message)
            session.tokens[:] = ids
            session.prefill(more)
            warm = list(self._engine.context.logits())
            self._forget()
            session.prefill(ids + more)
            cold = list(self._engine.context.logits())
            self._forget()
            return Compared(end, max(abs(one - two) for one, two in zip(warm, cold, strict=True)))

    def fingerprint(self) -> Fingerprint:
        """What this model's blocks are stored under, opened as it is."""
        with self._cache() as prefix:
            return prefix.fingerprint

    def require_fits(self, stored: Fingerprint, what: str) -> None:
        """Raise ModelError with the reason unless `what` was computed with this model, build and settings."""
        here = self.fingerprint()
        if stored.digest != here.digest:
            reason, told = other_reason(stored, here)
            raise ModelError(f"{what} does not fit: {str(reason).replace('_', ' ')} ({told})")

    def _stable(self, recipe: Recipe) -> StablePrefix:
        engine = self._engine
        template = None
        if not recipe.raw:
            template = choose_template(engine.model, None, self._reporter, loaded=recipe.template)
            recipe.pin_clock(template)

        def build(request: PromptRequest) -> BuiltPrompt:
            return fit_prompt(
                request,
                engine.model.tokenizer,
                n_ctx=engine.context.n_ctx,
                n_ctx_train=engine.model.n_ctx_train,
                max_tokens=None,
                policy=None,
                longest_token_bytes=engine.inspected.facts.longest_token_bytes,
            )

        return stable_prefix(recipe, template, engine.model.tokenizer, build)

    def _prefill(self, prefix: PrefixCache, ids: Sequence[int]) -> tuple[int, float]:
        """Compute what was not restored: (tokens, seconds)."""
        session, begun = self._engine.session, time.perf_counter()
        rest = ids[len(session.tokens) :]
        with _interruptible(self._engine.stop):
            session.prefill(rest, cuts=prefix.cuts, on_progress=prefix.advance)
        prefix.prefilled()
        return len(rest), time.perf_counter() - begun

    def _forget(self) -> None:
        self._engine.session.cut(0)

    @contextlib.contextmanager
    def _cache(self) -> Iterator[PrefixCache]:
        with open_prefix_cache(self._engine, self._options, self._settings, self._reporter.notify) as prefix:
            if prefix is None:
                raise LlmcliError("the KV state of this model cannot be stored")
            yield prefix


@contextlib.contextmanager
def open_bench(request: BenchRequest, settings: Settings, reporter: Reporter) -> Iterator[Bench]:
    """Open the model. Raises what `open_engine` raises."""
    with open_engine(
        request.reference, request.plan, settings, reporter, rope=request.rope, loras=request.loras, stop=StopFlag()
    ) as engine:
        yield Bench(engine, request.cache, settings, reporter)


@contextlib.contextmanager
def _interruptible(stop: StopFlag) -> Iterator[None]:
    """Ctrl-C ends the computing at once, as UserInterruptError."""
    with stop_on_interrupt(stop):
        try:
            yield
        except AbortedError:
            raise UserInterruptError from None


def _keep_end(
    prefix: PrefixCache, engine: Engine, blocks: Sequence[BlockRef], ids: Sequence[int], recipe: Recipe
) -> Stored:
    """Store the tokens behind `blocks`, which begin the prompt that the session holds, and the recipe with them.

    A block that ends with the prompt already is passed over: the recipe belongs to this prefix and to no run that has
    the same tokens.
    """
    structure, tokenizer = prefix.structure, engine.model.tokenizer
    before = [ref for ref in blocks if ref.end_tokens < len(ids)]
    start = before[-1].end_tokens if before else 0
    tokens = ids[start:]
    if len(tokens) > BLOCK_TOKENS:
        raise _not_kept(f"{start:,} of its {len(ids):,} tokens were kept")
    _require_no_other_recipe(prefix, ids, recipe)
    parts: dict[str, bytes | memoryview] = {RECIPE_PART: recipe.to_bytes()}
    try:
        parts |= StateMover(engine.context, structure).export(start, tokens, state=not structure.ends_anywhere)
    except ExportFailedError as error:
        raise LlmcliError(f"the prefix cannot be taken out of the context: {error.message}") from None
    stored = prefix.store.put(
        prefix.fingerprint,
        before[-1] if before else None,
        tokens,
        parts,
        preview=text_of(tokens[:GRID_TOKENS], tokenizer),
        exact=False,
    )
    if stored.ref is None:
        raise _not_kept(stored.refused or "refused")
    return stored


def _require_no_other_recipe(prefix: PrefixCache, ids: Sequence[int], recipe: Recipe) -> None:
    """Raise LlmcliError where the same tokens are saved as the beginning of prompts made in another way: a new recipe
    would take the place of the old one, and change what its name means.
    """
    stored = prefix.store.match(prefix.fingerprint, ids, exact_only=False).whole_blocks
    if not stored or stored[-1].end_tokens != len(ids) or RECIPE_PART not in stored[-1].part_bytes:
        return
    kept = Recipe.from_bytes(bytes(prefix.store.read(stored[-1], RECIPE_PART)))
    if not kept.makes_the_same(recipe):
        raise LlmcliError(
            "the same tokens are saved already, as the beginning of other prompts (another template, or other parts)",
            hint=f"llmcli cache show {stored[-1].key.hex()[:12]}",
        )


def _not_kept(why: str) -> ResourceError:
    return ResourceError(f"the prefix could not be kept: {why}", hint="llmcli cache stats, or a larger --cache-max")


def _restore(prefix: PrefixCache, engine: Engine, chain: Sequence[BlockRef], end: int) -> int:
    """Put a chain into the context; returns the bytes read. Raises LlmcliError; the context is empty then."""
    read = 0

    def reader(ref: BlockRef, name: str) -> memoryview:
        nonlocal read
        data = prefix.store.read(ref, name)
        read += data.nbytes
        return data

    blocks = [
        Block(ref.start_tokens, ref.token_ids, lambda name, ref=ref: reader(ref, name))  # type: ignore[misc]
        for ref in chain
    ]
    engine.session.tokens.clear()
    try:
        StateMover(engine.context, prefix.structure).restore(blocks, end)
    except RestoreFailedError as error:
        raise LlmcliError(f"the prefix cannot be restored: {error.message}", hint="llmcli cache verify") from None
    engine.session.tokens.extend(token for ref in chain for token in ref.token_ids)
    del engine.session.tokens[end:]
    return read
