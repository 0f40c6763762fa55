"""Several waits at once: results in order, the first failure ends the rest."""

from __future__ import annotations

import threading

import pytest

from llmcli.base.errors import ModelError, UserInterruptError
from llmcli.models.side_by_side import AT_ONCE, side_by_side


def test_results_in_order_however_they_come() -> None:
    last = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert last.wait(10)
        if number == 9:
            last.set()
        return number * number

    assert side_by_side(work, range(10)) == [n * n for n in range(10)]
    assert side_by_side(work, []) == []


def test_they_wait_together() -> None:
    together = threading.Barrier(AT_ONCE, timeout=10)
    assert side_by_side(lambda _: together.wait() >= 0, range(AT_ONCE)) == [True] * AT_ONCE


def test_the_first_failure_ends_the_rest_and_is_raised() -> None:
    stop, begun = threading.Event(), []

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise ModelError("no")
        assert stop.wait(10)
        raise UserInterruptError

    with pytest.raises(ModelError, match="no"):
        side_by_side(work, range(100), stop=stop)
    assert len(begun) <= AT_ONCE
