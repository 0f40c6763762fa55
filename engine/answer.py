"""One question, one answer: the whole way from a request to a stream of parts with its account.

What `llmcli run` does, without the terminal. Ctrl-C during the answer ends it with what was generated so far.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import field
from typing import TYPE_CHECKING, Any

from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.units import format_count, format_seconds
from llmcli.engine import native
from llmcli.engine.account import ContextLimit, rate, sampler_json, visible_tokens
from llmcli.engine.context import Rope
from llmcli.engine.engine import Engine, Reporter, open_engine
from llmcli.engine.generate import End, FinishReason, Part, Run, generate_answer
from llmcli.engine.interrupt import StopFlag, stop_on_interrupt
from llmcli.engine.lora import Lora
from llmcli.engine.model import Model
from llmcli.engine.plan import Request
from llmcli.engine.prefix_report import CacheOptions, CacheReport
from llmcli.engine.prompt import BuiltPrompt, Overflow, PromptPart, PromptRequest, fit_prompt
from llmcli.engine.reasoning import ReasoningSplitter
from llmcli.engine.sampling import Sampler, Sampling
from llmcli.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llmcli.engine.chat_template import ChatTemplate
    from llmcli.engine.prefix import PrefixCache
    from llmcli.engine.prefix_recipe import Recipe


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Everything that decides an answer.

    max_tokens   None: until the model ends or the context is full
    recipe       the saved prefix that `parts`, `system` and `raw` begin with; None where they begin with none
    """

    reference: str | None
    plan: Request
    parts: tuple[PromptPart, ...]
    sampling: Sampling
    rope: Rope = field(default_factory=Rope)
    loras: tuple[Lora, ...] = ()
    system: str | None = None
    raw: bool = False
    template: str | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    overflow: Overflow = "error"
    cache: CacheOptions = field(default_factory=CacheOptions)
    recipe: Recipe | None = None


class Answer:
    """An answer on its way, and its account once `parts` has been read to the end."""

    def __init__(
        self, engine: Engine, request: AnswerRequest, prompt: BuiltPrompt, run: Run, prefix: PrefixCache | None
    ) -> None:
        self._engine, self._request, self._prompt, self._run, self._prefix = engine, request, prompt, run, prefix
        self._settled = False
        self._end: End | None = None
        self._limit = ContextLimit(engine.context, shifts=request.overflow == "shift")
        self.text = ""
        self.reasoning = ""

    def parts(self) -> Iterator[Part]:
        """The parts as they come; read once, to the end."""
        splitter = ReasoningSplitter(opened=self._prompt.reasoning_opened)
        tokenizer = self._engine.model.tokenizer
        visible = frozenset() if self._request.raw else visible_tokens(tokenizer)
        for item in generate_answer(self._run, splitter, stops=self._request.stops, visible=visible):
            if isinstance(item, End):
                self._end = item
                continue
            if item.kind == "text":
                self.text += item.text
            else:
                self.reasoning += item.text
            yield item

    def settle(self) -> None:
        """End what goes on behind the answer: saving to the prefix store. After the text is out, before the account."""
        if self._prefix and not self._settled:
            self._settled = True
            timings = self._run.timings
            self._prefix.finish(timings.prefill_tok_s, timings.prefill_tokens)

    @property
    def cache_report(self) -> CacheReport:
        """What the prefix store did."""
        if self._prefix:
            return self._prefix.report
        cache, tokens = self._request.cache, len(self._prompt.ids)
        if cache.mode == "off" or tokens >= cache.policy.min_tokens:
            return CacheReport(cache.mode)
        return CacheReport.too_short(cache.mode, tokens, cache.policy.min_tokens)

    @property
    def finish_reason(self) -> FinishReason:
        """Why the answer ended; `interrupted` also where it was not read to the end."""
        return self._end.reason if self._end else "interrupted"

    @property
    def full_note(self) -> str | None:
        """That the context, and not `max_tokens`, ended the answer, and what moves that; None where it did not."""
        return self._limit.note(self.finish_reason, self._request.max_tokens, self.completion_tokens)

    @property
    def completion_tokens(self) -> int:
        """Generated tokens, the end-of-generation token not counted."""
        return len(self._run.completion)

    def as_json(self) -> dict[str, Any]:
        """The account with the names of docs/commands/run.md."""
        engine, timings = self._engine, self._run.timings
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "reasoning": self.reasoning or None,
            "model": {
                "name": engine.resolved.name,
                "path": str(engine.resolved.path),
                "content_id": engine.inspected.content_id,
            },
            "build": native.build_info(),
            "seed": self._request.sampling.seed,
            "sampler": sampler_json(self._request.sampling),
            "usage": {
                "prompt_tokens": len(self._prompt.ids),
                "completion_tokens": self.completion_tokens,
                "restored_tokens": self.cache_report.restored_tokens,
            },
            "timings": timings.as_json(),
            "cache": self.cache_report.as_json(),
            "plan": {
                "n_ctx": engine.plan.n_ctx,
                "threads": engine.plan.n_threads,
                "threads_batch": engine.plan.n_threads_batch,
                "n_gpu_layers": engine.plan.n_gpu_layers,
            },
        }

    def stats_line(self) -> str:
        """The account in one line for people."""
        timings = self._run.timings
        pieces = [
            f"load {format_seconds(timings.load_s)}",
            f"{format_count(timings.prefill_tokens, 'prompt token')} in {format_seconds(timings.prefill_s)}"
            + rate(timings.prefill_tok_s),
            f"{format_count(self.completion_tokens, 'token')} in {format_seconds(timings.decode_s)}"
            + rate(timings.decode_tok_s),
            f"first token after {format_seconds(timings.ttft_s)}" if timings.ttft_s is not None else "no token",
            f"ended by {self.finish_reason}",
        ]
        return ", ".join(pieces) + "; " + self.cache_report.as_line(len(self._prompt.ids))


