"""The file of what was typed into chats."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from llmcli.cli.chat_history import ChatHistory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "chat_history"


def loaded(path: Path) -> list[str]:
    return list(ChatHistory(path).load_history_strings())


def test_what_was_typed_comes_back_newest_first(path: Path) -> None:
    old = os.umask(0)
    try:
        history = ChatHistory(path)
        for text in ("one", "two\nlines", "é 🚀 \x1b"):
            history.append_string(text)
    finally:
        os.umask(old)
    assert loaded(path) == ["é 🚀 \x1b", "two\nlines", "one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_bytes().isascii()


def test_what_is_not_kept(path: Path) -> None:
    history = ChatHistory(path)
    history.append_volatile("for now")
    history.append_string("x" * 20_000)
    assert loaded(path) == []
    assert history.get_strings() == ["for now", "x" * 20_000]


def test_a_damaged_file_costs_its_damaged_lines(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'"good"\n\xff\xfe\n{"a": 1}\n[\n"half')
    assert loaded(path) == ["good"]


@pytest.mark.parametrize("what", ["folder", "file", "pipe", "device"])
def test_what_cannot_be_written_costs_no_chat(what: str, path: Path) -> None:
    if what == "file":
        path.mkdir(parents=True)
    elif what == "pipe":
        path.parent.mkdir()
        os.mkfifo(path)
    elif what == "device":
        path.parent.mkdir()
        path.symlink_to("/dev/zero")
    else:
        path.parent.write_text("in the way")
    history = ChatHistory(path)
    history.append_string("one")
    assert loaded(path) == []
    assert history.get_strings() == ["one"]


def test_a_file_that_grew_is_cut_down(path: Path) -> None:
    path.parent.mkdir()
    lines = [json.dumps(f"{number} " + "x" * 1000) for number in range(5000)]
    path.write_text("\n".join(lines) + "\n")
    found = loaded(path)
    assert len(found) == 1000
    assert found[0].startswith("4999 ")
    assert path.stat().st_size <= 1 << 20
    assert loaded(path) == found
