"""A text in the user's editor."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings, load
from llmcli.cli.chat_external import edited


def settings_with(tmp_path: Path, script: str, variable: str = "EDITOR", arguments: str = "") -> Settings:
    editor = tmp_path / "my editor"
    editor.write_text(f"#!/bin/sh\n{script}\n")
    editor.chmod(0o700)
    return load({"LLMCLI_HOME": str(tmp_path), variable: f"'{editor}' {arguments}".strip()})


def test_the_text_as_the_editor_left_it(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, 'cp "$2" "$1"; printf " more\\n" >> "$2"', arguments=str(tmp_path / "seen"))
    assert edited("grüß\n  two", settings) == "grüß\n  two more"
    assert (tmp_path / "seen").read_text() == "grüß\n  two"


def test_visual_goes_before_editor(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, 'printf visual > "$1"', "VISUAL")
    both = load({**settings.environment, "EDITOR": "false"})
    assert edited("x", both) == "visual"


def test_the_file_is_private_and_does_not_stay(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, 'stat -c "%a %n" "$1" > "$1.out"; mv "$1.out" "$0.out"')
    assert edited("x", settings) == "x"
    mode, _, name = (tmp_path / "my editor.out").read_text().strip().partition(" ")
    assert int(mode, 8) == stat.S_IRUSR | stat.S_IWUSR
    assert not Path(name).exists()


def test_an_editor_that_fails_changes_nothing(tmp_path: Path) -> None:
    for end, how in (("exit 1", "exit 1"), ("kill -9 $$", "signal 9")):
        with pytest.raises(LlmcliError, match=rf"my editor ended with {how}: nothing is changed"):
            edited("x", settings_with(tmp_path, f'echo other > "$1"; {end}'))


def test_an_editor_that_removes_the_file(tmp_path: Path) -> None:
    with pytest.raises(LlmcliError, match="nothing came back from the editor: No such file or directory"):
        edited("x", settings_with(tmp_path, 'rm "$1"'))


def test_an_editor_that_is_not_there(tmp_path: Path) -> None:
    settings = load({"LLMCLI_HOME": str(tmp_path), "EDITOR": "/nonexistent/e\x1bd"})
    with pytest.raises(LlmcliError, match=r"cannot start the editor /nonexistent/e\\x1bd: No such file or directory"):
        edited("x", settings)
