"""Reading /proc and /sys: nonsense reads as "not known" and never raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.hardware.kernel_files import (
    MAX_CPUS,
    colon_fields,
    cpu_list,
    number,
    read_number,
    read_text,
    seen_path,
    space_fields,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("0", {0}),
        ("2-2", {2}),
        (" 1 , 5 ", {1, 5}),
        ("", set()),
        ("3-1", set()),
        ("a,4,-,7-", {4}),
        (f"{MAX_CPUS - 1},{MAX_CPUS}", {MAX_CPUS - 1}),
        ("0-99999999999", set()),
        ("0-999999999", set()),
    ],
)
def test_cpu_list(text: str, expected: set[int]) -> None:
    assert cpu_list(text) == expected


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    assert all(0 <= cpu < MAX_CPUS for cpu in cpu_list(text))
    assert all(value >= 0 for value in space_fields(text).values())
    colon_fields(text)
    assert number(text) is None or number(text) == int(text)


@pytest.mark.parametrize("text", ["max", "-1", "1_000", "1.5", "٣", "9" * 21, " 7"])
def test_number_refuses(text: str) -> None:
    assert number(text) is None


def test_read_text_is_empty_for_what_is_no_readable_file(tmp_path: Path) -> None:
    assert read_text(tmp_path) == ""
    assert read_text(tmp_path / "missing") == ""
    assert read_text(tmp_path / "a\0b") == ""


def test_read_text_drops_nul_and_replaces_wrong_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"Pi \xff\0\n")
    assert read_text(tmp_path / "f") == "Pi \N{REPLACEMENT CHARACTER}"


def test_read_text_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * (3 << 20))
    assert len(read_text(tmp_path / "f")) == 1 << 20


def test_read_number(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("42\n")
    (tmp_path / "g").write_text("max\n")
    assert (read_number(tmp_path / "f"), read_number(tmp_path / "g")) == (42, None)


def test_fields_keep_the_first_of_a_key() -> None:
    assert colon_fields("a\t: 1\nb : 2:3\nnothing\na : 9") == {"a": "1", "b": "2:3"}
    assert space_fields("file 7\nbad x\ninactive_file 8\nlong 1 2") == {"file": 7, "inactive_file": 8}


def test_seen_path_hides_the_root(tmp_path: Path) -> None:
    assert seen_path(tmp_path / "sys/x", tmp_path) == "/sys/x"
