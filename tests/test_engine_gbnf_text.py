"""Reading a grammar's characters, and the place that an error names."""

from __future__ import annotations

import pytest

from llmcli.base.errors import UsageError
from llmcli.engine.gbnf_text import END, MAX_CHARACTERS, GrammarText


@pytest.mark.parametrize(
    ("text", "position", "place"),
    [
        ("abc", 0, "line 1, column 1"),
        ("abc", 3, "line 1, column 4"),
        ("é\nb", 2, "line 2, column 1"),
        ("a\r\nb\rc\n\nd", 3, "line 2, column 1"),
        ("a\r\nb\rc\n\nd", 5, "line 3, column 1"),
        ("a\r\nb\rc\n\nd", 8, "line 5, column 1"),
    ],
)
def test_place(text: str, position: int, place: str) -> None:
    assert GrammarText(text, "g").place(position) == place


@pytest.mark.parametrize(("lines", "left"), [(False, "\n # b\r x"), (True, "x")])
def test_skip(lines: bool, left: str) -> None:
    text = GrammarText(" \t# a # a\n # b\r x", "g")
    text.skip(lines=lines)
    assert text.text[text.position :] == left + END


@pytest.mark.parametrize("escape", [r"\n", r"\"", r"\\", r"\]", r"\-", r"\x0A", r"\uFFFF", r"\U0010ffff", "é", "\n"])
def test_one_character(escape: str) -> None:
    text = GrammarText(escape + "0", "g")
    text.character()
    assert text.peek() == "0"


@pytest.mark.parametrize("escape", ["\\", r"\'", r"\a", r"\x0", r"\u00g0", r"\U0010fff"])
def test_no_escape(escape: str) -> None:
    with pytest.raises(UsageError, match=r"expected (an escape|[248] hex digits after the escape), found "):
        GrammarText(escape, "g").character()


@pytest.mark.parametrize(("digits", "value"), [("0", 0), ("007", 7), ("18446744073709551615", 2**64 - 1)])
def test_integer(digits: str, value: int) -> None:
    assert GrammarText(digits + "x", "g").integer("a number") == value


@pytest.mark.parametrize("digits", ["18446744073709551616", "9" * 5000])
def test_an_integer_of_more_than_64_bits(digits: str) -> None:
    with pytest.raises(UsageError, match=r"g, line 1, column 1: expected a number below 2\^64, found '"):
        GrammarText(digits, "g").integer("a number")


def test_length() -> None:
    GrammarText(" " * MAX_CHARACTERS, "g")
    with pytest.raises(UsageError, match="expected at most 500,000 characters, found 500,001"):
        GrammarText(" " * (MAX_CHARACTERS + 1), "g")


def test_a_message_is_one_line_that_a_terminal_can_show() -> None:
    with pytest.raises(UsageError) as caught:
        GrammarText("\x1b[2J", "a\nb").fail(0, "text")
    assert caught.value.message == r"a\nb, line 1, column 1: expected text, found '\x1b'"
