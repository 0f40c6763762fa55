"""Comparisons: what is refused as unlike, how far medians are apart, and what samples can show."""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from llmcli.base.errors import UsageError
from llmcli.bench.compare import (
    ASPECTS,
    Aspect,
    compare,
    differences,
    rank_test,
    ratio_interval,
    require_alike,
)
from llmcli.bench.limits import missed, parse_limit
from llmcli.bench.result import LLAMA_BENCH_FIELDS, Row
from llmcli.bench.sizes import Sizes
from tests.bench_case import ENVIRONMENT, MODEL, PLAN, row

STEADY = (100, 101, 99, 100.5, 99.5)
SLOWER = (90, 91, 89, 90.5, 89.5)
TG = Sizes(n_gen=128)


def changed(group: str, name: str, value: Any) -> dict[str, Any]:
    made = copy.deepcopy(ENVIRONMENT)
    made[group][name] = value
    return made


def test_alike() -> None:
    require_alike([row(*STEADY)], [row(*SLOWER)], ())
    loaded = row(*STEADY, environment=changed("conditions", "load_1min", 9.0))
    assert differences([row(*STEADY)], [loaded]) == {}


@pytest.mark.parametrize(
    ("aspect", "changes"),
    [
        ("machine", {"environment": changed("machine", "cpu", "Xeon")}),
        ("machine", {"environment": changed("machine", "quota", 1.5)}),
        ("machine", {"environment": changed("machine", "cores_usable", 4)}),
        ("machine", {"environment": changed("conditions", "governor", "powersave")}),
        ("build", {"environment": changed("build", "engine", "llama-cpp-python 2")}),
        ("model", {"model": replace(MODEL, content_id="cd" * 32)}),
        ("settings", {"plan": replace(PLAN, n_threads=4)}),
        ("settings", {"plan": replace(PLAN, type_k="q8_0")}),
    ],
)
def test_unlike(aspect: Aspect, changes: dict[str, Any]) -> None:
    one, other = [row(*STEADY)], [row(*STEADY, **changes)]
    with pytest.raises(UsageError, match=f"not made alike, {aspect}: ") as caught:
        require_alike(one, other, [a for a in ASPECTS if a != aspect])
    assert caught.value.hint == f"if that is meant: --across {aspect}"
    require_alike(one, other, [aspect])


def test_the_medians_and_their_change() -> None:
    (found,) = compare([row(*STEADY)], [row(*SLOWER)]).changes
    assert (found.test, found.kind, found.n_before, found.n_after) == ("pp512", "pp", 5, 5)
    assert found.before_ts == pytest.approx(statistics.median(STEADY))
    assert found.change == pytest.approx(-0.1)
    assert found.p_value == pytest.approx(2 / math.comb(10, 5))  # wholly apart: the least there is with 5 and 5
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.change <= found.high < 0
    assert found.verdict == "slower"
    assert compare([row(*SLOWER)], [row(*STEADY)]).changes[0].verdict == "faster"


def test_noise_shows_nothing() -> None:
    (found,) = compare([row(100, 120, 80, 110, 90)], [row(95, 115, 78, 105, 88)]).changes
    assert found.verdict == "same"
    assert found.low is not None
    assert found.low < 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_too_few_samples(count: int) -> None:
    (found,) = compare([row(*STEADY)], [row(*SLOWER[:count])]).changes
    assert (found.verdict, found.p_value, found.low) == ("unclear", None, None)
    assert found.change < -0.05


def test_the_rank_test_is_scipys_and_falls_as_samples_part() -> None:
    near, far = (99, 100, 101, 102), (120, 121, 122, 123)
    assert rank_test(STEADY, near) == float(mannwhitneyu(STEADY, near).pvalue)
    assert rank_test(STEADY, far) < 0.05 < rank_test(STEADY, near)


def test_the_interval_covers_what_resampling_gives() -> None:
    low, high = ratio_interval(STEADY, SLOWER)
    assert (low, high) == ratio_interval(STEADY, SLOWER)  # the same seed
    pick = np.random.default_rng(1)
    ratios = [
        np.median(pick.choice(SLOWER, 5)) / np.median(pick.choice(STEADY, 5)) - 1  #
        for _ in range(3000)
    ]
    assert low == pytest.approx(np.percentile(ratios, 2.5), abs=0.006)
    assert high == pytest.approx(np.percentile(ratios, 97.5), abs=0.006)
    assert ratio_interval((100, 100, 100), (90, 90, 90)) == pytest.approx((-0.1, -0.1))


