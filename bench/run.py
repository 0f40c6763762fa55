"""Runs trials: loads each model once, makes a context per trial, warms up, and times the repetitions.

What is timed is what llama-bench times: `llama_decode` of tokens that are given, in pieces of the physical batch, and
one by one; no sampling, no text. So the model never ends early, and N tokens are N tokens. A depth is computed once
and cut back to between repetitions where the memory allows that.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from llmcli.base.errors import LlmcliError, UserInterruptError
from llmcli.base.settings import Settings
from llmcli.bench.environment import conditions, describe
from llmcli.bench.result import Failed, Measured, Result
from llmcli.bench.sizes import Sizes
from llmcli.bench.trials import Trial
from llmcli.engine.context import AbortedError, Context
from llmcli.engine.engine import Reporter, find_model, plan_for
from llmcli.engine.interrupt import StopFlag
from llmcli.engine.model import Model
from llmcli.engine.plan import RunPlan
from llmcli.engine.preflight import check_build
from llmcli.engine.tokenizer import Tokenizer
from llmcli.hardware.conditions import peak_bytes, reset_peak
from llmcli.models.identity import Inspected
from llmcli.models.resolve import ResolvedModel

_SEED = 7
_NS = 1_000_000_000
_NAP_S = 0.1


@dataclass(frozen=True, slots=True)
class RunOptions:
    """delay_s: a rest before each trial, so that a machine that heats up can cool down."""

    repetitions: int = 5
    warmup: bool = True
    delay_s: float = 0.0


Found = tuple[ResolvedModel, Inspected]


def find_models(
    references: Iterable[str | None], settings: Settings, reporter: Reporter
) -> dict[str | None, Found | LlmcliError]:
    """Every model, found, checked and hashed, or why not. Not timed, and ended by KeyboardInterrupt."""
    found: dict[str | None, Found | LlmcliError] = {}
    for reference in references:
        if reference not in found:
            try:
                found[reference] = find_model(reference, settings, reporter, need_vocabulary=False)
            except LlmcliError as error:
                found[reference] = error
    return found


@dataclass(slots=True)
class Runner:
    """Measures one trial after the other; a context manager, which frees the model that is loaded.

    found       what `find_models` gave
    on_step     told what is about to be done, for people who wait
    """

    settings: Settings
    found: dict[str | None, Found | LlmcliError]
    options: RunOptions
    stop: StopFlag
    on_step: Callable[[str], None] = lambda _text: None
    environment: dict[str, Any] = field(default_factory=dict)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _loaded: tuple[tuple[object, ...], Model, float] | None = None

    def __enter__(self) -> Runner:
        check_build(self.settings)
        self.environment = describe(self.settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, trials: Sequence[Trial]) -> Iterator[Result | Failed]:
        """The results as they come. What fails is told and does not end the rest; a stop does."""
        for number, trial in enumerate(trials, start=1):
            if self.stop.is_set():
                return
            where = f"{number}/{len(trials)} {trial.sizes.name}"
            outcome: Result | Failed
            try:
                outcome = self.measure(trial, where)
            except (AbortedError, UserInterruptError):
                return
            except LlmcliError as error:
                outcome = Failed(trial, error)
            yield outcome

    def measure(self, trial: Trial, where: str = "") -> Result:
        """One trial. Raises the LlmcliError of what fails before the first sample; AbortedError after a stop."""
        found = self.found[trial.model]
        if isinstance(found, LlmcliError):
            raise found
        resolved, inspected = found
        plan = plan_for(trial.request, inspected.facts)
        self.on_step(f"{where}: loading")
        model, load_s = self._model(trial, inspected, plan)
        self._rest()
        now = conditions()
        reset_peak()
        begun = time.perf_counter()
        with Context(model, plan, stop=self.stop) as context:
            context_s = time.perf_counter() - begun
            test = Test(context, trial.sizes)
            samples, error = self._samples(test, where)
        if not samples:
            raise error or AbortedError("interrupted")
        return Result(
            model=Measured(
                resolved.name, str(inspected.path), inspected.content_id, model.description, inspected.facts
            ),
            sizes=trial.sizes,
            plan=plan,
            samples_ns=tuple(samples),
            load_s=load_s,
            context_s=context_s,
            peak_bytes=peak_bytes(),
            test_time=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            environment={**self.environment, "conditions": now},
            repetitions=self.options.repetitions,
            trouble=error.message if error else None,
        )

    def _model(self, trial: Trial, inspected: Inspected, plan: RunPlan) -> tuple[Model, float]:
        """The trial's model, kept from the one before where it is the same."""
        key = trial.load_key
        if self._loaded is None or self._loaded[0] != key:
            self._stack.close()
            self._loaded = None
            begun = time.perf_counter()
            model = Model.load(
                inspected.path, plan, n_layer=inspected.facts.n_layer, on_progress=lambda _: not self.stop.is_set()
            )
            self._stack.enter_context(model)
            self._loaded = key, model, time.perf_counter() - begun
        return self._loaded[1], self._loaded[2]

    def _rest(self) -> None:
        """The delay, in naps: a stop ends it."""
        ends = time.monotonic() + self.options.delay_s
        while (left := ends - time.monotonic()) > 0 and not self.stop.is_set():
            time.sleep(min(left, _NAP_S))

    def _samples(self, test: Test, where: str) -> tuple[list[int], LlmcliError | None]:
        """Nanoseconds of the repetitions, and what ended them early."""
        samples: list[int] = []
        try:
            if self.options.warmup:
                self.on_step(f"{where}: warming up")
                test.once()
            for number in range(1, self.options.repetitions + 1):
                self.on_step(f"{where}: run {number} of {self.options.repetitions}")
                samples.append(test.once())
        except LlmcliError as error:
            return samples, error
        return samples, None


