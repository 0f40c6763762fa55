"""Saved conversations as a table: what fits a screen, and what goes first."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from llmcli.cli.session_table import info_lines
from llmcli.sessions.library import SessionInfo


def info(name: str = "2026-11-30-1015", title: str = "Tell a very long story about a ship and its crew") -> SessionInfo:
    return SessionInfo(
        name,
        Path("/x"),
        time.time() - 720,
        1100,
        turns=12,
        title=title,
        model="SmolLM2-135M-Instruct-Q4_1",
        tokens=3456,
    )


def test_all_columns_where_there_is_no_edge() -> None:
    head, line = info_lines([info(title="Tell a story")], None)
    assert head == "NAME             TURNS  TOKENS    USED    BYTES  MODEL                       BEGINS WITH"
    assert line == "2026-11-30-1015     12   3,456  12 min  1.1 KiB  SmolLM2-135M-Instruct-Q4_1  Tell a story"


@pytest.mark.parametrize(
    ("columns", "gone"),
    [
        (140, ""),
        (100, ""),
        (90, "BYTES"),
        (82, "BYTES TOKENS"),
        (80, "BYTES TOKENS MODEL"),
        (50, "BYTES TOKENS MODEL TURNS"),
        (40, "BYTES TOKENS MODEL TURNS USED"),
    ],
)
def test_the_least_important_columns_go_first(columns: int, gone: str) -> None:
    head, line = info_lines([info()], columns)
    every = ("NAME", "TURNS", "TOKENS", "USED", "BYTES", "MODEL", "BEGINS", "WITH")
    assert head.split() == [name for name in every if name not in gone]
    assert max(len(head), len(line)) <= columns
    assert len(line) - head.index("BEGINS") >= 20
    assert re.search("Tell a very long st.*…$|crew$", line)


def test_a_long_name_is_shortened_and_no_number() -> None:
    head, line = info_lines([info(name="n" * 100)], 80)
    assert head.split() == ["NAME", "TURNS", "USED", "BEGINS", "WITH"]
    assert len(line) <= 80
    assert "  12  12 min  Tell a very" in line
