"""Rows as lines of even columns."""

from __future__ import annotations

from llmcli.cli.table import table_lines

ROWS = [("NAME", "SIZE", "WHY"), ("a", "1,000", "because"), ("longer", "7", "")]


def test_columns_are_even_and_nothing_trails() -> None:
    assert table_lines(ROWS, right=(1,)) == [
        "NAME     SIZE  WHY",
        "a       1,000  because",
        "longer      7",
    ]


def test_lines_are_cut_at_the_edge() -> None:
    assert table_lines(ROWS, right=(1,), columns=15) == ["NAME     SIZE …", "a       1,000 …", "longer      7"]


def test_no_rows() -> None:
    assert table_lines([], right=()) == []
