"""Rows as lines of even columns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmcli.cli.table import table_lines

ROWS = [("NAME", "SIZE", "WHY"), ("a", "1,000", "because"), ("longer", "7", "")]


def test_columns_are_even_and_nothing_trails() -> None:
    assert table_lines(ROWS, right=(1,)) == [
        "NAME     SIZE  WHY",
        "a       1,000  because",
        "longer      7",
    ]


WIDE = [
    ("MODEL", "QUANT", "SIZE", "CONTEXT", "PREFIXES"),
    ("owner/a-model-with-a-long-name:Q4_K_M", "Q4_K_M", "1,023 MiB", "131,072", "23.5 MiB"),
    ("b", "Q8_0", "7.0 GiB", "4,096", "-"),
]


def test_where_there_is_room_nothing_changes() -> None:
    assert table_lines(ROWS, right=(1,), columns=22) == table_lines(ROWS, right=(1,))


def test_the_less_needed_columns_go_first_and_whole() -> None:
    lines = table_lines(WIDE, right=(2, 3, 4), columns=51, less_needed=(3, 1))
    assert lines == [
        "MODEL                                SIZE  PREFIXES",
        "owner/a-model-w…ng-name:Q4_K_M  1,023 MiB  23.5 MiB",
        "b                                 7.0 GiB         -",
    ]


def test_texts_are_shortened_and_numbers_are_not() -> None:
    assert table_lines(
        [("NAME", "N", "TEXT"), ("a", "12,345", "many words that say little")], right=(1,), columns=23
    ) == [
        "NAME       N  TEXT",
        "a     12,345  many wor…",
    ]


@given(
    st.lists(st.tuples(st.text("ab", max_size=30), st.integers(0, 10**9), st.text("xy", max_size=30)), min_size=1),
    st.integers(1, 90),
    st.permutations([1, 2]),
)
def test_a_line_fits_and_a_number_is_whole_or_not_there(
    found: list[tuple[str, int, str]], columns: int, less_needed: list[int]
) -> None:
    rows = [(name, f"{count:,}", text) for name, count, text in found]
    lines = table_lines(rows, right=(1,), columns=columns, less_needed=less_needed)
    assert all(len(line) <= columns for line in lines)
    for line, row in zip(lines, rows, strict=True):
        numbers = [word for word in line.split() if word[0].isdigit()]
        assert numbers in ([], [row[1]])


def test_no_rows() -> None:
    assert table_lines([], right=()) == []
