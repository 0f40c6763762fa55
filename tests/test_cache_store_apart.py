from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.cache_store.apart import partings, word_start


def test_each_parts_from_the_one_most_like_it() -> None:
    assert partings({1: "Be brief. One", 2: "Be brief. Two", 3: "Be long", 4: "", 5: "You"}) == {
        1: 10,
        2: 10,
        3: 3,
        4: 0,
        5: 0,
    }
    assert partings({1: "same", 2: "same"}) == {1: 4, 2: 4}
    assert partings({1: "alone"}) == {1: 0}
    assert partings(dict[int, str]()) == {}


@given(st.lists(st.text("ab", max_size=8), max_size=12))
def test_against_every_pair(texts: list[str]) -> None:
    def shared(one: str, other: str) -> int:
        return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

    found = partings(dict(enumerate(texts)))
    for at, text in enumerate(texts):
        assert found[at] == max((shared(text, other) for n, other in enumerate(texts) if n != at), default=0)


@pytest.mark.parametrize(
    ("text", "at", "start"),
    [("You are a lawyer", 12, 10), ("You are", 0, 0), ("a\nb", 2, 2), ("x" * 40, 30, 30), ("ab", 1, 0)],
)
def test_word_start(text: str, at: int, start: int) -> None:
    assert word_start(text, at) == start
