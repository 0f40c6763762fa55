from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from llmcli.cli.main import call
from tests.conftest import RunCli

FIRST_LINES = {"bash": "_llmcli_completion() {", "zsh": "#compdef llmcli", "fish": "function _llmcli_completion;"}


@pytest.mark.parametrize("shell", FIRST_LINES)
def test_the_script_of_each_shell(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["completion", shell]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[0] == FIRST_LINES[shell]
    assert "_LLMCLI_COMPLETE" in out
    assert err == ""


@pytest.mark.parametrize("shell", FIRST_LINES)
def test_the_users_shell_is_the_default(
    shell: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert call(["completion"]) == 0
    assert capfd.readouterr().out.splitlines()[0] == FIRST_LINES[shell]


@pytest.mark.parametrize("shell", [None, "/bin/tcsh", ""])
def test_no_known_shell(shell: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    if shell is None:
        monkeypatch.delenv("SHELL", raising=False)
    else:
        monkeypatch.setenv("SHELL", shell)
    assert call(["completion"]) == 2
    assert capfd.readouterr() == ("", "error: which shell? (llmcli completion bash|zsh|fish)\n")


def test_an_unknown_shell(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["completion", "tcsh"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "error: there is no completion for tcsh (llmcli completion bash|zsh|fish)\n"


@pytest.mark.parametrize("page", ["help", "docs"])
def test_the_lines_of_the_examples_work_in_a_new_home(page: str, tmp_path: Path, run_cli: RunCli) -> None:
    docs = Path(__file__).parent.parent / "docs/commands/completion.md"
    text = run_cli("completion", "--help").out if page == "help" else docs.read_text()
    lines = [line.strip() for line in text.splitlines() if line.lstrip().startswith(("mkdir ", "llmcli completion "))]
    assert len(lines) == 6
    script = "llmcli() { echo a script; }\n" + "\n".join(lines)
    done = subprocess.run(["sh", "-ec", script], env={**os.environ, "HOME": str(tmp_path)}, check=False)
    assert done.returncode == 0
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 3


def test_a_shell_is_told_commands_and_options(run_cli: RunCli) -> None:
    def complete(words: str, at: int) -> list[str]:
        done = run_cli(env={"_LLMCLI_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)})
        assert (done.code, done.err) == (0, "")
        return done.out.splitlines()

    assert complete("llmcli ru", 1) == ["plain,run"]
    assert complete("llmcli run --flash-attn ", 3) == ["plain,auto", "plain,on", "plain,off"]
    assert complete("llmcli tokenize --no-b", 2) == ["plain,--no-bos"]
    # Files are left to the shell: "default" completion of what is typed so far.
    for line in (
        "run -f",
        "run -m",
        "run --lora",
        "quantize",
        "show",
        "rm",
        "verify",
        "path",
        "imatrix",
        "quality",
        "cache save -sysf",
        "cache warm",
        "cache export name",
        "cache why",
    ):
        words = f"llmcli {line} no"
        assert complete(words, len(words.split()) - 1) == ["file,no"], line
    assert complete("llmcli cache ls --cache-dir ", 4) == ["dir,"]
    assert complete("llmcli nope --x", 2) == [""]


def test_a_shell_that_says_nothing_to_complete(run_cli: RunCli) -> None:
    done = run_cli(env={"_LLMCLI_COMPLETE": "bash_complete"})
    told = "error: _LLMCLI_COMPLETE is set, and what the shell is to complete is not (llmcli completion)\n"
    assert (done.code, done.out, done.err) == (2, "", told)


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
def test_bash_takes_the_script(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capfd.readouterr().out)
    command = f"set -eu; . {tmp_path / 'script'}; complete -p llmcli"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_llmcli_completion" in done.stdout
