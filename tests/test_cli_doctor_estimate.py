"""`llmcli doctor --estimate` and `--fit` at the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.settings import load
from llmcli.cli.main import call
from llmcli.hardware.memory import Memory
from tests.cli_run_case import engine_memo, known_engine

__all__ = ["engine_memo", "known_engine"]


def doctor(captured: pytest.CaptureFixture[bytes], *args: str | Path) -> tuple[int, str, str]:
    code = call(["doctor", *map(str, args)])
    out, err = captured.readouterr()
    return code, out.decode(), err.decode()


def test_estimate(scripted_model: Callable[..., Path], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    model = scripted_model(["hi"], n_ctx=2048)
    code, out, err = doctor(capfdbinary, "--estimate", model, "-c", "1024")
    assert (code, err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert list(lines) == ["model", "memory", "fits", "plan", "context", "rates"]
    assert "for a context of 1,024 tokens: weights " in lines["memory"]
    assert lines["fits"].startswith("yes: ")
    assert lines["plan"].startswith("-c 1024 -t ")
    most, _, why = lines["context"].partition("; ")
    assert most == "at most 2,048, 2,048 with -ctk q8_0 -ctv q8_0, 2,048 with -ctk q4_0 -ctv q4_0"
    assert why == "more than it was trained on is not counted"
    assert lines["rates"] == "not known: llmcli bench --roofline"


def test_estimate_as_json(scripted_model: Callable[..., Path], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    model = scripted_model(["hi"], n_ctx=2048)
    code, out, _ = doctor(capfdbinary, "--estimate", model, "--json")
    found = json.loads(out)
    assert (code, found["fits"], found["n_ctx"], found["contexts"]["f16"]) == (0, True, 2048, 2048)
    assert found["need"]["total_bytes"] == sum(
        found["need"][f"{name}_bytes"] for name in ("weights", "kv", "compute", "vocabulary")
    )


def test_what_does_not_fit_is_exit_6(
    scripted_model: Callable[..., Path],
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    little = Memory(8 << 20, 1 << 20, None, None, 0, 0, None)
    monkeypatch.setattr("llmcli.cli.doctor_estimate.read_memory", lambda: little)
    code, out, err = doctor(capfdbinary, "--estimate", scripted_model(["hi"]), "-c", "256")
    assert (code, err) == (6, "")
    assert "\nfits     no: 1.0 MiB are free\n" in out


def test_no_such_model(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code, out, err = doctor(capfdbinary, "--estimate", tmp_path / "no.gguf")
    assert (code, out) == (3, "")
    assert "no such file" in err


def test_options_without_effect_are_refused(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code, out, err = doctor(capfdbinary, "-c", "512")
    assert (code, out) == (2, "")
    assert "-c is for --estimate and --fit" in err
    code, out, err = doctor(capfdbinary, "--fit", "--estimate", "m")
    assert (code, out) == (2, "")
    assert "give one of them" in err


def test_fit(scripted_model: Callable[..., Path], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code, out, err = doctor(capfdbinary, "--fit")
    assert (code, out) == (0, "")
    assert err.startswith("no model on this machine")
    folder = load().data_dir / "models"
    folder.mkdir(parents=True)
    (folder / "mine.gguf").write_bytes(scripted_model(["hi"], n_ctx=512).read_bytes())
    (folder / "broken.gguf").write_bytes(scripted_model(["hi"]).read_bytes()[:3000])
    code, out, err = doctor(capfdbinary, "--fit", "-c", "512")
    assert code == 0
    assert "broken.gguf is left out" in err
    _, line, note = out.splitlines()
    assert line.split()[0] == "mine"  # as `llmcli ls` names it
    assert " yes " in line
    assert line.endswith(" ?")
    assert note.startswith("?: not measured yet; llmcli bench ")
    _, out, _ = doctor(capfdbinary, "--fit", "--json")
    assert [model["fits"] for model in json.loads(out)["models"]] == [True]
