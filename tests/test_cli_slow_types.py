"""Models of slow types are named by `show` and `doctor`, once rates were measured here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings, load
from llmcli.cli.main import call
from llmcli.cli.slow_types import check_types, slow_types
from llmcli.hardware.cores import read_cores
from llmcli.models.description import TypeShare
from llmcli.quant import rates
from llmcli.quant.rates import TypeRate

SHARES = (TypeShare("F32", 1, 10, 40, 0.1), TypeShare("Q4_1", 2, 90, 56, 0.9))
KNOWN = {"Q4_1": TypeRate(0.02, 0.04), "Q4_0": TypeRate(0.01, 0.02)}
SENTENCE = "90% of the weights are of types that are slow on this CPU: Q4_1 takes 2.0 times as long as Q4_0"


def measured(settings: Settings) -> None:
    rates._remember(rates._memo(settings, read_cores().usable), KNOWN)


def test_nothing_is_said_before_something_was_measured() -> None:
    assert slow_types(SHARES, load()) is None


def test_slow_types_are_named() -> None:
    settings = load()
    measured(settings)
    assert (slow_types(SHARES, settings) or "").startswith(SENTENCE)
    assert slow_types(SHARES[:1], settings) is None


def test_a_broken_engine_says_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LlmcliError("llama.cpp does not load")

    monkeypatch.setattr(rates, "slow_advice", broken)
    assert slow_types(SHARES, load()) is None


def test_show_and_doctor_say_it(
    scripted_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = scripted_model(["Hello"])
    sentence = "all of it is slow"
    monkeypatch.setattr(rates, "slow_advice", lambda *_: sentence)
    assert call(["show", str(model)]) == 0
    assert "  speed               all of it is slow\n" in capfd.readouterr().out
    assert call(["show", "--json", str(model)]) == 0
    assert json.loads(capfd.readouterr().out)["slow_types"] == sentence
    (check,) = check_types(str(model), load())
    assert (check.name, check.status, check.message) == ("speed", "warn", f"{model}: {sentence}")
    assert check_types(None, load()) == []
    assert check_types(str(tmp_path / "gone.gguf"), load()) == []
