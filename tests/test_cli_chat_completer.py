"""What Tab offers."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from llmcli.cli.chat_commands import COMMANDS
from llmcli.cli.chat_completer import ChatCompleter

COMPLETER = ChatCompleter(COMMANDS, lambda: ["holidays", "home", "work"])


def offered(line: str) -> list[str]:
    """The line as each completion would leave it."""
    found = COMPLETER.get_completions(Document(line), CompleteEvent())
    return [line[: len(line) + one.start_position] + one.text for one in found]


def test_a_slash_offers_each_command_once() -> None:
    assert offered("/") == [command.names[0] for command in COMMANDS]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/re", ["/retry", "/read"]),
        ("/bye", ["/bye"]),
        ("/show mo", ["/show model"]),
        ("/load ho", []),  # a path; there is no such file here
        ("hello /re", []),
        ("/nonesuch x", []),
        ("/read", ["/read"]),
        ("/re\nmore", []),
    ],
)
def test_commands_and_their_choices(
    line: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sorted(offered(line)) == sorted(expected)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("notes.txt", "night", ".hidden", "with space.md", "bad\x1b[2J\nname"):
        (tmp_path / name).touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert offered("/read ") == ["/read night", "/read notes/", "/read notes.txt", "/read with space.md"]
    assert offered("/read .h") == ["/read .hidden"]
    assert offered("/read notes/") == ["/read notes/a.md"]
    assert offered("/save ~/notes/") == ["/save ~/notes/a.md"]
    assert offered("/read /nonexistent/x") == offered("/read a\0b/") == offered("/read ~nonesuch/") == []
