"""Reading ahead: results in order, never more than one too many, and an error where its result is asked for."""

from __future__ import annotations

import functools
import threading
import time

import pytest

from llmcli.engine.read_ahead import ReadAhead


def reader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefix store reader"]


def settle(made: list[int], count: int) -> None:
    """Wait until so many steps were made, and a moment longer for one too many."""
    deadline = time.monotonic() + 10
    while len(made) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)


def test_results_come_in_order_from_another_thread() -> None:
    def step(number: int) -> tuple[int, str]:
        return number, threading.current_thread().name

    with ReadAhead([functools.partial(step, number) for number in range(50)]) as ahead:
        assert [ahead.take() for _ in range(50)] == [(number, "prefix store reader") for number in range(50)]
    assert reader_threads() == []


def test_nothing_to_do_is_nothing_done() -> None:
    with ReadAhead[int]([]):
        pass
    assert reader_threads() == []


def test_one_result_waits_and_no_more_are_made_until_it_is_taken() -> None:
    made: list[int] = []
    with ReadAhead([functools.partial(made.append, number) for number in range(6)]) as ahead:
        settle(made, 1)
        assert made == [0]
        ahead.take()
        settle(made, 2)
        assert made == [0, 1]
    assert made == [0, 1]
    assert reader_threads() == []


def test_an_error_is_raised_in_its_turn_and_ends_the_steps() -> None:
    made: list[int] = []

    def step(number: int) -> int:
        made.append(number)
        if number == 2:
            raise ZeroDivisionError
        return number

    with ReadAhead([functools.partial(step, number) for number in range(6)]) as ahead:
        assert [ahead.take(), ahead.take()] == [0, 1]
        with pytest.raises(ZeroDivisionError):
            ahead.take()
    assert made == [0, 1, 2]


def test_an_error_of_the_caller_ends_the_thread() -> None:
    with pytest.raises(KeyError), ReadAhead([lambda: 1] * 5) as ahead:
        raise KeyError(ahead.take())
    assert reader_threads() == []


def test_what_was_taken_is_let_go_of_in_the_other_thread() -> None:
    """Unmapping a file takes its time; the caller has better things to do."""
    ended: list[tuple[int, str]] = []

    class Result:
        def __init__(self, number: int) -> None:
            self.number = number

        def __del__(self) -> None:
            ended.append((self.number, threading.current_thread().name))

    with ReadAhead([functools.partial(Result, number) for number in range(5)]) as ahead:
        for number in range(5):
            assert ahead.take().number == number
            assert number not in [done for done, _ in ended]  # the last one is in use
    del ahead
    assert sorted(done for done, _ in ended) == [0, 1, 2, 3, 4]
    assert {name for done, name in ended if done < 2} == {"prefix store reader"}
