"""Successive halving on rates that are made up, and on a tiny model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import LlmcliError, UsageError, UserInterruptError
from llmcli.base.settings import load
from llmcli.bench.result import Result
from llmcli.bench.run import Runner, find_models
from llmcli.bench.sweep import Candidate, Sweep, SweepOptions, by_value, candidates, run_options
from llmcli.bench.trials import Trial
from llmcli.engine.context import AbortedError
from llmcli.engine.interrupt import StopFlag
from tests.bench_case import PLAN, result
from tests.test_bench_run import Nobody

OPTIONS = SweepOptions(budget_s=1000, n_prompt=512, n_gen=128)


class Made:
    """A runner whose rates are a function of the settings; every measurement takes a second of its clock."""

    def __init__(self, rate: Callable[[Trial], float]) -> None:
        self.rate, self.stop, self.now = rate, StopFlag(), 0.0
        self.trials: list[Trial] = []

    def measure(self, trial: Trial, _where: str) -> Result:
        self.trials.append(trial)
        self.now += 1
        rate = self.rate(trial)
        plan = replace(PLAN, n_threads=trial.request.n_threads or 8, n_ubatch=trial.request.n_ubatch or 256)
        return result(rate * (1 + 0.001 * (len(self.trials) % 5)), sizes=trial.sizes, plan=plan)


def sweep(made: Made, **changes: Any) -> Sweep:
    runner: Any = made
    return Sweep(runner, None, replace(OPTIONS, **changes), lambda _text: None, clock=lambda: made.now)


def by_threads(trial: Trial) -> float:
    return 100.0 - 5 * abs((trial.request.n_threads or 8) - 6)  # 6 threads are best, 8 are the usual ones


EIGHT = candidates((1, 2, 3, 4, 5, 6, 7), (None,), (None,), ("auto",), (("f16", "f16"),))


def test_candidates() -> None:
    found = candidates((1, 2), (None,), (64, 256), ("on", "off"), (("f16", "f16"), ("q8_0", "q8_0")))
    assert found[0] == Candidate()
    assert len(found) == 1 + 2 * 2 * 3  # a quantized V cache needs flash attention
    assert len(set(found)) == len(found)
    assert candidates((None,), (None,), (None,), ("auto",), (("f16", "f16"),)) == [Candidate()]


def test_more_candidates_than_anyone_waits_for() -> None:
    many = tuple(range(1, 1001))
    with pytest.raises(UsageError, match="1,000,000,000 combinations"):
        candidates(many, many, many, ("on",), (("f16", "f16"),))


def test_labels_and_config() -> None:
    one = Candidate(2, None, 64, "on", "q8_0", "q8_0")
    assert one.label == "-t 2 -ub 64 -fa on -ctk q8_0 -ctv q8_0"
    assert Candidate().label == "as it is"
    assert Candidate(quant="Q4_0 (5 MiB)").label == "Q4_0 (5 MiB)"
    plan = replace(PLAN, n_threads=2, n_ubatch=64)
    assert one.as_config(plan) == {
        "threads": 2,
        "batch_size": 2048,
        "ubatch_size": 64,
        "flash_attn": "on",
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
    }
    assert Candidate(2).as_config(plan) == {"threads": 2, "batch_size": 2048, "ubatch_size": 64}


def test_the_best_wins_and_half_goes_on() -> None:
    made = Made(by_threads)
    found = sweep(made)
    verdict = found.run(EIGHT)
    assert verdict.winner.candidate.n_threads == 6
    assert verdict.usual.candidate == Candidate()
    assert verdict.is_better
    assert verdict.gain == pytest.approx(0.1, abs=0.01)
    assert not found.was_cut
    rounds = {one.candidate.n_threads: len(one.rounds) for one in found.tried}
    assert [rounds[threads] for threads in (1, 2, 3)] == [1, 1, 1]
    assert (rounds[6], rounds[None]) == (3, 3)
    assert sum(count > 1 for count in rounds.values()) in (4, 5)  # half, and perhaps the usual one
    assert len(verdict.usual.rounds) == 3
    assert len(verdict.winner.samples) == len(verdict.usual.samples) == 7


def test_sizes_double_and_times_are_of_the_whole_request() -> None:
    made = Made(lambda _trial: 100.0)
    found = sweep(made)
    found.run(EIGHT)
    prompts = list(dict.fromkeys(trial.sizes.n_prompt for trial in made.trials if trial.sizes.n_prompt))
    answers = list(dict.fromkeys(trial.sizes.n_gen for trial in made.trials if trial.sizes.n_gen))
    assert (prompts, answers) == ([128, 256, 512], [32, 64, 128])
    assert all(one.rounds[0] == pytest.approx(640 / 100, rel=0.01) for one in found.tried)
    assert all(trial.request.n_ctx == 640 for trial in made.trials)


def test_the_usual_settings_win_where_nothing_is_faster() -> None:
    verdict = sweep(Made(lambda trial: 100.0 if trial.request.n_threads is None else 50.0)).run(EIGHT)
    assert verdict.winner is verdict.usual
    assert not verdict.is_better


def test_noise_is_no_win() -> None:
    rates = iter([100, 104, 97, 103, 99, 101, 96, 105] * 20)
    verdict = sweep(Made(lambda _trial: next(rates))).run(EIGHT)
    assert not verdict.is_better


def test_the_budget_ends_it() -> None:
    made = Made(by_threads)
    found = sweep(made, budget_s=12)  # 60% of it are seven measurements, and a candidate takes two
    verdict = found.run(EIGHT)
    assert found.was_cut
    assert [len(one.rounds) for one in found.tried] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert verdict.winner.candidate == Candidate()
    assert sweep(Made(by_threads), budget_s=0).run(EIGHT).winner.candidate == Candidate()


def test_what_fails_is_left_out() -> None:
    def rate(trial: Trial) -> float:
        if trial.request.n_threads == 6:
            raise LlmcliError("six do not work")
        return by_threads(trial)

    found = sweep(Made(rate))
    verdict = found.run(EIGHT)
    assert verdict.winner.candidate.n_threads in (5, 7)
    assert [one.problem for one in found.tried if one.problem] == ["six do not work"]
    assert found.tried[6].as_json()["request_s"] is None

    def nothing(_trial: Trial) -> float:
        raise LlmcliError("nothing works")

    with pytest.raises(LlmcliError, match="nothing works"):
        sweep(Made(nothing)).run(EIGHT)


class NoMemoryError(LlmcliError):
    exit_code = 6


def test_what_fails_at_once_keeps_its_exit_code() -> None:
    def nothing(_trial: Trial) -> float:
        raise NoMemoryError("too large")

    with pytest.raises(NoMemoryError):
        sweep(Made(nothing)).run(EIGHT)


@pytest.mark.parametrize(("rounds", "p_is_known"), [(1, False), (5, True)])
def test_a_failure_in_the_final_keeps_what_was_measured(rounds: int, p_is_known: bool) -> None:
    made = Made(by_threads)
    found = sweep(made)

    def rate(trial: Trial) -> float:
        if len(found.tried[0].samples) == rounds:
            raise NoMemoryError("no more")
        return by_threads(trial)

    made.rate = rate
    verdict = found.run(EIGHT)
    assert verdict.winner.candidate.n_threads == 6
    assert len(verdict.winner.samples) == len(verdict.usual.samples) == rounds
    assert (verdict.p_value is not None) is verdict.is_better is p_is_known
    assert [one.problem for one in found.tried if one.problem] == ["no more"]


def test_a_stop_in_the_final_is_a_stop() -> None:
    made = Made(by_threads)
    found = sweep(made)

    def rate(trial: Trial) -> float:
        if found.tried[0].samples:
            raise AbortedError("stopped")
        return by_threads(trial)

    made.rate = rate
    with pytest.raises(UserInterruptError):
        found.run(EIGHT)
    assert all(one.rounds for one in found.tried)


def test_a_stop_ends_it() -> None:
    made = Made(by_threads)

    def rate(trial: Trial) -> float:
        if len(made.trials) == 5:
            made.stop.set()
        return by_threads(trial)

    made.rate = rate
    found = sweep(made)
    with pytest.raises(UserInterruptError):
        found.run(EIGHT)
    assert sum(bool(one.rounds) for one in found.tried) == 2


def test_only_a_prompt_counts_where_no_answer_is_asked_for() -> None:
    made = Made(by_threads)
    sweep(made, n_gen=0).run(EIGHT)
    assert {trial.sizes.n_gen for trial in made.trials} == {0}


def test_the_curve_of_a_setting() -> None:
    found = sweep(Made(by_threads))
    found.run(EIGHT)
    curve = dict(by_value(found.tried, "n_threads"))
    assert list(curve) == ["None", "1", "2", "3", "4", "5", "6", "7"]
    assert min(curve, key=lambda value: curve[value]) == "6"
    assert all(math.isfinite(seconds) for seconds in curve.values())


def test_on_a_model(scripted_model: Callable[..., Path]) -> None:
    model, settings = str(scripted_model(["hi"])), load()
    wanted = candidates((1,), (None,), (32, 64), ("on",), (("f16", "f16"), ("q8_0", "q8_0")))
    with Runner(settings, find_models([model], settings, Nobody()), run_options(), StopFlag()) as runner:
        found = Sweep(runner, model, SweepOptions(60, 48, 8), lambda _text: None)
        verdict = found.run(wanted)
    assert [one.problem for one in found.tried] == [None] * 5
    assert all(one.rounds for one in found.tried)
    assert verdict.winner.plan
