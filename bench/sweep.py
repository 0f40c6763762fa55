"""Finds the settings that answer soonest, by successive halving under a time budget.

All candidates are measured shortly, the better half goes on and is measured twice as long, and so on to the last
(Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", 2016, algorithm 1).
What counts is the time of one request: n_prompt / prefill rate + n_gen / decode rate. The settings that a run has
anyway are a candidate too and go on to the end, so that the winner is compared with them: with as many samples on both
sides, taken in turns.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmcli.base.errors import LlmcliError, UsageError, UserInterruptError
from llmcli.bench.compare import LEAST_SAMPLES, rank_test
from llmcli.bench.run import Runner, RunOptions
from llmcli.bench.sizes import Sizes
from llmcli.bench.trials import Trial
from llmcli.engine.context import AbortedError
from llmcli.engine.plan import Request, RunPlan

_LEAST_PROMPT, _LEAST_ANSWER = 32, 8
_LEVEL = 0.05
_FINAL_ROUNDS = 7
_MOST_CANDIDATES = 10_000
_SHARE_OF_ROUNDS = 0.6  # of the budget; the rest is for the final, which takes LEAST_SAMPLES in any case


@dataclass(frozen=True, slots=True)
class Candidate:
    """One combination of settings; None is "as llmcli run would have it". model: None for the one that is tuned."""

    n_threads: int | None = None
    n_batch: int | None = None
    n_ubatch: int | None = None
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    model: str | None = None
    quant: str | None = None

    @property
    def label(self) -> str:
        """As flags; `as it is` where nothing is set."""
        usual = Candidate()
        flags = (("-t", "n_threads"), ("-b", "n_batch"), ("-ub", "n_ubatch"), ("-fa", "flash_attn"),
                 ("-ctk", "type_k"), ("-ctv", "type_v"))  # fmt: skip
        words = [f"{flag} {getattr(self, name)}" for flag, name in flags if getattr(self, name) != getattr(usual, name)]
        if self.quant is not None:
            words.append(self.quant)
        return " ".join(words) or "as it is"

    def as_config(self, plan: RunPlan) -> dict[str, str | int]:
        """What is written into config.toml: numbers as they were in force, names where they are not the usual ones."""
        found: dict[str, str | int] = {
            "threads": plan.n_threads,
            "batch_size": plan.n_batch,
            "ubatch_size": plan.n_ubatch,
        }
        if self.flash_attn != "auto":
            found["flash_attn"] = self.flash_attn
        if (self.type_k, self.type_v) != ("f16", "f16"):
            found |= {"cache_type_k": self.type_k, "cache_type_v": self.type_v}
        return found


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """n_prompt, n_gen: the request that is to be answered soonest; budget_s: for everything."""

    budget_s: float = 120.0
    n_prompt: int = 512
    n_gen: int = 128


@dataclass(slots=True)
class Tried:
    """A candidate and what was measured of it: the request's time in each round, and the plan in force."""

    candidate: Candidate
    rounds: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    plan: RunPlan | None = None
    error: LlmcliError | None = None

    @property
    def problem(self) -> str | None:
        """What ended the measuring of it."""
        return self.error.message if self.error else None

    @property
    def request_s(self) -> float:
        """The time of the request as measured last; infinity where it was not."""
        return self.rounds[-1] if self.rounds else math.inf

    def as_json(self) -> dict[str, Any]:
        """With the names of docs/commands/bench.md."""
        return {
            "settings": self.candidate.label,
            "rounds_s": self.rounds,
            "request_s": self.rounds[-1] if self.rounds else None,
            "samples_s": self.samples,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The winner against the settings as they are. gain: share of the time that is saved; p of the rank test."""

    winner: Tried
    usual: Tried
    gain: float
    p_value: float | None

    @property
    def is_better(self) -> bool:
        """Whether the samples show that the winner is faster."""
        return self.gain > 0 and self.p_value is not None and self.p_value < _LEVEL


def candidates(
    n_threads: Sequence[int | None],
    n_batch: Sequence[int | None],
    n_ubatch: Sequence[int | None],
    flash_attn: Sequence[str],
    types: Sequence[tuple[str, str]],
    models: Sequence[tuple[str | None, str | None]] = ((None, None),),
) -> list[Candidate]:
    """The cross product without what llama.cpp refuses (a quantized V cache without flash attention); the settings as
    they are come first. Raises UsageError for more than any budget is enough for.
    """
    count = math.prod(map(len, (models, n_threads, n_batch, n_ubatch, flash_attn, types)))
    if count > _MOST_CANDIDATES:
        raise UsageError(f"that stands for {count:,} combinations, and {_MOST_CANDIDATES:,} are the most")
    found = [Candidate()]
    for model, threads, batch, ubatch, flash, (type_k, type_v) in itertools.product(
        models, n_threads, n_batch, n_ubatch, flash_attn, types
    ):
        quantized = type_v not in ("f32", "f16", "bf16")
        if not (quantized and flash == "off"):
            found.append(Candidate(threads, batch, ubatch, flash, type_k, type_v, *model))
    return list(dict.fromkeys(found))


class Sweep:
    """One sweep. reference: of the model that is tuned; candidates with a model of their own are measured with that."""

    def __init__(
        self,
        runner: Runner,
        reference: str | None,
        options: SweepOptions,
        on_step: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner, self._reference, self._options, self._on_step = runner, reference, options, on_step
        self._clock, begun = clock, clock()
        self._rounds_end, self._ends = begun + _SHARE_OF_ROUNDS * options.budget_s, begun + options.budget_s
        self.tried: list[Tried] = []
        self.was_cut = False

    def run(self, wanted: Sequence[Candidate]) -> Verdict:
        """All rounds. Raises UserInterruptError after a stop, with `tried` telling how far it came; LlmcliError where
        not even the settings as they are can be measured.
        """
        self.tried = [Tried(candidate) for candidate in wanted]
        usual, alive = self.tried[0], list(self.tried)
        count = max(1, math.ceil(math.log2(len(alive))))
        for number in range(count):
            self._round(alive, number, count)
            alive = self._better_half(alive, usual)
            if self.was_cut:
                break
        if not usual.rounds:
            raise usual.error or LlmcliError("the time budget is too small to measure anything", hint="--budget 5m")
        winner = min(alive, key=lambda one: one.request_s)
        if winner is usual:
            return Verdict(usual, usual, 0.0, None)
        return self._final(winner, usual)

    def _round(self, alive: Sequence[Tried], number: int, count: int) -> None:
        share = 1 / 2 ** (count - 1 - number)
        for place, one in enumerate(alive, start=1):
            # The first candidate of a sweep is always measured, whatever the budget.
            if self._clock() > self._rounds_end and (number or place > 1):
                self.was_cut = True
                return
            self._on_step(f"round {number + 1} of {count}, {place} of {len(alive)}: {one.candidate.label}")
            if (seconds := self._measure(one, share)) is not None:
                one.rounds.append(seconds)

    def _measure(self, one: Tried, share: float) -> float | None:
        """The request's time, from that share of its sizes; None where it fails, and then the candidate tells why."""
        prompt = max(min(_LEAST_PROMPT, self._options.n_prompt), round(self._options.n_prompt * share))
        answer = max(min(_LEAST_ANSWER, self._options.n_gen), round(self._options.n_gen * share))
        try:
            return self._request_s(one, prompt, answer)
        except (AbortedError, UserInterruptError):
            raise UserInterruptError from None
        except LlmcliError as error:
            one.error = error
            return None

    def _request_s(self, one: Tried, n_prompt: int, n_gen: int) -> float:
        """Measure shorter sizes, and say how long the whole request would take at these rates."""
        total = 0.0
        for sizes, wanted in ((Sizes(n_prompt), self._options.n_prompt), (Sizes(0, n_gen), self._options.n_gen)):
            if wanted:
                result = self._runner.measure(self._trial(one.candidate, sizes), one.candidate.label)
                if self._runner.stop.is_set():
                    raise UserInterruptError
                one.plan = result.plan
                total += wanted / result.summary.median
        return total

    def _trial(self, candidate: Candidate, sizes: Sizes) -> Trial:
        request = Request(
            n_ctx=self._options.n_prompt + self._options.n_gen,
            n_threads=candidate.n_threads,
            n_batch=candidate.n_batch,
            n_ubatch=candidate.n_ubatch,
            flash_attn=candidate.flash_attn,
            type_k=candidate.type_k,
            type_v=candidate.type_v,
            rope_scaled=True,
        )
        return Trial(candidate.model or self._reference, request, sizes)

    @staticmethod
    def _better_half(alive: Sequence[Tried], usual: Tried) -> list[Tried]:
        """The better half, and the settings as they are. What was not measured in a round that was cut keeps the time
        of the round before.
        """
        ranked = sorted((one for one in alive if one.rounds and one.error is None), key=lambda one: one.request_s)
        kept = ranked[: max(1, math.ceil(len(ranked) / 2))]
        return kept if usual in kept or usual.error is not None else [*kept, usual]

    def _final(self, winner: Tried, usual: Tried) -> Verdict:
        """Both in turns, who is first changing every round. A failure ends it; what was measured by then decides."""
        for number in range(_FINAL_ROUNDS):
            if number >= LEAST_SAMPLES and self._clock() > self._ends:
                break
            self._on_step(f"final {number + 1} of {_FINAL_ROUNDS}: {winner.candidate.label}")
            pair = (winner, usual) if number % 2 else (usual, winner)
            if (first := self._measure(pair[0], 1)) is None or (second := self._measure(pair[1], 1)) is None:
                break
            pair[0].samples.append(first)
            pair[1].samples.append(second)
        if len(winner.samples) < LEAST_SAMPLES:
            return Verdict(winner, usual, 0.0, None)
        gain = 1 - statistics.median(winner.samples) / statistics.median(usual.samples)
        return Verdict(winner, usual, gain, rank_test(usual.samples, winner.samples))


def by_value(tried: Sequence[Tried], name: str) -> list[tuple[str, float]]:
    """The curve of one setting: each of its values with the shortest time of the first round that it had part in."""
    best: dict[str, float] = {}
    for one in tried:
        if one.rounds:
            value = str(getattr(one.candidate, name))
            best[value] = min(best.get(value, math.inf), one.rounds[0])
    return list(best.items())


def run_options() -> RunOptions:
    """One sample behind a warm-up: rounds repeat, not samples."""
    return RunOptions(repetitions=1, warmup=True)
