"""Rows of files that anyone may have written: whatever a value is, a row is refused in words or safe to use."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcli.base.errors import UsageError
from llmcli.bench.compare import compare, require_alike
from llmcli.bench.report import rate_text
from llmcli.bench.row_check import checked_row, parse_cell, parse_json
from tests.bench_case import row

ROW = row(100, 110, 105, 120)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
READ = (
    *("n_prompt", "n_gen", "n_depth", "samples_ts", "avg_ts", "test_time", "n_batch", "n_ubatch", "n_threads"),
    *("n_gpu_layers", "flash_attn", "type_k", "type_v", "load_mode", "model_name", "model_type", "model_content_id"),
    *("build_commit", "cpu_info", "backends", "load_s", "peak_bytes", "environment", "repetitions", "median_ts"),
    *("p25_ts", "p75_ts", "test", "model_size", "flags"),
)


def test_our_own_row_stays_as_it_is() -> None:
    assert checked_row(ROW) == ROW


@settings(deadline=None)  # scipy is imported at the first
@given(changes=st.dictionaries(st.sampled_from(READ), ANYTHING, max_size=3), gone=st.sets(st.sampled_from(READ)))
def test_a_row_is_refused_or_can_be_used(changes: dict[str, Any], gone: set[str]) -> None:
    made = {name: value for name, value in {**ROW, **changes}.items() if name not in gone}
    try:
        found = checked_row(made)
    except ValueError:
        return
    assert rate_text(found)
    for one, other in (([ROW], [found]), ([found], [ROW])):
        compare(one, other)
        with contextlib.suppress(UsageError):
            require_alike(one, other, ())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_prompt": -1}, "n_prompt is no number of tokens"),
        ({"n_prompt": True}, "n_prompt is no number of tokens"),
        ({"n_prompt": 0}, "n_prompt and n_gen are both 0"),
        ({"samples_ts": [10**400]}, "no rates"),
        ({"samples_ts": "12"}, "no rates"),
        ({"samples_ts": [math.inf]}, "no rates"),
        ({"load_s": "x"}, "load_s is no figure"),
        ({"peak_bytes": [1]}, "peak_bytes is no figure"),
        ({"n_batch": {}}, "n_batch has parts"),
        ({"environment": {"machine": 3}}, "environment lacks its parts"),
    ],
)
def test_what_is_no_row(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        checked_row({**ROW, **changes})


def test_figures_are_those_of_the_samples() -> None:
    found = checked_row({**ROW, "median_ts": "fast", "repetitions": None, "test": [1]})
    assert found == ROW


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", "[" * 100_000])
def test_json_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"no number|too deep"):
        parse_json(text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("build_commit", "12e4567", "12e4567"),
        ("build_commit", "1234567", "1234567"),
        ("model_name", "7", "7"),
        ("n_prompt", "512", 512),
        ("samples_ts", "[1.5]", [1.5]),
        ("load_s", "NaN", "NaN"),
        ("peak_bytes", "", None),
        ("gpu_info", "", ""),
    ],
)
def test_cells(name: str, text: str, value: Any) -> None:
    assert parse_cell(name, text) == value