def test_pairs_by_sizes_model_and_settings() -> None:
    threads = [replace(PLAN, n_threads=count) for count in (1, 2)]
    before = [row(*STEADY, plan=plan) for plan in threads] + [row(*STEADY, sizes=TG)]
    after = [row(*SLOWER, plan=plan) for plan in reversed(threads)] + [row(*STEADY, sizes=Sizes(n_prompt=64))]
    found = compare(before, after)
    assert [change.test for change in found.changes] == ["pp512", "pp512"]
    assert (found.only_before, found.only_after) == (("tg128",), ("pp64",))


def test_across_models_pairs_by_sizes() -> None:
    other = row(*SLOWER, model=replace(MODEL, content_id="cd" * 32))
    assert compare([row(*STEADY)], [other]).changes == ()
    assert len(compare([row(*STEADY)], [other], across=["model"]).changes) == 1


def test_load_and_memory() -> None:
    before, after = row(*STEADY, load_s=0.5, peak_bytes=100), row(*STEADY, load_s=0.75, peak_bytes=None)
    (found,) = compare([before], [after]).changes
    assert (found.load_change, found.memory_change) == (0.5, None)


def test_json_names() -> None:
    (found,) = compare([row(*STEADY)], [row(*SLOWER)]).changes
    assert list(found.as_json()) == [
        *("test", "before_ts", "after_ts", "n_before", "n_after", "change", "low", "high", "p_value", "verdict"),
        *("load_change", "memory_change"),
    ]


def test_rows_of_llama_bench_are_compared_by_what_they_have() -> None:
    ours = row(*SLOWER)
    names = [name for name in ours if name in LLAMA_BENCH_FIELDS or name.startswith("samples_")]
    theirs = {**{name: ours[name] for name in names}, "build_commit": "0c1e570", "n_gpu_layers": -1}
    theirs["samples_ts"] = list(STEADY)
    assert list(differences([theirs], [ours])) == ["build"]
    require_alike([theirs], [ours], ["build"])
    (found,) = compare([theirs], [ours], across=["build"]).changes
    assert found.verdict == "slower"
    assert (found.load_change, found.memory_change) == (None, None)
    other = {**theirs, "cpu_info": "Xeon", "model_size": 1}
    assert list(differences([other], [ours])) == ["machine", "build", "model"]


# Limits


def over(text: str, before: list[Row], after: list[Row]) -> list[str]:
    return [change.test for _, change in missed([parse_limit(text)], compare(before, after).changes)]


BEFORE = [row(*STEADY, load_s=1.0), row(*STEADY, sizes=TG, load_s=1.0)]
AFTER = [row(*SLOWER, load_s=1.3), row(*STEADY, sizes=TG, load_s=1.3)]


@pytest.mark.parametrize(
    ("text", "tests"),
    [
        ("pp<-5%", ["pp512"]),
        ("pp<-15%", []),
        ("tg<-5%", []),
        ("any < -5 %", ["pp512"]),
        ("pp512<-5%", ["pp512"]),
        ("PP512<-5.5%", ["pp512"]),
        ("pp256<-5%", []),
        ("load>20%", ["pp512", "tg128"]),
        ("load>40%", []),
        ("memory>1%", []),
        ("pp>5%", []),
    ],
)
def test_limits(text: str, tests: list[str]) -> None:
    assert over(text, BEFORE, AFTER) == tests


def test_a_fall_that_the_samples_do_not_show_is_no_miss() -> None:
    noisy = ([row(100, 120, 80, 110, 90)], [row(92, 115, 78, 105, 88)])
    assert compare(*noisy).changes[0].change < -0.05
    assert over("pp<-5%", *noisy) == []
    assert over("pp<-5%", [row(100)], [row(90)]) == ["pp512"]  # with one sample there is only the figure


def test_a_test_at_a_depth() -> None:
    deep = Sizes(n_gen=16, n_depth=64)
    assert over("tg16@d64<-5%", [row(*STEADY, sizes=deep)], [row(*SLOWER, sizes=deep)]) == ["tg16 @ d64"]


@pytest.mark.parametrize("text", ["", "tg", "tg<5", "tg<=-5%", "speed<-5%", "<-5%", "tg<-5%%", "tg<nan%", "@<-1%"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(UsageError, match="is not a limit"):
        parse_limit(text)
