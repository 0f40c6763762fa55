"""Generation as stacked generators: tokens, below text, below answer parts.

Each layer yields its items and, last, one `End` with the finish reason and the timings. Whoever stops early closes the
generator. Times are seconds of a monotonic clock.

Definitions (those of vLLM's serving benchmark): TTFT runs from the request (here: the moment the loaded engine is given
the prompt's text) to the first token, sampling included; decode time runs from the first token to the last and includes
what the reader of the generator does in between; TPOT is the decode time over the tokens after the first; prefill
rate = computed prompt tokens / prefill time; decode rate = 1 / TPOT.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Literal

from llmcli.base.records import dataclass
from llmcli.engine.context import AbortedError
from llmcli.engine.reasoning import ReasoningSplitter
from llmcli.engine.sampling import Sampler
from llmcli.engine.session import Session
from llmcli.engine.stops import StopMatcher
from llmcli.engine.tokenizer import Tokenizer
from llmcli.engine.utf8 import Utf8Assembler

FinishReason = Literal["stop", "length", "interrupted"]
Kind = Literal["text", "reasoning"]


@dataclass(slots=True)
class Timings:
    """Where the time went; filled as generation goes on. All in seconds; rates in tokens per second."""

    load_s: float = 0.0
    tokenize_s: float = 0.0
    restore_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float | None = None
    decode_s: float = 0.0
    total_s: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None where there were none."""
        return self.decode_s / self.decode_tokens if self.decode_tokens else None

    @property
    def prefill_tok_s(self) -> float | None:
        """Prefill rate, None where nothing was computed."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s else None

    @property
    def decode_tok_s(self) -> float | None:
        """Decode rate, sampling included; None where fewer than two tokens came."""
        return self.decode_tokens / self.decode_s if self.decode_s else None

    def as_json(self) -> dict[str, float | None]:
        """The `timings` object of `--json`."""
        names = ("load_s", "tokenize_s", "restore_s", "prefill_s", "ttft_s", "tpot_s", "total_s")
        return {name: getattr(self, name) for name in (*names, "prefill_tok_s", "decode_tok_s")}


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token."""

    id: int


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the answer, or of the thinking before it; never split inside a character."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The last item of every layer."""

    reason: FinishReason
    completion_ids: tuple[int, ...]


@dataclass(slots=True)
class Run:
    """One request against a session: what is asked, and what it cost so far.

    prompt          ids to append to the session, at least one; the last one's logits choose the first token
    cuts            positions at which the prefill pauses besides those of the grid; on_prefill hears of each
    max_tokens      None: until the model ends or the context is full
    shift_keep      None: stop when the context is full; a number: keep that many first tokens and drop the oldest
    half of
                    the rest (a context shift), told to `on_shift(dropped tokens)`
    """

    session: Session
    sampler: Sampler
    prompt: Sequence[int]
    max_tokens: int | None = None
    shift_keep: int | None = None
    cuts: Sequence[int] = ()
    on_prefill: Callable[[int, int], None] | None = None
    on_prefilled: Callable[[], None] | None = None
    on_shift: Callable[[int], None] | None = None
    started_s: float = field(default_factory=time.perf_counter)
    timings: Timings = field(default_factory=Timings)
    completion: list[int] = field(default_factory=list)

    def end(self, reason: FinishReason) -> End:
        """Close the books."""
        self.timings.total_s = time.perf_counter() - self.started_s
        return End(reason, tuple(self.completion))


def generate_tokens(run: Run) -> Iterator[Token | End]:
    """Prefill the prompt, then one token after the other. An end-of-generation token ends it and is not yielded."""
    try:
        _prefill(run)
        yield from _decode(run)
    except AbortedError:
        yield run.end("interrupted")


def _prefill(run: Run) -> None:
    begun = time.perf_counter()
    run.timings.prefill_tokens = len(run.prompt)
    run.session.prefill(run.prompt, cuts=run.cuts, on_progress=run.on_prefill)
    run.timings.prefill_s = time.perf_counter() - begun
    if run.on_prefilled:
        run.on_prefilled()
    run.sampler.see_prompt(run.session.tokens)


def _decode(run: Run) -> Iterator[Token | End]:
    session, sampler, timings = run.session, run.sampler, run.timings
    is_end = session.context.model.tokenizer.is_end
    stop, first = session.context.stop, 0.0
    while True:
        if run.max_tokens is not None and len(run.completion) >= run.max_tokens:
            yield run.end("length")
            return
        if run.completion:
            if not session.room and not _shift(run):
                yield run.end("length")
                return
            session.decode(run.completion[-1])
        token = sampler.sample(session.context)
        now = time.perf_counter()
        if timings.ttft_s is None:
            first, timings.ttft_s = now, now - run.started_s
        else:
            timings.decode_s, timings.decode_tokens = now - first, timings.decode_tokens + 1
        if token is None or is_end(token):
            yield run.end("stop")
            return
        run.completion.append(token)
        yield Token(token)
        if stop.is_set():
            yield run.end("interrupted")
            return


def _shift(run: Run) -> bool:
    """Make room by dropping the older half of what may go; False where that is not wanted or not possible."""
    session = run.session
    if run.shift_keep is None or not session.context.can_shift():
        return False
    droppable = len(session.tokens) - run.shift_keep
    if droppable < 2:
        return False
    count = droppable // 2
    session.drop(run.shift_keep, run.shift_keep + count)
    if run.on_shift:
        run.on_shift(count)
    return True


def generate_text(run: Run, *, stops: Sequence[str] = (), visible: frozenset[int] = frozenset()) -> Iterator[str | End]:
    """The text of the answer as it comes, whole characters only, ended before the first stop string.

    visible   control tokens whose text belongs to the answer (thinking marks); all others leave no text
    """
    tokenizer: Tokenizer = run.session.context.model.tokenizer
    characters, matcher = Utf8Assembler(), StopMatcher(stops)
    for item in generate_tokens(run):
        if isinstance(item, Token):
            text, stopped = matcher.push(characters.push(tokenizer.piece(item.id, special=item.id in visible)))
            if text:
                yield text
            if stopped:
                yield run.end("stop")
                return
            continue
        text, stopped = matcher.push(characters.finish())
        if rest := text if stopped else text + matcher.finish():
            yield rest
        yield item


def generate_answer(
    run: Run, splitter: ReasoningSplitter, *, stops: Sequence[str] = (), visible: frozenset[int] = frozenset()
) -> Iterator[Part | End]:
    """The answer in parts: what is thinking and what is meant for the reader."""
    for item in generate_text(run, stops=stops, visible=visible):
        if isinstance(item, str):
            for kind, text in splitter.push(item):
                yield Part(kind, text)
            continue
        yield from (Part(kind, text) for kind, text in splitter.finish())
        yield item
