"""`llmcli doctor` as a person and a script see it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.settings import load
from llmcli.cli import cmd_doctor
from llmcli.engine import diagnose
from llmcli.engine.probe import Build
from tests.conftest import OpenTerminal, RunCli


@pytest.fixture
def model_folder(scripted_model: Callable[..., Path]) -> Path:
    """One model, so that the default one is not missed (tests are offline)."""
    folder = load().data_dir / "models"
    folder.mkdir(parents=True)
    (folder / "mine.gguf").write_bytes(scripted_model(["hi"]).read_bytes())
    return folder


def test_page(run_cli: RunCli, model_folder: Path) -> None:
    done = run_cli("doctor")
    assert (done.code, done.err) == (0, "")
    rows = done.out.splitlines()
    assert all(re.match(r"(ok  |warn)  \S.*|  +do: \S", row) for row in rows)
    assert done.out.isascii()
    column = rows[0].index("0.1.0")
    assert all(row[column - 1] == " " != row[column] for row in rows if not row.startswith(" "))
    assert f"ok    default model     {model_folder / 'mine.gguf'}; 1 model on this machine" in rows


def test_json(run_cli: RunCli, model_folder: Path) -> None:
    done = run_cli("doctor", "--json", env={"HF_TOKEN": "hf_verysecret"})
    assert (done.code, done.err) == (0, "")
    assert "hf_verysecret" not in done.out
    found = json.loads(done.out)
    assert done.out.count("\n") == 1
    assert found["status"] in ("ok", "warn")
    assert found["build"]["loads"] is True
    assert found["build"]["features"]["CPU"]
    assert found["cpu"]["missing_on_cpu"] == []
    assert found["environment"]["HF_TOKEN"] == "(set, not shown)"
    assert found["default_model"]["path"] == str(model_folder / "mine.gguf")
    assert found["terminal"]["is_terminal"] is False
    assert {tuple(check) for check in found["checks"]} == {("name", "status", "message", "advice")}


def test_settings_without_effect_are_told(run_cli: RunCli, model_folder: Path) -> None:
    config = load().config_file
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text('temp = 0.5\ntmep = 1\nctx-size = 512\n[alias]\na = "b"\n[run]\nseed = 1\n')
    done = run_cli("doctor", env={"LLMCLI_TOP_K": "3", "LLMCLI_CACHE_SALT": "pepper", "LLMCLI_TOPK": "3"})
    assert done.code == 0
    told = re.findall(r"^warn  settings +(.*)\n +do: (.*)$", done.out, re.MULTILINE)
    assert told == [
        (f"tmep in {config} stands for no option, and has no effect", "write temp, if that is meant"),
        (
            f"run in {config} stands for no option, and has no effect",
            "take it out; llmcli COMMAND --help lists the options",
        ),
        ("LLMCLI_TOPK stands for no option, and has no effect", "write LLMCLI_TOP_K, if that is meant"),
    ]
    assert "pepper" not in done.out


def test_the_token_is_not_on_the_page(run_cli: RunCli, model_folder: Path) -> None:
    done = run_cli("doctor", env={"HF_TOKEN": "hf_verysecret"})
    assert "HF_TOKEN=(set, not shown)" in done.out
    assert "hf_verysecret" not in done.out + done.err


def test_something_that_fails_is_exit_1(run_cli: RunCli) -> None:
    done = run_cli("doctor", env={"LLMCLI_MODEL": "/no/such.gguf"})
    assert done.code == 1
    assert re.search(r"^fail  default model .*/no/such\.gguf", done.out, re.MULTILINE)
    done = run_cli("doctor", "--json", env={"LLMCLI_MODEL": "/no/such.gguf"})
    assert (done.code, json.loads(done.out)["status"]) == (1, "fail")


def test_a_library_that_kills_its_process(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = Build(error="loading it ends in an illegal instruction", illegal_instruction=True)
    monkeypatch.setattr(
        cmd_doctor, "gather", lambda settings, terminal: diagnose.gather(settings, terminal, probe=lambda: broken)
    )
    code = cmd_doctor.command.main(args=[], obj=load(), standalone_mode=False)
    out = capfd.readouterr().out
    assert code == 1
    assert "fail  build             loading it ends in an illegal instruction: it was built for a CPU" in out
    assert "do: build the engine again" in out


def test_an_encoding_that_is_not_utf_8(run_cli: RunCli, model_folder: Path) -> None:
    done = run_cli("doctor", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.code == 0
    assert "warn  terminal" in done.out


def test_config_that_cannot_be_read_is_exit_2(run_cli: RunCli) -> None:
    path = load().config_file
    path.parent.mkdir(parents=True)
    path.write_text("= nonsense")
    done = run_cli("doctor")
    assert (done.code, done.out) == (2, "")
    assert "is not valid TOML" in done.err


def test_colour_on_a_terminal(open_terminal: OpenTerminal, model_folder: Path) -> None:
    with open_terminal("doctor", columns=100) as terminal:
        assert terminal.wait() == 0
        assert b"\x1b[32mok  \x1b[0m  llmcli" in terminal.screen
        assert b"terminal of 100 columns, with colour" in terminal.screen


def test_no_color(open_terminal: OpenTerminal, model_folder: Path) -> None:
    with open_terminal("doctor", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
        assert b"\x1b" not in terminal.screen


def test_control_characters_do_not_reach_the_terminal(open_terminal: OpenTerminal, model_folder: Path) -> None:
    with open_terminal("doctor", env={"LLMCLI_MODEL": "\x1b]0;gotcha\x07"}) as terminal:
        assert terminal.wait() == 1
        assert b"\x1b]0;" not in terminal.screen
        assert b"\\x1b]0;gotcha\\x07" in terminal.screen


def test_unknown_option(run_cli: RunCli) -> None:
    assert run_cli("doctor", "--fast").code == 2


def test_disks_and_hub(run_cli: RunCli, model_folder: Path) -> None:
    found = json.loads(run_cli("doctor", "--json").out)
    assert found["disks"][0]["write_bytes_s"] > 0
    assert found["hub"] == {
        "endpoint": "https://huggingface.co",
        "asked": False,
        "seconds": None,
        "proxy": None,
        "problem": None,
        "hint": None,  # tests are offline
    }
    names = [check["name"] for check in found["checks"]]
    assert names[-2:] == ["disk", "hub"]
    quick = json.loads(run_cli("doctor", "--json", "--quick").out)
    assert quick["disks"] == []


def test_a_hub_behind_a_dead_proxy_is_a_warning(run_cli: RunCli, model_folder: Path) -> None:
    env = {"HF_HUB_OFFLINE": None, "HTTPS_PROXY": "http://me:secret@127.0.0.1:1"}
    done = run_cli("doctor", env=env)
    assert done.code == 0
    (line,) = [line for line in done.out.splitlines() if line.startswith("warn  hub ")]
    assert "through the proxy http://127.0.0.1:1: Connection refused" in line
    assert "secret" not in line


def test_a_build_that_dies_of_an_illegal_instruction(run_cli: RunCli, model_folder: Path, tmp_path: Path) -> None:
    """A package in front of the real one, whose library kills whoever loads it: the doctor lives, and says so."""
    package = tmp_path / "llama_cpp"
    (package / "lib").mkdir(parents=True)
    (package / "lib" / "libllama.so").write_bytes(b"")
    (package / "__init__.py").write_text("")
    (package / "llama_cpp.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    done = run_cli("doctor", "--quick", env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 1
    assert re.search(
        r"^fail  build +loading it ends in an illegal instruction: it was built for", done.out, re.MULTILINE
    )
    assert "do: build the engine again" in done.out
    estimate = run_cli("doctor", "--estimate", model_folder / "mine.gguf", env={"PYTHONPATH": str(tmp_path)})
    assert (estimate.code, estimate.out) == (1, "")
    assert "illegal instruction" in estimate.err


def test_options_of_groups_are_no_slips(run_cli: RunCli, model_folder: Path) -> None:
    done = run_cli(
        "doctor", "--quick", env={"LLMCLI_REPETITIONS": "3", "LLMCLI_N_PROMPT": "64", "LLMCLI_N_PROMT": "64"}
    )
    told = re.findall(r"^warn  settings +(\S+) stands for no option", done.out, re.MULTILINE)
    assert told == ["LLMCLI_N_PROMT"]
