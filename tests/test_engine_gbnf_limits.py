"""Grammars that libllama cannot carry, as rules by number."""

from __future__ import annotations

import time

import pytest

from llmcli.engine.gbnf_limits import MAX_DEPTH, MAX_STACKS, TERMINAL, Alternates, find_fault

A = TERMINAL
LEFT = "left recursion in '{name}'"


def _found(rules: list[Alternates], n_elements: int = 1) -> tuple[int, str] | None:
    """Rule 0 is the root. The rule that is at fault and what was found there."""
    fault = find_fault(rules, [n_elements] * len(rules), 0)
    return None if fault is None else (fault.rule_id, fault.found)


def _doubling(depth: int, *, tail: list[int]) -> list[Alternates]:
    """Rules that each start with the next one in two ways."""
    return [[[n + 1, *tail], [n + 1, *tail]] for n in range(depth)] + [[[A]]]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([[[A]]], None),
        ([[[]]], None),
        ([[[A, 0], [A]]], None),
        ([[[0, A], [A]]], (0, LEFT)),
        ([[[1]], [[2, A]], [[1], [A]]], (1, LEFT)),
        ([[[1, 0, A], [A]], [[], [A]]], (0, LEFT)),  # libllama sees that rule 1 may be empty
        ([[[1, 0], [A]], [[], [A]]], (0, LEFT)),  # refused by libllama though it would end
        ([[[1, 0, A], [A]], [[2]], [[], [A]]], (0, LEFT)),  # libllama does not see it: deeper stacks for ever
        ([[[1, 0], [A]], [[2]], [[], [A]]], None),  # the same stack again: dropped
        ([[[1, 0, 1]], [[2]], [[], [A]]], (0, LEFT)),
        ([[[A]], [[2, 1, A]], [[3]], [[], [A]]], None),  # never used
        ([[[1]], [[2, 1]], [[3]], [[]]], (1, "'{name}'")),  # neither empty nor a character: libllama aborts
        ([[[A, 1]], [[2, 1]], [[3]], [[]]], (1, "'{name}'")),
    ],
)
def test_left_recursion_and_rules_without_text(rules: list[Alternates], expected: tuple[int, str] | None) -> None:
    assert _found(rules) == expected


def test_a_chain_may_be_as_deep_as_the_limit() -> None:
    chain: list[Alternates] = [[[n + 1]] for n in range(MAX_DEPTH - 1)]
    assert _found([*chain, [[A]]]) is None
    assert _found([*chain, [[MAX_DEPTH]], [[A]]]) == (0, "'{name}'")


def test_ways_that_end_in_the_same_stack_count_once() -> None:
    assert _found(_doubling(20, tail=[])) is None
    assert _found(_doubling(13, tail=[A])) == (0, "more in '{name}'")
    assert _found(_doubling(12, tail=[A])) is None


def test_the_paths_of_libllamas_search_are_counted_each() -> None:
    assert _found(_doubling(40, tail=[])) == (15, "more in '{name}'")
    assert _found(_doubling(40, tail=[]), n_elements=1000) == (21, "more in '{name}'")


def test_alternates_are_ways_too() -> None:
    assert _found([[[A]] * (MAX_STACKS - 1)]) is None
    assert _found([[[A]] * (MAX_STACKS + 1)]) == (0, "more in '{name}'")


def test_high_stacks_are_refused_for_their_memory() -> None:
    """libllama misses that rule 1 may be empty, so its depth is no limit; each level keeps a higher stack."""
    nullable: list[Alternates] = [[[2]], [[], [A]]]
    levels: list[Alternates] = [[[1, n + 1, A]] for n in range(3, 3900)]
    fault = _found([[[3]], *nullable, *levels, [[A]]])
    assert fault is not None
    assert fault[1] == "more in '{name}'"


def test_many_rules_near_the_limit_end_in_time() -> None:
    wide: Alternates = [[A]] * 9000
    rules: list[Alternates] = [[[A, n] for n in range(2, 3000)], wide, *([[[1], [1], [1]]] * 2998)]
    start = time.monotonic()
    assert _found(rules) is not None
    assert time.monotonic() - start < 5
