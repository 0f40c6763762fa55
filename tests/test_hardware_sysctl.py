"""macOS's sysctl: its output as a dictionary, and nothing at all where the program is missing or fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.hardware import sysctl


def _program(folder: Path, script: str) -> str:
    path = folder / "sysctl"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


def test_values_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program(tmp_path, 'test "$1" = -i || exit 1\nshift\nfor name; do echo "$name: 8"; done\n')
    monkeypatch.setattr(sysctl, "_PROGRAM", program)
    assert sysctl.read_sysctl(("hw.logicalcpu", "hw.physicalcpu")) == {"hw.logicalcpu": "8", "hw.physicalcpu": "8"}


def test_missing_program_is_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysctl, "_PROGRAM", str(tmp_path / "none"))
    assert sysctl.read_sysctl(("hw.logicalcpu",)) == {}


def test_hanging_program_is_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysctl, "_PROGRAM", _program(tmp_path, "exec sleep 20\n"))
    monkeypatch.setattr(sysctl, "_TIMEOUT_S", 0.2)
    assert sysctl.read_sysctl(("hw.logicalcpu",)) == {}