@contextlib.contextmanager
def answer(
    request: AnswerRequest,
    settings: Settings,
    reporter: Reporter,
    on_prefill: Callable[[int, int], None] | None = None,
) -> Iterator[Answer]:
    """Open the model, build the prompt, and hand out the answer to be read. Raises LlmcliError of whichever
    step fails.

    on_prefill   told (tokens done, tokens to do) when the prompt begins to be computed, and after each piece
    """
    stop = StopFlag()
    if not request.raw:
        # 40 ms of imports, hidden behind the loading of the model, which does not hold the interpreter lock.
        threading.Thread(target=_warm_up_templates, daemon=True).start()
    with open_engine(
        request.reference, request.plan, settings, reporter, rope=request.rope, loras=request.loras, stop=stop
    ) as engine:
        begun = time.perf_counter()
        prompt = _prompt(engine, request, reporter)
        tokenize_s = time.perf_counter() - begun
        shifts = _Shifts(reporter)
        with (
            Sampler(request.sampling, engine.model.tokenizer, engine.context.n_ctx) as sampler,
            _prefix_cache(engine, request.cache, prompt, settings, reporter) as prefix,
            stop_on_interrupt(stop),
        ):
            if prefix:
                prefix.restore(prompt.ids, prompt.boundaries(engine.model.tokenizer) if prefix.wants_boundaries else ())
                if request.recipe and not prefix.report.restored_tokens:
                    reporter.notify("the saved prefix is computed again: " + prefix.report.as_line(len(prompt.ids)))
            run = Run(
                engine.session,
                sampler,
                prompt.ids[len(engine.session.tokens) :],
                cuts=prefix.cuts if prefix else (),
                on_prefill=_told_of_prefill(prefix, on_prefill),
                on_prefilled=prefix.prefilled if prefix else None,
                max_tokens=request.max_tokens,
                shift_keep=_keep(engine.model.tokenizer) if request.overflow == "shift" else None,
                on_shift=shifts.tell,
                started_s=begun,
            )
            run.timings.load_s, run.timings.tokenize_s = engine.load_s, tokenize_s
            run.timings.restore_s = prefix.report.restore_s if prefix else 0.0
            result = Answer(engine, request, prompt, run, prefix)
            if on_prefill:
                on_prefill(0, len(run.prompt))
            yield result
            result.settle()
        shifts.sum_up()


