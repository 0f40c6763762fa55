from __future__ import annotations

from llmcli.cache_store.keys import pack_tokens
from llmcli.cache_store.parting import Difference, Parting


def left(parting: Parting, start: int, tokens: list[int], shared: int) -> None:
    parting.left(start, pack_tokens(tokens), shared)


def test_the_longest_common_beginning_decides() -> None:
    parting = Parting(pack_tokens(list(range(40))))
    left(parting, 0, [0, 1, 90, 91], 2)
    assert parting.difference() == Difference(2, 0, (0, 1, 90, 91), tuple(range(10)))
    parting.went_to(20)
    assert (parting.reached_tokens, parting.difference()) == (20, None)
    left(parting, 16, [16, 17, 92], 2)
    assert parting.difference() is None
    left(parting, 20, [93] * 20, 0)
    assert parting.difference() == Difference(20, 12, (*range(12, 20), *[93] * 8), tuple(range(12, 28)))
    left(parting, 20, [94], 0)  # as near: the first one stays
    assert parting.difference() == Difference(20, 12, (*range(12, 20), *[93] * 8), tuple(range(12, 28)))


def test_nothing_near_and_a_prompt_that_ends_inside() -> None:
    parting = Parting(pack_tokens([1, 2, 3]))
    left(parting, 0, [7, 8], 0)
    assert (parting.reached_tokens, parting.difference()) == (0, None)
    left(parting, 0, [1, 2, 3, 4], 3)
    assert (parting.reached_tokens, parting.difference()) == (3, None)
