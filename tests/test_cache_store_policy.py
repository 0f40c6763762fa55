from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from llmcli.cache_store.policy import GIB, Policy, free_bytes


def test_the_default_budget_is_a_tenth_of_the_free_space_at_most_20_gib() -> None:
    assert Policy().budget_bytes(100 * GIB, 0) == 10 * GIB
    assert Policy().budget_bytes(90 * GIB, 10 * GIB) == 10 * GIB
    assert Policy().budget_bytes(900 * GIB, 0) == 20 * GIB
    assert Policy(max_bytes=5).budget_bytes(900 * GIB, 0) == 5


def test_over_bytes() -> None:
    policy = Policy(max_bytes=100, min_free_bytes=50)
    assert policy.over_bytes(1000, 60, 40) == 0
    assert policy.over_bytes(1000, 60, 41) == 1
    assert policy.over_bytes(70, 0, 30) == 10
    assert policy.over_bytes(70, 99, 30) == 29


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_after_freeing_what_is_over_both_limits_hold(free: int, stored: int, new: int) -> None:
    policy = Policy(max_bytes=10_000, min_free_bytes=500)
    over = policy.over_bytes(free, stored, new)
    assert stored - over + new <= 10_000
    assert free + over - new >= 500


def test_expired() -> None:
    assert Policy(ttl_s=10).expired(100, 110.5)
    assert not Policy(ttl_s=10).expired(100, 110)
    assert not Policy(ttl_s=None).expired(0, 1e12)


def test_free_bytes(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
