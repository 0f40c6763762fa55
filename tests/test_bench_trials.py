"""The cross product: every combination once, and models in a row."""

from __future__ import annotations

import pytest

from llmcli.base.errors import UsageError
from llmcli.bench.sizes import Sizes
from llmcli.bench.trials import Grid, trials


def test_the_usual_two() -> None:
    found = trials(Grid())
    assert [trial.sizes for trial in found] == [Sizes(n_prompt=512), Sizes(n_gen=128)]
    assert [trial.request.n_ctx for trial in found] == [512, 128]
    assert all(trial.model is None and trial.request.n_threads is None for trial in found)


def test_a_size_of_0_takes_the_kind_out() -> None:
    assert [trial.sizes for trial in trials(Grid(n_prompt=(0,)))] == [Sizes(n_gen=128)]
    assert [trial.sizes for trial in trials(Grid(n_gen=(0,)))] == [Sizes(n_prompt=512)]
    assert trials(Grid(n_prompt=(0,), n_gen=(0,))) == ()


def test_order_is_that_of_llama_bench() -> None:
    grid = Grid(
        models=("a", "b"), n_prompt=(8,), n_gen=(4,), pairs=((8, 4),), n_depth=(0, 16), n_threads=(1, 2),
        n_ubatch=(64, 128), flash_attn=("on", "off"), type_k=("f16", "q8_0"),
    )  # fmt: skip
    found = trials(grid)
    assert len(found) == 2 * 2 * 2 * 2 * 2 * 2 * 3
    assert [trial.sizes.name for trial in found[:6]] == [
        *("pp8", "tg4", "pp8+tg4"),
        *("pp8 @ d16", "tg4 @ d16", "pp8+tg4 @ d16"),
    ]
    settings = [
        (t.model, t.request.n_ubatch, t.request.type_k, t.request.flash_attn, t.request.n_threads) for t in found
    ]
    assert settings == sorted(settings, key=lambda s: (s[0] or "", s[1] or 0, s[2], s[3] == "off", s[4] or 0))
    assert len(set(settings)) == 32
    assert [trial.model for trial in found] == ["a"] * 96 + ["b"] * 96


def test_more_tests_than_anyone_waits_for() -> None:
    many = tuple(range(1, 1001))
    with pytest.raises(UsageError, match="stands for 2,000,000,000 tests"):
        trials(Grid(n_prompt=many, n_gen=many, n_depth=many, n_threads=many))
    assert len(trials(Grid(n_prompt=many, n_gen=(0,), n_threads=(1, 2, 3)))) == 3000


def test_what_can_share_a_loaded_model() -> None:
    first, second = trials(Grid(n_gen=(0,), n_ubatch=(64, 128)))
    assert first.load_key == second.load_key
    one, other = trials(Grid(n_gen=(0,), n_gpu_layers=(0, 1)))
    assert one.load_key != other.load_key
