"""Running trials on tiny models: N tokens are N tokens, what fails leaves the rest, a stop keeps what is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmcli.base.errors import ModelError
from llmcli.base.settings import load
from llmcli.bench.result import Failed, Result
from llmcli.bench.run import Runner, RunOptions, Test, any_tokens, find_models
from llmcli.bench.sizes import Sizes
from llmcli.bench.trials import Grid, Trial, trials
from llmcli.engine.context import Context
from llmcli.engine.interrupt import StopFlag
from llmcli.models.progress import ProgressFactory, SilentProgress
from tests.fixtures.engines import open_session

KINDS = ["plain", "iswa", "hybrid", "mamba"]


class Nobody:
    """A reporter for nobody."""

    def notify(self, line: str) -> None:
        raise AssertionError(line)

    @property
    def progress(self) -> ProgressFactory:
        return lambda _title, _total, _unit="": _Silence()


class _Silence:
    def __enter__(self) -> SilentProgress:
        return SilentProgress()

    def __exit__(self, *_: object) -> None:
        pass


def outcomes(
    wanted: tuple[Trial, ...], *, repetitions: int = 2, warmup: bool = True, stop: StopFlag | None = None
) -> Iterator[Result | Failed]:
    settings = load()
    found = find_models((trial.model for trial in wanted), settings, Nobody())
    options = RunOptions(repetitions, warmup=warmup)
    with Runner(settings, found, options, stop or StopFlag()) as runner:
        yield from runner.run(wanted)


def results(wanted: tuple[Trial, ...], repetitions: int = 2) -> list[Result]:
    found = list(outcomes(wanted, repetitions=repetitions))
    assert all(isinstance(one, Result) for one in found), found
    return [one for one in found if isinstance(one, Result)]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(position, tokens) of every decode from now on."""
    calls: list[tuple[int, int]] = []
    decode = Context.decode

    def count(self: Context, tokens: list[int], position: int, *, want_logits: bool) -> None:
        calls.append((position, len(tokens)))
        decode(self, tokens, position, want_logits=want_logits)

    monkeypatch.setattr(Context, "decode", count)
    return calls


