"""Rows: llama-bench's fields in its order, ours behind them, all recomputed from the samples; and the flags."""

from __future__ import annotations

import copy
import json
import statistics
from dataclasses import replace
from typing import Any

import pytest

from llmcli.bench.result import LLAMA_BENCH_FIELDS, OUR_FIELDS, flags_of, row_of
from llmcli.bench.sizes import Sizes
from tests.bench_case import ENVIRONMENT, PLAN, result


def test_fields_and_their_order() -> None:
    row = row_of(result(100, 110, 105))
    assert tuple(row) == (*LLAMA_BENCH_FIELDS, *OUR_FIELDS)
    assert LLAMA_BENCH_FIELDS[-8:] == (
        *("n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts"),
    )
    assert json.loads(json.dumps(row)) == row


def test_figures_come_from_the_samples() -> None:
    row = row_of(result(100, 120, 110, 90, sizes=Sizes(n_prompt=256, n_gen=64, n_depth=32)))
    rates = [320e9 / ns for ns in row["samples_ns"]]
    assert row["samples_ts"] == pytest.approx(rates)
    assert (row["repetitions"], row["test"]) == (4, "pp256+tg64 @ d32")
    assert row["median_ts"] == pytest.approx(105)
    assert row["avg_ts"] == pytest.approx(statistics.fmean(rates))
    assert row["stddev_ts"] == pytest.approx(statistics.stdev(rates))
    assert row["avg_ns"] == round(statistics.fmean(row["samples_ns"]))
    assert row["stddev_ns"] == round(statistics.stdev(row["samples_ns"]))
    assert (row["min_ts"], row["max_ts"]) == (min(rates), max(rates))


def test_settings_are_those_of_the_plan() -> None:
    plan = replace(PLAN, n_batch=512, n_ubatch=128, n_threads=4, flash_attn="on", type_k="q8_0", use_mmap=False)
    row = row_of(result(1, plan=plan))
    names = ("n_batch", "n_ubatch", "n_threads", "flash_attn", "type_k", "type_v", "load_mode", "n_gpu_layers")
    assert [row[name] for name in names] == [512, 128, 4, 1, "q8_0", "f16", "none", 0]


def environment(**changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(ENVIRONMENT)
    for name, value in changes.items():
        made["conditions" if name in made["conditions"] else "machine"][name] = value
    return made


def test_nothing_to_say_of_steady_samples() -> None:
    assert flags_of(result(100, 101, 100, 99, 100)) == ()
    assert flags_of(result(100)) == ()


@pytest.mark.parametrize(
    ("rates", "changes", "expected"),
    [
        ((100, 90, 110, 120, 80), {}, "wide spread: the middle half spans more than 5% of the median"),
        (
            (205, 190, 171, 152, 138),
            {},
            "drift: -33% from the first samples to the last (throttling?)",
        ),
        ((100, 100), {"environment": environment(cores_usable=4)}, "8 threads on 4 usable cores"),
        (
            (100, 100),
            {"environment": environment(load_1min=2.1)},
            "busy machine: load above 0.25 per core before the test",
        ),
        ((100, 100), {"sizes": Sizes(n_prompt=131073)}, "past the 131,072 tokens the model was trained on"),
        ((100, 100), {"repetitions": 5, "trouble": "interrupted"}, "2 of 5 repetitions: interrupted"),
    ],
)
def test_flags(rates: tuple[float, ...], changes: dict[str, Any], expected: str) -> None:
    assert expected in flags_of(result(*rates, **changes))
