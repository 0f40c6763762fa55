"""`llmcli bench sweep` on a tiny model, and `llmcli run` with what it saved."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.settings import load
from llmcli.bench import sweep as sweep_module
from llmcli.engine.tuning import table_name
from tests.cli_run_case import Answer, engine_memo, in_process, known_engine, refused
from tests.test_cli_bench_latency import interrupted
from tests.test_cli_cmd_bench import Bench, bench

__all__ = ["bench", "engine_memo", "in_process", "known_engine"]
QUICK = ("-t", "1", "-ub", "32,64", "-fa", "on", "--prompt-tokens", "48", "--answer-tokens", "8", "--budget", "30s")


@pytest.fixture
def model(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", " world"])


@pytest.fixture
def clear_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that depend on the settings alone: small batches win."""
    measure = sweep_module.Sweep._request_s

    def made(self: Any, one: Any, n_prompt: int, n_gen: int) -> float:
        if one.plan is None:
            measure(self, one, n_prompt, n_gen)
        return float(one.candidate.n_ubatch or 1000)

    monkeypatch.setattr(sweep_module.Sweep, "_request_s", made)


def test_json(bench: Bench, model: Path, tmp_path: Path) -> None:
    done = bench("sweep", "-m", model, *QUICK, "--json", "--plot", tmp_path / "sweep.png")
    assert (done.code, done.err) == (0, f"wrote {tmp_path / 'sweep.png'}\n")
    found = json.loads(done.out)
    assert [one["settings"] for one in found["tried"]] == ["as it is", "-t 1 -ub 32 -fa on", "-t 1 -ub 64 -fa on"]
    assert all(one["request_s"] > 0 for one in found["tried"])
    assert found["saved"] is None
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert load().tuned == {}


@pytest.mark.usefixtures("clear_winner")
def test_save_and_run(bench: Bench, answer: Answer, model: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    done = bench("sweep", "-m", model, *QUICK, "--save")
    assert done.code == 0, done.err
    assert "-t 1 -ub 32 -fa on took 96.8% less time than the settings as they are: " in done.out
    assert "-ub  32: 32.00 s, 64: 1 min 04 s" in done.out
    (name,) = load().tuned
    assert done.err == f"saved in {load().config_file}, [tuned.{name}]\n"
    table = load().tuned[name]
    assert {key: table[key] for key in ("threads", "ubatch_size", "flash_attn")} == {
        "threads": 1,
        "ubatch_size": 32,
        "flash_attn": "on",
    }
    found = answer.json(model, "--raw", "hi")
    assert name == table_name(found["model"]["content_id"])
    assert found["plan"]["threads"] == 1


def test_a_tuned_thread_count_is_used_by_run(answer: Answer, model: Path) -> None:
    from llmcli.base.config_edit import set_table
    from llmcli.cli.main import call
    from tests.test_engine_tuning import here

    content_id = answer.json(model, "--raw", "hi")["model"]["content_id"]
    set_table(load().config_file, "tuned", table_name(content_id), {"machine": here(), "ubatch_size": 64, "threads": 1})
    assert call(["run", "-m", str(model), "--raw", "--json", "hi"]) == 0


def test_settings_of_runs_are_no_lists_to_try(bench: Bench, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMCLI_UBATCH_SIZE", "32")
    args = ("-t", "1", "-fa", "on", "--prompt-tokens", "32", "--answer-tokens", "0", "--budget", "60s", "--json")
    found = json.loads(bench("sweep", "-m", model, *args).out)
    assert [one["settings"] for one in found["tried"]][1:] == [
        f"-t 1 -ub {size} -fa on" for size in (64, 128, 256, 512, 1024)
    ]


@pytest.mark.usefixtures("clear_winner")
def test_a_type_that_does_not_exist_is_left_out(bench: Bench, model: Path) -> None:
    done = bench("sweep", "-m", model, *QUICK, "--types", "Q9_9,--help")
    assert done.code == 0
    assert "Q9_9 is left out: " in done.err
    assert "--help is left out: " in done.err


@pytest.mark.usefixtures("clear_winner")
def test_a_winner_that_cannot_be_saved_is_still_shown(bench: Bench, model: Path, llmcli_home: Path) -> None:
    (llmcli_home / "config").write_text("in the way")
    done = bench("sweep", "-m", model, *QUICK, "--save", "--json")
    assert done.code == 1
    assert "config" in done.err
    found = json.loads(done.out)
    assert (found["is_better"], found["saved"]) == (True, None)


def test_bad_values(bench: Bench, model: Path, tmp_path: Path) -> None:
    assert "nothing to be fast for" in refused(
        bench("sweep", "-m", model, "--prompt-tokens", "0", "--answer-tokens", "0"), 2
    )
    assert "is not a duration" in refused(bench("sweep", "-m", model, "--budget", "soon"), 2)
    assert "no such file" in refused(bench("sweep", "-m", tmp_path / "no.gguf", *QUICK), 3)
    assert "an .svg or a .png" in refused(bench("sweep", "-m", model, *QUICK, "--plot", "a.gif"), 2)


@pytest.mark.skipif(os.name == "nt", reason="no process can be sent a Ctrl-C there")
def test_ctrl_c_shows_what_was_measured_and_saves_nothing(model: Path) -> None:
    args: list[str | Path] = ["bench", "sweep", "-m", model, "-t", "1", "-ub", "32-400", "-fa", "on", "--save"]
    args.append("--json")
    done = interrupted(args, b"round 1 of 9, 5 of ")
    assert done.returncode == 130
    assert done.stderr.endswith(b"error: interrupted\n")
    found = json.loads(done.stdout)
    assert (found["interrupted"], found["winner"], found["saved"]) == (True, None, None)
    assert sum(bool(one["rounds_s"]) for one in found["tried"]) in (4, 5)
    assert re.search(rb"^[45] of 370 were measured$", done.stderr, re.MULTILINE)
    assert load().tuned == {}
