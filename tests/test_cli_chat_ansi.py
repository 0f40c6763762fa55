"""Rows as bytes of a terminal."""

from __future__ import annotations

from rich.text import Text

from llmcli.cli.chat_ansi import AnsiPainter

ROW = Text("a ") + Text("b", "bold cyan") + Text("\tc")


def test_styles_are_the_sixteen_colours() -> None:
    assert AnsiPainter(styled=True).lines([ROW, Text()]) == "a \x1b[1;36mb\x1b[0m\tc\n\n"


def test_without_styles_there_is_no_escape() -> None:
    assert AnsiPainter(styled=False).lines([ROW]) == "a b\tc\n"


def test_rows_that_are_drawn_again_have_no_tabs() -> None:
    assert AnsiPainter(styled=False).still([ROW, Text("d")]) == "a b     c\nd"
    assert ROW.plain == "a b\tc"
