"""What was measured of latency: percentiles, medians and break-even recomputed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.bench.latency_result import Kind, Point, Request, break_even, disk_wins, itl_percentiles


def request(kind: Kind, ttft_s: float, *itl_s: float, restored: int = 64) -> Request:
    return Request(kind, 96, restored, 0.001, 0.0, ttft_s, ttft_s, itl_s, ttft_s + sum(itl_s))


def point(length: int, cold_s: float, disk_s: float | None, restored: int = 64, n: int = 3) -> Point:
    made = Point(length, requests=[request("cold", cold_s)] * n)
    if disk_s is not None:
        made.requests += [request("disk", disk_s, restored=restored)] * n
    return made


times = st.lists(st.lists(st.floats(1e-6, 10), min_size=1, max_size=9), min_size=1, max_size=5)


@given(times, st.floats(0, 100))
def test_percentiles_are_of_all_times_between_tokens(itls: list[list[float]], percent: float) -> None:
    requests = [request("cold", 1.0, *itl) for itl in itls]
    wanted = float(np.percentile([one for itl in itls for one in itl], percent))
    assert itl_percentiles(requests, [percent]) == pytest.approx([wanted])


def test_definitions() -> None:
    one = request("cold", 0.5, 0.1, 0.2, 0.3)
    assert one.total_s == pytest.approx(1.1)
    assert one.tpot_s == pytest.approx((one.total_s - one.ttft_s) / 3)
    assert request("cold", 0.5).tpot_s is None
    assert itl_percentiles([request("cold", 0.5)], [50]) is None


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(64, 10, 5), (128, 20, 6)], 64),
        ([(64, 10, 15), (128, 20, 15)], 96),
        ([(64, 10, 20), (128, 20, 15)], 64 + 64 * 10 / 15),
        ([(128, 20, 15), (64, 10, 20)], 64 + 64 * 10 / 15),
        ([(64, 10, 5), (128, 10, 20), (256, 30, 20)], 192),
        ([(64, 10, 20), (128, 10, 20)], None),
        ([(64, 10, 5), (128, 10, 20)], None),
        ([(64, 10, 10), (128, 20, 10)], 128),
        ([(64, 10, None), (128, 20, 6)], 128),
        ([], None),
    ],
)
def test_break_even(pairs: list[tuple[int, float, float | None]], expected: float | None) -> None:
    found = break_even([point(*pair) for pair in pairs])
    assert found == (None if expected is None else pytest.approx(expected))


def test_few_samples_and_scattered_ones_tell_nothing() -> None:
    assert disk_wins(point(64, 10, 5)) is True
    assert disk_wins(point(64, 5, 10)) is False
    assert disk_wins(point(64, 10, 5, n=2)) is None
    assert break_even([point(64, 10, 5, n=1), point(128, 20, 5, n=1)]) is None
    mixed = Point(64, requests=[request(kind, t) for kind in ("cold", "disk") for t in (1.0, 2.0, 3.0)])
    assert disk_wins(mixed) is None
    assert break_even([mixed, point(128, 20, 5)]) == 128


def test_a_disk_request_that_restored_nothing_does_not_count() -> None:
    assert point(32, 1.0, 0.5, restored=0).ttft_s("disk") is None
    assert break_even([point(32, 1.0, 0.5, restored=0)]) is None