class Test:
    """One test in one context."""

    __test__ = False  # not for pytest

    def __init__(self, context: Context, sizes: Sizes) -> None:
        self._context, self._sizes = context, sizes
        tokenizer = context.model.tokenizer
        self._depth = any_tokens(tokenizer, sizes.n_depth)
        self._prompt = any_tokens(tokenizer, sizes.n_prompt, at_start=not sizes.n_depth)
        self._answer = any_tokens(tokenizer, sizes.n_gen, at_start=not sizes.n_depth and not sizes.n_prompt)

    def once(self) -> int:
        """Run it; the nanoseconds it took. Raises AbortedError after a stop, LlmcliError where llama.cpp fails."""
        self._go_to_depth()
        position = self._sizes.n_depth
        begun = time.perf_counter_ns()
        self._compute(self._prompt, position)
        position += len(self._prompt)
        for number, token in enumerate(self._answer):
            self._context.decode((token,), position + number, want_logits=True)
            self._context.synchronize()
        return max(1, time.perf_counter_ns() - begun)

    def _go_to_depth(self) -> None:
        depth = self._sizes.n_depth
        if depth and self._context.length() >= depth and self._context.remove_from(depth):
            return
        self._context.clear()
        self._compute(self._depth, 0)

    def _compute(self, tokens: Sequence[int], position: int) -> None:
        if not tokens:
            return
        step = self._context.plan.n_ubatch
        for start in range(0, len(tokens), step):
            piece = tokens[start : start + step]
            self._context.decode(piece, position + start, want_logits=start + step >= len(tokens))
        self._context.synchronize()


def any_tokens(tokenizer: Tokenizer, count: int, *, at_start: bool = True) -> list[int]:
    """So many tokens, the same in every run, the first of them BOS where the model begins with it."""
    pick = random.Random(_SEED)  # noqa: S311  # the same tokens every time are what is wanted
    tokens = [pick.randrange(tokenizer.n_vocab) for _ in range(count)]
    if tokens and at_start and tokenizer.adds_bos and tokenizer.bos is not None:
        tokens[0] = tokenizer.bos
    return tokens
