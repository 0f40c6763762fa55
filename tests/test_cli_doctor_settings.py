"""Settings that no command reads are tested with the page (test_cli_cmd_doctor.py); here, values that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.settings import load
from llmcli.cli.doctor_settings import judge_settings


@pytest.fixture
def configure(llmcli_home: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = llmcli_home / "config" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def told(monkeypatch: pytest.MonkeyPatch, **variables: str) -> list[tuple[str, str]]:
    for name, value in variables.items():
        monkeypatch.setenv(f"LLMCLI_{name}", value)
    return [(check.status, check.message) for check in judge_settings(load())]


def test_values_that_are_taken(
    llmcli_home: Path, monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], Path]
) -> None:
    configure('temp = 0.5\nstop = ["a", "b"]\njson = true\nthreads = 2\n')
    assert (
        told(monkeypatch, THREADS="2", STOP="a\nb", LOGIT_BIAS="1+2\n3-inf", RAW="yes", TOP_K="", CTX_SIZE="64") == []
    )


def test_a_value_that_every_command_refuses(llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = told(monkeypatch, THREADS="abc")
    assert found == (
        "fail",
        "LLMCLI_THREADS is refused: Invalid value for '-t' / '--threads': 'abc' is not a whole number",
    )


def test_a_value_that_some_commands_refuse(llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = told(monkeypatch, ON_OVERFLOW="drop")
    assert found[1].startswith("LLMCLI_ON_OVERFLOW is refused by llmcli run: Invalid value for '--on-overflow': 'drop'")


def test_values_in_config_toml(monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], Path]) -> None:
    path = configure('temp = "warm"\nstop = 3\nseed = 1.5\n')
    found = told(monkeypatch)
    assert [status for status, _ in found] == ["fail"] * 3
    assert [text.partition(" is refused")[0] for _, text in found] == [
        f"{key} in {path}" for key in ("seed", "stop", "temp")
    ]
