"""Medians, percentiles and warnings, recomputed in other ways."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.bench.stats import drift, is_wide, kendall, percentile, summarize

samples = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40)


@given(samples, st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    assert math.isclose(percentile(values, percent), float(np.percentile(values, percent)), rel_tol=1e-9)


@given(samples)
def test_summary_is_that_of_the_samples(values: list[float]) -> None:
    found = summarize(values)
    assert (found.n, found.least, found.most) == (len(values), min(values), max(values))
    assert found.median == statistics.median(values)
    assert math.isclose(found.mean, float(np.mean(values)), rel_tol=1e-9)
    wanted = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    assert math.isclose(found.stdev, wanted, rel_tol=1e-6, abs_tol=1e-9 * found.most)
    assert found.half_spread == (found.p75 - found.p25) / 2 >= 0


def test_width() -> None:
    assert not is_wide([100.0])
    assert not is_wide([100, 101, 102, 103, 104])
    assert is_wide([100, 104, 110, 112, 120])
    assert not is_wide([100, 100, 100, 100, 300])  # one outlier is not the middle half


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([100, 100, 100], None),
        ([205, 190, 171, 152, 138], 138 / 205 - 1),
        ([100, 99, 98, 97, 96], None),
        ([100, 70, 100, 70, 100, 70], None),
        ([100, 105, 110, 115, 120], 0.2),
        ([100, 101, 99, 80, 79, 81, 80], None),
    ],
)
def test_drift(values: list[float], expected: float | None) -> None:
    found = drift(values)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_kendall() -> None:
    assert (kendall([1, 2, 3, 4]), kendall([4, 3, 2, 1]), kendall([5, 5, 5]), kendall([7])) == (1, -1, 0, 0)
