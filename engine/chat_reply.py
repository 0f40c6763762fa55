"""One answer in a conversation: a stream of parts, then its account. Whatever ends it, it is recorded.

Nothing is computed before `parts` is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmcli.base.units import format_count, format_seconds
from llmcli.engine import native
from llmcli.engine.account import ContextLimit, rate, sampler_json, visible_tokens
from llmcli.engine.chat_layout import Laid, aligned
from llmcli.engine.engine import Engine
from llmcli.engine.generate import End, FinishReason, Part, Run, Timings, generate_answer
from llmcli.engine.interrupt import stop_on_interrupt
from llmcli.engine.prefix_report import CacheReport
from llmcli.engine.reasoning import ReasoningSplitter
from llmcli.engine.sampling import Sampler, Sampling
from llmcli.sessions.turns import Turn, local_now

if TYPE_CHECKING:
    from llmcli.engine.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reply is to: the question, the prompt, how to sample. keep_tokens: what a context shift never drops."""

    user: str
    laid: Laid
    sampling: Sampling
    max_tokens: int | None
    stops: tuple[str, ...]
    shift: bool
    keep_tokens: int
    tokenize_s: float
    number: int


class Reply:
    """An answer on its way, and its account once `parts` has been read to the end.

    kept_tokens, restored_tokens, computed_tokens   of the prompt: from memory, from the store, computed now
    """

    def __init__(self, conversation: Conversation, asked: Asked, record: Callable[[Reply, Turn], None]) -> None:
        self._conversation, self._asked, self._record = conversation, asked, record
        self._run: Run | None = None
        self._end: End | None = None
        self.text, self.reasoning = "", ""
        self.kept_tokens = 0
        self.cache_report = CacheReport("off")
        self.notes: tuple[str, ...] = ()
        self._is_recorded = False
        self._limit = ContextLimit(conversation.engine.context, shifts=conversation.overflow == "shift")

    @property
    def user(self) -> str:
        """The question."""
        return self._asked.user

    @property
    def laid(self) -> Laid:
        """The prompt."""
        return self._asked.laid

    @property
    def finish_reason(self) -> FinishReason:
        """Why the answer ended; `interrupted` also where it was not read to the end."""
        return self._end.reason if self._end else "interrupted"

    @property
    def cut_note(self) -> str | None:
        """Which limit ended the answer, and what moves it; None where none did."""
        if self.finish_reason != "length":
            return None
        conversation, most = self._conversation, self._asked.max_tokens
        if most is not None and self.completion_tokens >= most:
            option = "-n, or /set predict" if conversation.takes_commands else "-n"
            return f"cut off after {format_count(most, 'token')}: that is the limit ({option})"
        return self.full_note

    @property
    def full_note(self) -> str | None:
        """The same where it was the context; None where it was the limit of tokens."""
        return self._limit.note(self.finish_reason, self._asked.max_tokens, self.completion_tokens)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, from position 0 on."""
        return len(self._asked.laid.ids)

    @property
    def restored_tokens(self) -> int:
        """Those that came from the prefix store."""
        return self.cache_report.restored_tokens

    @property
    def computed_tokens(self) -> int:
        """Those that were computed for this answer."""
        return self.timings.prefill_tokens

    @property
    def completion_tokens(self) -> int:
        """Generated tokens, the end-of-generation token not counted."""
        return len(self._run.completion) if self._run else 0

    @property
    def timings(self) -> Timings:
        """Where the time went."""
        return self._run.timings if self._run else Timings()

    def tell(self, note: str) -> None:
        """A line that belongs to this answer."""
        self.notes += (note,)
        self._conversation.tell(note)

    def parts(self) -> Generator[Part, None, None]:
        """The parts as they come; read once, to the end. Closing it early ends the answer there."""
        log = self._conversation.log
        log.ask(self._asked.user)
        try:
            yield from self._parts()
        finally:
            if not self._is_recorded:
                log.ask(None)

    def _parts(self) -> Generator[Part, None, None]:
        conversation, asked = self._conversation, self._asked
        engine = conversation.engine
        with (
            Sampler(asked.sampling, engine.model.tokenizer, engine.context.n_ctx) as sampler,
            stop_on_interrupt(engine.stop),
        ):
            run = self._begin(sampler)
            splitter = ReasoningSplitter(opened=asked.laid.reasoning_opened)
            visible = visible_tokens(engine.model.tokenizer)
            is_begun = False
            try:
                for item in generate_answer(run, splitter, stops=asked.stops, visible=visible):
                    is_begun = True
                    if isinstance(item, End):
                        self._end = item
                        continue
                    if item.kind == "text":
                        self.text += item.text
                    else:
                        self.reasoning += item.text
                    yield item
            finally:
                if is_begun or run.completion:
                    self._is_recorded = True
                    self._record(self, self._turn(visible))

    def _begin(self, sampler: Sampler) -> Run:
        conversation, asked = self._conversation, self._asked
        begun_s = time.perf_counter() - asked.tokenize_s
        kv, session, ids = conversation.kv, conversation.engine.session, asked.laid.ids
        self.kept_tokens = kv.begin(ids, stable_tokens=asked.laid.stable_tokens, boundaries=asked.laid.boundaries)
        self.cache_report = kv.prefix.report if kv.prefix else CacheReport(conversation.cache_mode)
        conversation.about_to_compute(self, len(ids) - len(session.tokens))
        shifts = _Shifts(self)
        self._run = run = Run(
            session,
            sampler,
            ids[len(session.tokens) :],
            cuts=kv.cuts,
            on_prefill=self._on_prefill,
            on_prefilled=self._on_prefilled,
            max_tokens=asked.max_tokens,
            shift_keep=asked.keep_tokens if asked.shift else None,
            on_shift=shifts.tell,
            started_s=begun_s,
        )
        run.timings.tokenize_s, run.timings.restore_s = asked.tokenize_s, self.cache_report.restore_s
        if conversation.on_progress:
            conversation.on_progress(0, len(run.prompt))
        return run

    def _on_prefill(self, done: int, total: int) -> None:
        self._conversation.kv.advanced()
        if self._conversation.on_progress:
            self._conversation.on_progress(done, total)

    def _on_prefilled(self) -> None:
        kv = self._conversation.kv
        kv.computed(self.prompt_tokens)
        if kv.prefix:
            kv.prefix.prefilled()

    def _turn(self, visible: frozenset[int]) -> Turn:
        """What is recorded: the answer's tokens are those of its text, whatever a stop string cut off."""
        asked, run, tokenizer = self._asked, self._run, self._conversation.engine.model.tokenizer
        completion = run.completion if run else []
        pieces = [tokenizer.piece(token, special=token in visible) for token in completion]
        text = b"".join(pieces).decode("utf-8", "replace")
        end = min((at for stop in asked.stops if (at := text.find(stop)) >= 0), default=len(text))
        whole = end == len(text)
        return Turn(
            user=asked.user,
            text=self.text,
            reasoning=self.reasoning,
            content=asked.laid.opening + text[:end],
            prompt_ids=asked.laid.ids,
            completion_ids=tuple(completion) if whole else aligned(completion, text[:end], pieces, tokenizer),
            finish_reason=self.finish_reason,
            system=self._conversation.history.system,
            hidden=self._conversation.history.hidden,
            at=local_now().isoformat(timespec="seconds"),
        )

    def settle(self) -> None:
        """End saving to the prefix store, so that the account is whole."""
        self._conversation.settle(ahead=False)

    def as_json(self) -> dict[str, Any]:
        """The account, with the names of docs/commands/run.md and of docs/commands/chat.md."""
        conversation, timings = self._conversation, self.timings
        engine = conversation.engine
        return {
            "session": conversation.name,
            "turn": self._asked.number,
            "user": self._asked.user,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "reasoning": self.reasoning or None,
            **_engine_json(engine),
            "seed": self._asked.sampling.seed,
            "sampler": sampler_json(self._asked.sampling),
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.completion_tokens,
                "kept_tokens": self.kept_tokens,
                "restored_tokens": self.restored_tokens,
                "computed_tokens": self.computed_tokens,
            },
            "timings": {**timings.as_json(), "load_s": engine.load_s},
            "cache": self.cache_report.as_json(),
            "notes": [*self.notes, *([self.cut_note] if self.cut_note else [])],
        }

    def stats_line(self) -> str:
        """The account in one line for people."""
        timings = self.timings
        reused = [
            f"{count:,} {whence}"
            for count, whence in ((self.kept_tokens, "kept"), (self.restored_tokens, "restored"))
            if count
        ]
        pieces = [
            f"{format_count(self.prompt_tokens, 'prompt token')}"
            + (f" ({', '.join(reused)})" if reused else "")
            + f", {self.computed_tokens:,} computed in {format_seconds(timings.prefill_s)}"
            + rate(timings.prefill_tok_s),
            f"{format_count(self.completion_tokens, 'token')} in {format_seconds(timings.decode_s)}"
            + rate(timings.decode_tok_s),
            f"first token after {format_seconds(timings.ttft_s)}" if timings.ttft_s is not None else "no token",
            f"ended by {self.finish_reason}",
        ]
        return ", ".join(pieces)


def _engine_json(engine: Engine) -> dict[str, Any]:
    plan = engine.plan
    return {
        "model": {
            "name": engine.resolved.name,
            "path": str(engine.resolved.path),
            "content_id": engine.inspected.content_id,
        },
        "build": native.build_info(),
        "plan": {
            "n_ctx": plan.n_ctx,
            "threads": plan.n_threads,
            "threads_batch": plan.n_threads_batch,
            "n_gpu_layers": plan.n_gpu_layers,
        },
    }


class _Shifts:
    """Says once that the context lost tokens in the middle of an answer."""

    def __init__(self, reply: Reply) -> None:
        self._reply, self._is_told = reply, False

    def tell(self, count: int) -> None:
        """The oldest `count` tokens are dropped."""
        if not self._is_told:
            self._is_told = True
            self._reply.tell(f"the context is full: the oldest {format_count(count, 'token')} were dropped")