def _told_of_prefill(
    prefix: PrefixCache | None, on_prefill: Callable[[int, int], None] | None
) -> Callable[[int, int], None] | None:
    """Both, where there are two; the store goes first, which saves while the rest is computed."""
    if prefix is None or on_prefill is None:
        return prefix.advance if prefix else on_prefill

    def tell(done: int, total: int) -> None:
        prefix.advance(done, total)
        on_prefill(done, total)

    return tell


def _prefix_cache(
    engine: Engine, options: CacheOptions, prompt: BuiltPrompt, settings: Settings, reporter: Reporter
) -> AbstractContextManager[PrefixCache | None]:
    """The prefix store, unless it is off or the prompt too short for it: then it is not even loaded (50 ms)."""
    if options.mode == "off" or len(prompt.ids) < options.policy.min_tokens:
        return contextlib.nullcontext()
    from llmcli.engine.prefix import open_prefix_cache

    return open_prefix_cache(engine, options, settings, reporter.notify)


def _prompt(engine: Engine, request: AnswerRequest, reporter: Reporter) -> BuiltPrompt:
    saved = request.recipe
    template = None
    if not request.raw:
        template = choose_template(engine.model, request.template, reporter, loaded=saved.template if saved else None)
        if saved:
            saved.pin_clock(template)
    built = fit_prompt(
        PromptRequest(request.parts, request.system, template),
        engine.model.tokenizer,
        n_ctx=engine.context.n_ctx,
        n_ctx_train=engine.model.n_ctx_train,
        max_tokens=request.max_tokens,
        policy=request.overflow,
        longest_token_bytes=engine.inspected.facts.longest_token_bytes,
    )
    for note in built.notes:
        reporter.notify(note)
    return built


def _warm_up_templates() -> None:
    from llmcli.engine.chat_template import warm_up

    warm_up()


def choose_template(
    model: Model, wanted: str | None, reporter: Reporter, *, loaded: tuple[str, str] | None = None
) -> ChatTemplate:
    """The template that was `loaded` before (name, source), else the one the user named, else the model's own, else a
    fallback, which is said.
    """
    from llmcli.engine.chat_template import FALLBACK, PRESETS, ChatTemplate, load_template

    tokenizer = model.tokenizer
    bos = "" if tokenizer.bos is None else tokenizer.text_of(tokenizer.bos)
    eos = "" if tokenizer.eos is None else tokenizer.text_of(tokenizer.eos)
    if loaded is not None:
        name, source = loaded
    elif wanted is not None:
        source, name = load_template(wanted)
    elif own := model.chat_template:
        source, name = own, "the model's own"
    else:
        source, name = PRESETS[FALLBACK], FALLBACK
        reporter.notify(
            f"this model has no chat template (a base model?): {FALLBACK} is used; "
            "llmcli run --raw completes plain text, --chat-template names another"
        )
    return ChatTemplate(source, bos_text=bos, eos_text=eos, name=name)


class _Shifts:
    """Says which tokens the context lost: the first time at once, then their sum behind the answer, because a line for
    each would cut the answer to pieces.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter, self._counts = reporter, list[int]()

    def tell(self, count: int) -> None:
        """The oldest `count` tokens are dropped."""
        self._counts.append(count)
        if len(self._counts) == 1:
            self._reporter.notify(f"the context is full: the oldest {format_count(count, 'token')} were dropped")

    def sum_up(self) -> None:
        """The answer is there."""
        if len(self._counts) > 1:
            total = format_count(sum(self._counts), "token")
            self._reporter.notify(f"the context was full {len(self._counts):,} times: {total} were dropped in all")


def _keep(tokenizer: Tokenizer) -> int:
    """The tokens a context shift never drops: BOS, which many models cannot do without."""
    return 1 if tokenizer.adds_bos else 0
