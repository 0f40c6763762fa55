"""How long a user waits, in one process with an open model: cold, with the prefix in memory, and restored from disk.

Definitions are those of vLLM's serving benchmark (engine.generate has them too): TTFT from the prompt's text to the
first token; ITL the times between two tokens; TPOT their mean, (total - TTFT) / (tokens - 1); total from the text to
the last token. Sampling (greedy, end-of-generation forbidden) is part of all of them.

Every prompt is a prefix and a question of its own behind it. For each prefix length:

    cold      nothing is in memory, the store is off
    memory    the session holds the prefix, only the question is computed
    disk      the session is empty, the prefix comes from the prefix store

The store is a new folder; each length has a salt of its own, so that no length finds the blocks of another.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from llmcli.base.errors import UsageError, UserInterruptError
from llmcli.base.settings import Settings
from llmcli.bench.latency_result import KINDS, Kind, Point, Request
from llmcli.engine.context import AbortedError
from llmcli.engine.engine import Engine
from llmcli.engine.generate import End, Run, Token, generate_tokens
from llmcli.engine.prefix import PrefixCache, open_prefix_cache
from llmcli.engine.prefix_report import CacheMode, CacheOptions
from llmcli.engine.sampling import Sampler, Sampling
from llmcli.hardware.disk import drop_from_page_cache

_SEED = 11
_LEARN_TOKENS = 320
# Words of one or two tokens in most vocabularies: a text of any length, and another one for every seed.
_WORDS = (
    *("river", "stone", "winter", "market", "paper", "window", "letter", "garden", "bridge", "music", "doctor"),
    *("school", "summer", "engine", "island", "planet", "mirror", "kitchen", "castle", "forest", "number", "valley"),
    *("harbor", "ticket", "camera", "button", "circle", "shadow", "silver", "copper", "velvet", "marble"),
)


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """lengths: of the prefixes, in tokens. drop_page_cache: read from the disk, as after a reboot."""

    lengths: tuple[int, ...]
    question_tokens: int = 32
    answer_tokens: int = 32
    repetitions: int = 3
    drop_page_cache: bool = False

    @property
    def needed_tokens(self) -> int:
        """What the context must hold."""
        return max((*self.lengths, _LEARN_TOKENS)) + self.question_tokens + self.answer_tokens


class Latency:
    """Measures with one open engine, whose context holds `LatencyOptions.needed_tokens`.

    text     the prompt that prefixes are cut from, as text; None: words
    on_note  told once what the store has to say, as why it keeps nothing
    """

    def __init__(
        self,
        engine: Engine,
        options: LatencyOptions,
        settings: Settings,
        folder: Path,
        text: str | None = None,
        on_note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._engine, self._options, self._settings, self._folder = engine, options, settings, folder
        self._on_note, self._noted = on_note, set[str]()
        self._source = None if text is None else engine.model.tokenizer.tokenize(text, parse_special=False)
        if self._source is not None and len(self._source) < max(options.lengths):
            raise UsageError(
                f"the text has {len(self._source):,} tokens, and a prefix of {max(options.lengths):,} is asked for",
                hint=f"-p with lengths up to {len(self._source)}, or a longer text" if self._source else None,
            )
        self._sampling = Sampling(seed=1, temp=0.0, ignore_eos=True)

    def run(self, on_step: Callable[[str], None] = lambda _text: None) -> Iterator[Point]:
        """The points as they come. Raises UserInterruptError after a stop; what came before counts."""
        on_step("testing the store")
        try:
            self._fill(0, self._prompt(_LEARN_TOKENS, 0))
            self._ask("cold", self._prompt(_LEARN_TOKENS, 0), _LEARN_TOKENS)  # warm-up
            for length in self._options.lengths:
                yield self._point(length, on_step)
        except AbortedError:  # a stop in the middle of a prefill
            raise UserInterruptError from None

    def _point(self, length: int, on_step: Callable[[str], None]) -> Point:
        point = Point(length)
        on_step(f"prefix of {length}: keeping it")
        point.written_bytes, point.save_s = self._fill(length, self._prompt(length, 0))
        for number in range(1, self._options.repetitions + 1):
            for kind in KINDS:
                on_step(f"prefix of {length}: {kind}, {number} of {self._options.repetitions}")
                point.requests.append(self._ask(kind, self._prompt(length, number), length))
        return point

    def _prompt(self, length: int, number: int) -> list[int]:
        """A prefix of so many tokens, the same for every number, and a question of its own."""
        tokenizer = self._engine.model.tokenizer
        prefix = tokenizer.with_bos(self._source or self._words(_SEED * 100_003 + length, length))[:length]
        return [*prefix, *self._words(_SEED * 1_000_003 + number, self._options.question_tokens)]

    def text(self, length: int, number: int) -> str:
        """Such a prompt as text; tokenized again it may be a few tokens more or less."""
        return self._text_of(self._prompt(length, number))

    def _text_of(self, ids: Sequence[int]) -> str:
        tokenizer = self._engine.model.tokenizer
        return b"".join(tokenizer.piece(token) for token in ids).decode("utf-8", "replace")

    def _tokenize(self, text: str) -> list[int]:
        return self._engine.model.tokenizer.tokenize(text, parse_special=False)

    def _words(self, seed: int, count: int) -> list[int]:
        pick = random.Random(seed)  # noqa: S311  # the same text every time is what is wanted
        text = " ".join(pick.choice(_WORDS) for _ in range(count + 1))  # a word is at least one token
        return self._tokenize(text)[:count]

    def _fill(self, length: int, ids: list[int]) -> tuple[int, float]:
        """Compute the prefix and keep it: the bytes written, and the seconds waited for that behind the answer."""
        session = self._engine.session
        session.forget()
        with self._store(length) as prefix:
            if prefix is None:
                return 0, 0.0
            wanted = ids[: length or len(ids)]
            prefix.restore(wanted, (length,) if prefix.wants_boundaries else ())
            rest = wanted[len(session.tokens) :]
            begun = time.perf_counter()
            session.prefill(rest, cuts=prefix.cuts, on_progress=prefix.advance)
            prefix.prefilled()
            computed = time.perf_counter()
            prefix.finish(len(rest) / (computed - begun), len(rest))
            return prefix.report.written_bytes, time.perf_counter() - computed

    def _store(self, length: int, mode: CacheMode = "auto") -> AbstractContextManager[PrefixCache | None]:
        options = CacheOptions(mode=mode, folder=self._folder, salt=f"length {length}")
        return open_prefix_cache(self._engine, options, self._settings, self._note)

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._on_note(text)

    def _ask(self, kind: Kind, ids: list[int], length: int) -> Request:
        self._prepare(kind, ids, length)
        engine, session = self._engine, self._engine.session
        text = self._text_of(ids)
        begun = time.perf_counter()
        self._tokenize(text)
        tokenize_s = time.perf_counter() - begun
        held = len(session.tokens)
        with (
            Sampler(self._sampling, engine.model.tokenizer, engine.context.n_ctx) as sampler,
            self._store(length, "readonly") if kind == "disk" else nullcontext() as prefix,
        ):
            if prefix:
                prefix.restore(ids, ())
                held = prefix.report.restored_tokens
            run = Run(
                session, sampler, ids[len(session.tokens) :], max_tokens=self._options.answer_tokens, started_s=begun
            )
            stamps = self._stamps(run)
            restore_s = prefix.report.restore_s if prefix else 0.0
        return Request(
            kind=kind,
            prompt_tokens=len(ids),
            restored_tokens=held,
            tokenize_s=tokenize_s,
            restore_s=restore_s,
            prefill_s=run.timings.prefill_s,
            ttft_s=stamps[0] - begun,
            itl_s=tuple(late - early for early, late in itertools.pairwise(stamps)),
            total_s=stamps[-1] - begun,
        )

    def _stamps(self, run: Run) -> list[float]:
        """When each token came."""
        stamps: list[float] = []
        for item in generate_tokens(run):
            if isinstance(item, Token):
                stamps.append(time.perf_counter())
            elif isinstance(item, End) and (item.reason == "interrupted" or not stamps):
                raise UserInterruptError
        return stamps

    def _prepare(self, kind: Kind, ids: list[int], length: int) -> None:
        """Bring memory and page cache into the state that the kind stands for; not timed."""
        session = self._engine.session
        if kind == "memory":
            session.cut(length)
            if session.tokens != ids[:length]:
                session.forget()
                session.prefill(ids[:length])
            return
        session.forget()
        if kind == "disk" and self._options.drop_page_cache:
            drop_from_page_cache(self._folder)
