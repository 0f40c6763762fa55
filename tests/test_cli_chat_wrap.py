"""Where rows break."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from llmcli.cli.chat_wrap import cells, fold_breaks, in_columns, word_breaks, wrapped

TEXT = st.text(st.sampled_from("ab \té日👩\u200d"), max_size=60)


def rows(text: str, breaks: list[int]) -> list[str]:
    return [text[a:b] for a, b in zip([0, *breaks], [*breaks, len(text)], strict=True)]


@settings(deadline=None, max_examples=300)
@given(TEXT, st.integers(8, 20))
def test_rows_fit_and_nothing_is_lost(text: str, width: int) -> None:
    for breaks in (word_breaks(text, width), fold_breaks(text, width)):
        assert breaks == sorted(set(breaks))
        assert "".join(rows(text, breaks)) == text
    assert all(cells(row.rstrip()) <= width for row in rows(text, word_breaks(text, width)) if row.lstrip() == row)
    assert all(cells(row) <= width for row in rows(text, fold_breaks(text, width)))


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("one two three", 8, ["one two", "three"]),
        ("one two three", 3, ["one", "two", "thr", "ee"]),
        ("日本語の", 4, ["日本", "語の"]),
        ("a" * 9 + " b", 4, ["aaaa", "aaaa", "a b"]),
    ],
)
def test_words_stay_whole_where_they_fit(text: str, width: int, expected: list[str]) -> None:
    assert [row.strip() for row in rows(text, word_breaks(text, width))] == expected


def test_what_hangs_and_what_has_no_room_to() -> None:
    first, rest = Text("* "), Text("  ")
    assert [row.plain for row in wrapped(Text("one two three"), 12, first=first, rest=rest)] == ["* one two", "  three"]
    assert [row.plain for row in wrapped(Text("one two"), 5, first=Text("1234 "))] == ["1234", "one", "two"]


def test_columns_go_on_below_themselves() -> None:
    found = in_columns(Text("  /name [X]   what it does, in words"), 30)
    assert [row.plain for row in found] == ["  /name [X]   what it does, in", "              words"]
    assert [row.plain for row in in_columns(Text("no columns but words"), 12)] == ["no columns", "but words"]