def test_a_model_that_ends_after_two_tokens_computes_all_that_were_asked_for(
    scripted_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = scripted_model(["Hello", " world"])
    calls = counted(monkeypatch)
    (found,) = results(trials(Grid(models=(str(model),), n_prompt=(0,), n_gen=(9,), n_threads=(1,))), repetitions=1)
    assert calls == [(i, 1) for i in range(9)] * 2  # the warm-up, and the one that counts
    assert found.sizes.timed_tokens == 9
    assert found.samples_ts == (9e9 / found.samples_ns[0],)


def test_the_prompt_goes_in_pieces_of_the_physical_batch(
    random_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch)
    grid = Grid(models=(str(random_model("plain")),), n_prompt=(150,), n_gen=(0,), n_ubatch=(64,), n_threads=(1,))
    (found,) = results(trials(grid), repetitions=2)
    assert calls == [(0, 64), (64, 64), (128, 22)] * 3
    assert len(found.samples_ns) == 2
    assert (found.plan.n_ctx, found.plan.n_ubatch, found.repetitions, found.trouble) == (150, 64, 2, None)


def test_no_warmup(random_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    grid = Grid(models=(str(random_model("plain")),), n_prompt=(8,), n_gen=(0,), n_threads=(1,))
    assert [len(one.samples_ns) for one in outcomes(trials(grid), warmup=False) if isinstance(one, Result)] == [2]
    assert calls == [(0, 8)] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_depth_and_pairs(kind: str, random_model: Callable[[str], Path]) -> None:
    grid = Grid(
        models=(str(random_model(kind)),), n_prompt=(0,), n_gen=(0,), pairs=((16, 4),), n_depth=(0, 40), n_threads=(1,)
    )
    found = results(trials(grid))
    assert [one.sizes.name for one in found] == ["pp16+tg4", "pp16+tg4 @ d40"]
    assert [one.plan.n_ctx for one in found] == [20, 60]


@pytest.mark.parametrize("kind", KINDS)
def test_every_repetition_ends_with_the_same_logits(kind: str, random_model: Callable[[str], Path]) -> None:
    """Whether the depth is cut back to or computed again, the context is the same one."""
    with open_session(random_model(kind), n_ctx=256) as session:
        test = Test(session.context, Sizes(n_prompt=20, n_gen=3, n_depth=70))
        test.once()
        first = bytes(session.context.logits())
        assert session.context.length() == 93
        test.once()
        assert session.context.length() == 93
        assert bytes(session.context.logits()) == first


def test_the_model_is_loaded_once_for_a_row_of_trials(random_model: Callable[[str], Path]) -> None:
    grid = Grid(models=(str(random_model("plain")),), n_prompt=(8, 16), n_gen=(4,), n_ubatch=(64, 128), n_threads=(1,))
    assert len({one.load_s for one in results(trials(grid), repetitions=1)}) == 1


def test_what_fails_in_the_middle_leaves_the_rest(
    scripted_model: Callable[..., Path], random_model: Callable[[str], Path], tmp_path: Path
) -> None:
    good, broken = scripted_model(["hi"]), tmp_path / "broken.gguf"
    broken.write_bytes(good.read_bytes()[:5000])
    models = (str(good), str(broken), str(tmp_path / "missing.gguf"), str(random_model("plain")))
    found = list(outcomes(trials(Grid(models=models, n_prompt=(8,), n_gen=(0,), n_threads=(1,)))))
    assert [type(one) for one in found] == [Result, Failed, Failed, Result]
    errors = [one.error for one in found if isinstance(one, Failed)]
    assert all(isinstance(error, ModelError) for error in errors)
    assert "missing.gguf" in errors[1].message


def test_a_failure_after_samples_keeps_them(
    random_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    once, calls = Test.once, []

    def fail_third(self: Test) -> int:
        calls.append(1)
        if len(calls) == 4:
            raise ModelError("the fourth")
        return once(self)

    monkeypatch.setattr(Test, "once", fail_third)
    grid = Grid(models=(str(random_model("plain")),), n_prompt=(8,), n_gen=(4,), n_threads=(1,))
    first, second = outcomes(trials(grid), repetitions=5)
    assert isinstance(first, Result)
    assert (len(first.samples_ns), first.trouble) == (2, "the fourth")
    assert isinstance(second, Result)
    assert (len(second.samples_ns), second.trouble) == (5, None)


@pytest.mark.parametrize("runs", [1, 3])
def test_a_stop_keeps_what_was_measured(
    runs: int, random_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, once, calls = StopFlag(), Test.once, []

    def stop_after(self: Test) -> int:
        calls.append(1)
        if len(calls) > runs:
            stop.set()
        return once(self)

    monkeypatch.setattr(Test, "once", stop_after)
    grid = Grid(models=(str(random_model("plain")),), n_prompt=(8,), n_gen=(4,), n_threads=(1,))
    found = list(outcomes(trials(grid), repetitions=9, stop=stop))
    # One run is the warm-up, which leaves nothing to show.
    assert [len(one.samples_ns) for one in found if isinstance(one, Result)] == ([] if runs == 1 else [runs - 1])
    assert [one.trouble for one in found if isinstance(one, Result)] == ["interrupted"] * (runs > 1)


def test_memory_and_times_are_there(random_model: Callable[[str], Path]) -> None:
    (found,) = results(trials(Grid(models=(str(random_model("plain")),), n_prompt=(8,), n_gen=(0,), n_threads=(1,))))
    assert found.peak_bytes is None or found.peak_bytes > 10 << 20
    assert found.load_s > 0 < found.context_s
    assert set(found.environment) == {"machine", "build", "versions", "conditions"}
    assert found.test_time.endswith("Z")


def test_tokens_are_the_same_every_time(random_model: Callable[[str], Path]) -> None:
    with open_session(random_model("plain")) as session:
        tokenizer = session.context.model.tokenizer
        assert any_tokens(tokenizer, 40) == any_tokens(tokenizer, 40)
        assert len(any_tokens(tokenizer, 40)) == 40
        assert any_tokens(tokenizer, 0) == []
        assert all(0 <= token < tokenizer.n_vocab for token in any_tokens(tokenizer, 200))


def test_the_delay_is_a_rest_before_each_trial(
    random_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, naps = [0.0], list[float]()

    def nap(seconds: float) -> None:
        naps.append(seconds)
        clock[0] += seconds

    made = SimpleNamespace(
        sleep=nap, monotonic=lambda: clock[0], perf_counter=time.perf_counter, perf_counter_ns=time.perf_counter_ns
    )
    monkeypatch.setattr("llmcli.bench.run.time", made)
    wanted = trials(Grid(models=(str(random_model("plain")),), n_prompt=(8,), n_gen=(4,), n_threads=(1,)))
    settings = load()
    found = find_models([trial.model for trial in wanted], settings, Nobody())
    with Runner(settings, found, RunOptions(1, delay_s=0.35), StopFlag()) as runner:
        assert len(list(runner.run(wanted))) == 2
    assert sum(naps) == pytest.approx(0.7)
    assert max(naps) <= 0.1  # so that a stop is heard
