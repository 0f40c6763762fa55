"""Markdown that is rendered while it comes: how it looks, and that no text is ever lost or given out twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from llmcli.cli.chat_markdown import Look, MarkdownStream
from llmcli.cli.chat_wrap import cells


def rendered(pieces: Iterable[str], width: int = 40, look: Look = "styled", most_rows: int = 8) -> list[Text]:
    """What the scrollback has in the end."""
    stream, rows = MarkdownStream(look), list[Text]()
    for piece in pieces:
        stream.push(piece)
        rows += stream.take(width, most_rows)
        stream.rows_in_progress(width)
    stream.finish()
    rows += stream.take(width, most_rows)
    assert stream.rows_in_progress(width) == []
    return rows


def shown(source: str, width: int = 40, look: Look = "styled") -> str:
    return "\n".join(row.plain for row in rendered([source], width, look))


def styles_of(row: Text, word: str) -> str:
    at = row.plain.index(word)
    return " ".join(str(span.style) for span in row.spans if span.start <= at < span.end)


# ---- how it looks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("# Title\n", "Title"),
        ("- a\n  - b\n", "• a\n  • b"),
        ("1. a\n10) b", "1. a\n10) b"),
        ("- [x] done", "• [x] done"),
        ("> a\n> > b", "│ a\n│ │ b"),
        ("a\n\nb", "a\n\nb"),
        ("---", "─" * 40),
        ("**b** *i* `c` ~~s~~", "b i c s"),
        ("[here](http://x.y/z)", "here (http://x.y/z)"),
        ("<div>&amp;</div>", "<div>&amp;</div>"),
        ("2*3*4 = 24, snake_case, __init__", "2*3*4 = 24, snake_case, __init__"),
        ("**open and `tick", "**open and `tick"),
        (r"\(a_1 * b_1\) and \*", r"\(a_1 * b_1\) and \*"),
        ("```py\nx = 1*2*3\n```", "```py\nx = 1*2*3\n```"),
        ("```\n**not bold**", "```\n**not bold**"),
        ("~~~\n```\n~~~\n*a*", "~~~\n```\n~~~\na"),
        ("text\n\n    *code*\n", "text\n\n    *code*"),
        ("#hashtag", "#hashtag"),
    ],
)
def test_marks_are_hidden_and_nothing_else(source: str, expected: str) -> None:
    assert shown(source) == expected


@pytest.mark.parametrize(
    ("word", "style"),
    [("bold", "bold"), ("slanted", "italic"), ("code", "cyan"), ("both", "bold italic"), ("link", "underline")],
)
def test_styles(word: str, style: str) -> None:
    (row,) = rendered(["**bold** *slanted* `code` ***both*** [link](u)"], width=80)
    assert styles_of(row, word) == style


def test_what_hangs() -> None:
    assert shown("- one two three four\n", width=12) == "• one two\n  three four"


def test_code_keeps_its_length_and_spaces() -> None:
    code = "x = '" + "a b  " * 30 + "'"
    assert shown(f"```python\n{code}\n\tz  # c  \n```", width=20).split("\n")[1:3] == [code, "\tz  # c  "]


def test_code_is_coloured_and_unknown_languages_are_not() -> None:
    for language, colours in (("python", True), ("nonesuch", False), ("", False)):
        row = rendered([f"```{language}\ndef f(): pass\n"])[1]
        assert (styles_of(row, "def") != styles_of(row, "f():")) is colours


def test_a_table() -> None:
    source = "| Name | n |\n|:--|--:|\n| `a|b` | 1 |\n| **c** | 200 |\n\nafter"
    assert shown(source) == "Name │   n\n─────┼────\na|b  │   1\nc    │ 200\n\nafter"


def test_a_table_that_is_wider_than_the_screen_goes_on_below() -> None:
    source = "| A | B |\n|---|---|\n| x | one two three four five |\n"
    assert shown(source, width=20) == "A │ B\n──┼─────────────────\nx │ one two three\n  │ four five"


def test_a_table_without_room_is_shown_as_it_is() -> None:
    source = "|a|b|c|d|e|f|\n|-|-|-|-|-|-|\n|1|2|3|4|5|6|"
    assert "".join(shown(source, width=10).split()) == "".join(source.split())


def test_cells_without_a_head_are_kept() -> None:
    assert shown("|a|\n|-|\n|1|2|3|\n") == "a │   │\n──┼───┼──\n1 │ 2 │ 3"


def test_a_bar_makes_no_table() -> None:
    assert shown("a | b\nc") == "a | b\nc"


def test_without_styles_the_marks_stay() -> None:
    source = "# T\n- **a** `b`\n> q"
    assert shown(source, look="marks") == source
    assert all(not row.spans for row in rendered([source], look="marks"))


def test_raw_is_raw() -> None:
    source = "# T\n|a|\n|-|\n```\nx" + "y " * 50
    assert shown(source, look="raw") == source


def test_an_open_mark_counts_for_now() -> None:
    stream = MarkdownStream()
    stream.push("**bold te")
    assert [row.plain for row in stream.rows_in_progress(40)] == ["bold te"]


@pytest.mark.parametrize("width", [8, 11, 20])
@pytest.mark.parametrize("source", ["日本語の文章" * 9, "👩‍👩‍👧 é́ " * 9, "a" * 50, "- " + "日本 " * 20])
def test_rows_fit_the_screen(source: str, width: int) -> None:
    rows = rendered([source], width)
    assert all(cells(row.plain) <= width for row in rows)


# ---- nothing is lost -------------------------------------------------------------------------------------------------

MARKDOWN = st.lists(
    st.sampled_from(
        [
            *("**", "*", "`", "```", "```py", "_", "~~", "~~~", "#", "# ", "- ", "1. ", "> ", "|", "|-|-|", "---"),
            *("[a](b)", "![a](b)", "\\", "\\(", "$$", "<b>", "&lt;", "http://x_y_z", "    ", "\t", " ", "\n", "\n\n"),
            *("word", "B2", "日本", "👩‍👩‍👧", "é́", "x" * 30, "several words in a row "),
        ]
    ),
    max_size=40,
)
MARKS = set("*_~`#>|-•│─┼+=[]():\\ \t\n")


def text_of(source: str) -> Counter[str]:
    return Counter(character for character in source if character not in MARKS)


@settings(deadline=None, max_examples=400)
@given(MARKDOWN, st.integers(8, 60), st.integers(2, 9))
def test_every_visible_character_appears(pieces: list[str], width: int, most_rows: int) -> None:
    source = "".join(pieces)
    seen = "".join(row.plain for row in rendered(pieces, width, most_rows=most_rows))
    assert text_of(seen) == text_of(source)
    if "|" not in source:  # a table's columns stand side by side
        assert [c for c in seen if c.isalnum()] == [c for c in source if c.isalnum()]


@settings(deadline=None, max_examples=400)
@given(MARKDOWN, st.integers(8, 60), st.integers(2, 9))
def test_without_styles_every_character_appears_in_order(pieces: list[str], width: int, most_rows: int) -> None:
    source = "".join(pieces).replace("|", "")
    look: Look
    for look in ("marks", "raw"):
        seen = "".join(row.plain for row in rendered([source], width, look, most_rows))
        assert "".join(seen.split()) == "".join(source.split())


@settings(deadline=None, max_examples=400)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]) | st.sampled_from("\n *`|")))
def test_any_text_survives(source: str) -> None:
    seen = "".join(row.plain for row in rendered([source], 20))
    assert text_of("".join(seen.split())) == text_of("".join(source.split()))


@settings(deadline=None, max_examples=400)
@given(MARKDOWN)
def test_pieces_look_like_the_whole(pieces: list[str]) -> None:
    """Where no line is long enough to be given out in parts, how the text came does not matter."""
    source = "".join(pieces)
    one_by_one = [row.plain for row in rendered(source, 60, most_rows=999)]
    assert one_by_one == [row.plain for row in rendered([source], 60, most_rows=999)]


# ---- little stays in progress ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", ["styled", "marks", "raw"])
@pytest.mark.parametrize("begin", ["", "- ", "```\n"])
def test_a_line_without_end_is_given_out_in_parts(begin: str, look: Look) -> None:
    stream, rows = MarkdownStream(look), list[Text]()
    words = [f"word{number} " for number in range(3000)]
    stream.push(begin)
    for start in range(0, len(words), 10):
        stream.push("".join(words[start : start + 10]))
        rows += stream.take(40, 5)
        assert len(stream.rows_in_progress(40)) <= 6
    stream.finish()
    rows += stream.take(40, 5)
    seen = "".join(row.plain.strip() + " " for row in rows)
    assert "".join(seen.split()).endswith("".join("".join(words).split()))


def test_a_long_line_of_open_marks_at_once() -> None:
    source = "*a `b _c " * 6_000
    seen = "".join(row.plain for row in rendered([source], 80))
    assert text_of(seen) == text_of(source)
