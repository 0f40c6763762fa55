"""Where two prompts part and what to do about it, with one token per character."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.engine.prefix_why import Prompt, Sharing, Why, advise, compare_prompts, sharing, units, with_changes_last


def ids(text: str) -> list[int]:
    return [ord(ch) for ch in text]


def text_of(some: Sequence[int]) -> str:
    return "".join(map(chr, some))


def compare(one: str, other: str, min_tokens: int = 1) -> Why:
    return compare_prompts(
        Prompt(one, ids(one)), Prompt(other, ids(other)), tokenize=ids, text_of=text_of, min_tokens=min_tokens
    )


BODY = "You answer in one line. You never guess. " * 5


def test_the_same() -> None:
    found = compare(BODY, BODY)
    assert (found.now, found.difference, found.advice, found.if_last) == (Sharing(205, 192), None, (), None)


@pytest.mark.parametrize(
    ("shared", "least", "because"),
    [
        (0, 64, None),
        (24, 64, "fewer than 64 never are, since a restore ends on a multiple of 64, "),
        (24, 1, "fewer than 64 never are, since a restore ends on a multiple of 64, "),
        (64, 64, None),
        (80, 100, "fewer than 100 are not restored (--cache-min-tokens)"),
        (120, 100, "a restore ends on a multiple of 64 before the last token of the prompt, and ends at 100 at least"),
        (130, 100, None),
    ],
)
def test_why_nothing_is_restored(shared: int, least: int, because: str | None) -> None:
    found = compare("x" * shared + "a" * 20, "x" * shared + "b" * 20, least)
    assert (found.nothing_because is None) == (because is None)
    assert (found.nothing_because or "").startswith(because or "")
    assert (found.now.restored_tokens > 0) == (because is None and shared > 0)


def test_the_last_token_is_always_computed() -> None:
    told = "a restore ends on a multiple of 64 before the last token of the prompt"
    assert compare("x" * 64, "x" * 64, 64).nothing_because == told


def test_what_is_too_short_in_any_order_is_told_so() -> None:
    found = compare("Hello there", "Hello you")
    assert found.advice == ("in no order do they share enough for a restore: 8 tokens at most",)
    long = compare("First this. " + "x" * 300, "Then that. " + "x" * 300)
    assert long.advice[0].startswith("put what stays the same ")


def test_a_date_in_front() -> None:
    one, other = f"Today is 2024-05-01. {BODY}", f"Today is 2024-05-02. {BODY}"
    found = compare(one, other)
    assert found.now == Sharing(18, 0)
    assert found.difference == {"position_tokens": 18, "a": one[10:26], "b": other[10:26]}
    assert found.advice == (
        "a date or a time changes (2024-05-01 / 2024-05-02): put it behind what stays the same, or leave it out",
    )
    assert found.if_last == Sharing(len(BODY.rstrip()) + 2 + 18, 192)


def test_json_names() -> None:
    found = compare("ab", "ac")
    assert found.as_json() == {
        "a_tokens": 2,
        "b_tokens": 2,
        "shared_tokens": 1,
        "restored_tokens": 0,
        "nothing_restored_because": found.nothing_because,
        "first_difference": {"position_tokens": 1, "a": "ab", "b": "ac"},
        "advice": ["in no order do they share enough for a restore: 3 tokens at most"],
        "if_changes_came_last": {"shared_tokens": 3, "restored_tokens": 0},
    }


@pytest.mark.parametrize(
    ("one", "other", "start"),
    [
        ("at 12:30 go", "at 12:31 go", "a date or a time changes (12:30 / 12:31)"),
        ("on Monday", "on Friday", "a date or a time changes (Monday / Friday)"),
        ("t=1 1714550400 x", "t=1 1714550401 x", "a date or a time changes (1714550400 / 1714550401)"),
        ("request 9f86d081a1 x", "request 2c26b46b68 x", "an id changes (9f86d081a1 / 2c26b46b68)"),
        (
            "id 123e4567-e89b-12d3-a456-426614174000",
            "id 123e4567-e89b-12d3-a456-426614174001",
            "an id changes (123e4567-e89b-12d3-a456-426614174000 / ",
        ),
        ("page 3 of 9", "page 4 of 9", "a number changes (3 / 4)"),
        ("One two.  Three", "One two. Three\n", "only white space differs"),
        ("First one. Second one. ", "Second one. First one. ", "the same parts stand in another order"),
        ("A text.", "A text. And more.", "one continues the other"),
        ("the cat sat", "the dog sat", "put what stays the same"),
    ],
)
def test_advice(one: str, other: str, start: str) -> None:
    assert advise(one, other)[0].startswith(start)


def test_a_restore_ends_on_the_grid_and_leaves_a_token() -> None:
    many = range(200)
    assert sharing(many, many, 64) == Sharing(200, 192)
    assert sharing(range(128), many, 64) == Sharing(128, 64)
    assert sharing(range(129), many, 64) == Sharing(129, 128)
    assert sharing(range(129), many, 129) == Sharing(129, 0)
    assert sharing([], many, 1) == Sharing(0, 0)


@given(st.text("ab. \n!?", max_size=60))
def test_units_are_the_text(text: str) -> None:
    assert "".join(units(text)) == text


SENTENCES = st.lists(st.sampled_from(["Aa. ", "Bb\n", "Cc! ", "Dd\n\n", "Ee? "]), max_size=8)


@given(SENTENCES, SENTENCES)
def test_what_both_have_comes_first_and_nothing_is_lost(one: list[str], other: list[str]) -> None:
    moved = with_changes_last("".join(one), "".join(other))
    common = Counter(one) & Counter(other)
    heads = [text.split()[: common.total()] for text in moved]
    assert heads[0] == heads[1]
    assert Counter(heads[0]) == Counter(word.strip() for word in common.elements())
    for before, after in zip((one, other), moved, strict=True):
        assert Counter(after.split()) == Counter("".join(before).split())
