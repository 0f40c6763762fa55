"""`llmcli run` with real models: llama.cpp's own answers, seeds, and the main job, a summary in a pipeline."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli_run_case import engine_memo, known_engine  # noqa: F401  # fixtures
from tests.conftest import RunCli
from tests.fixtures.real_models import greedy_text

CASES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "greedy.json").read_text())["cases"]
_CHAT = re.compile(
    r"<\|im_start\|>system\n(?P<system>.*?)<\|im_end\|>\n<\|im_start\|>user\n(?P<user>.*?)<\|im_end\|>\n"
    r"<\|im_start\|>assistant\n",
    re.DOTALL,
)
COMMITS = b"""\
commit 5f0c1d2e8a7b9c3d4e5f60718293a4b5c6d7e8f9
Author: Ada Lovelace <ada@example.org>
Date:   Mon Mar 3 10:12:45 2025 +0100

    Reader: bound the length of strings in the header

    A damaged file could ask for 2^60 bytes.

commit 0a1b2c3d4e5f60718293a4b5c6d7e8f9a0b1c2d3
Author: Alan Turing <alan@example.org>
Date:   Sun Mar 2 18:40:02 2025 +0100

    Docs: say which exit code means what
"""


def arguments(case: dict[str, Any]) -> list[str]:
    """How a person asks for a case: a chat with its system prompt, anything else as raw text."""
    chat = _CHAT.fullmatch(case["prompt"])
    return ["-sys", chat["system"], chat["user"]] if chat else ["--raw", "--", case["prompt"]]


@pytest.mark.parametrize("name", CASES)
def test_greedy_answers_are_those_of_llama_cpp(name: str, run_cli: RunCli, smollm2_path: Path) -> None:
    case = CASES[name]
    asked = arguments(case)
    assert (asked[0] == "-sys") == (name in {"chat_capital", "chat_sky", "chat_list"})
    done = run_cli("run", "-t", "1", "-m", smollm2_path, "--temp", "0", "-n", "32", "--json", *asked)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["text"] == greedy_text(case)
    assert found["usage"]["prompt_tokens"] == len(case["prompt_tokens"])
    assert found["finish_reason"] == ("stop" if case["ended"] else "length")


def test_the_same_seed_gives_the_same_bytes_however_they_come_out(run_cli: RunCli, smollm2_path: Path) -> None:
    def said(*options: str) -> bytes:
        common = ("-t", "1", "-m", smollm2_path, "--temp", "1.5", "-n", "16", "Tell me a story")
        done = run_cli("run", *common, *options)
        assert (done.code, done.err) == (0, "")
        return done.stdout

    streamed = said("-s", "42")
    assert said("-s", "42", "--no-stream") == streamed
    account = json.loads(said("-s", "42", "--json"))
    assert (account["text"] + "\n").encode() == streamed
    assert account["usage"]["completion_tokens"] == 16
    assert len({streamed, said("-s", "43"), said(), said("-s", "-1")}) == 4


def test_a_log_piped_in_is_summarised(run_cli: RunCli, smollm2_path: Path) -> None:
    done = run_cli("run", "-t", "1", "-m", smollm2_path, "--temp", "0", "-n", "24", "Summarise", stdin=COMMITS)
    assert (done.code, done.err) == (0, "")
    assert done.stdout.count(b"\n") >= 1 and done.stdout.endswith(b"\n")
    assert len(done.out.split()) > 10
    assert "<|im_" not in done.out


def test_a_base_model(run_cli: RunCli, gemma3_path: Path) -> None:
    common = ("run", "-t", "1", "-m", gemma3_path, "--temp", "0", "-n", "4")
    done = run_cli(*common, "--raw", "The capital of France is")
    assert (done.code, done.err) == (0, "")
    assert done.out == " the capital of the\n"  # what llama-cpp-python's own Llama class says
    done = run_cli(*common, "--json", "The capital of France is")
    assert done.code == 0
    assert "this model has no chat template (a base model?)" in done.err
    assert done.err.count("\n") == 1
    assert json.loads(done.out)["usage"]["completion_tokens"] <= 4
