"""`llmcli run --session NAME` as a process of its own: one turn of a saved conversation from a script."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chat_case import STRICT, library
from tests.cli_run_case import engine_memo, known_engine
from tests.conftest import RunCli
from tests.fixtures.cli_process import SCRIPT, Completed

__all__ = ["engine_memo", "known_engine"]
Scripted = Callable[..., Path]
Run = Callable[..., Completed]


@pytest.fixture(name="model")
def greeter(scripted_model: Scripted) -> Path:
    return scripted_model(["Hello", " world", "!"], chat_template=STRICT, n_ctx=2048)


@pytest.fixture(name="run")
def in_session(run_cli: RunCli, model: Path) -> Run:
    def run(*args: str, session: str = "s", stdin: bytes | None = None) -> Completed:
        return run_cli("run", "-t", "1", "--temp", "0", "-m", model, "--session", session, *args, stdin=stdin)

    return run


def users(session: str = "s") -> list[str]:
    return [turn.user for turn in library().read(session).history.turns]


def test_turns_add_up_and_a_chat_goes_on(run: Run, run_cli: RunCli, model: Path) -> None:
    done = run("one")
    assert (done.code, done.out, done.err) == (0, "Hello world!\n", "")
    found = json.loads(run("--json", "two").out)
    assert (found["session"], found["turn"], found["user"], found["text"]) == ("s", 2, "two", "Hello world!")
    done = run_cli("chat", "-t", "1", "-m", model, "--continue", stdin=b"three\n")
    assert (done.code, done.out) == (0, "Hello world!\n")
    assert users() == ["one", "two", "three"]
    turns = library().read("s").history.turns
    for earlier, later in itertools.pairwise(turns):
        assert later.prompt_ids[: len(earlier.ids)] == earlier.ids


def test_the_question_is_put_together_as_in_any_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    assert run("-f", str(tmp_path / "notes.txt"), "why?", stdin=b"piped\n").code == 0
    assert users() == ["notes\n\npiped\n\nwhy?"]


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (["--raw", "x"], 2, "--raw is no turn of a conversation, so --session cannot go with it"),
        (["--on-overflow", "middle", "x"], 2, "--on-overflow middle cuts a prompt"),
        ([], 2, "there is no prompt"),
        (["--", "x " * 5000], 4, "and the context 2,048"),
    ],
)
def test_what_is_refused_leaves_no_session(args: list[str], code: int, why: str, run: Run) -> None:
    done = run(*args)
    assert (done.code, done.out) == (code, "")
    assert why in done.err
    assert "Traceback" not in done.err
    assert library().names() == []


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "a\x1b]0;x\x07"])
def test_names_that_are_none(name: str, run: Run) -> None:
    done = run("x", session=name)
    assert (done.code, done.out) == (2, "")
    assert "is no name for a session" in done.err
    assert "\x1b" not in done.err


def test_another_model_is_refused(run: Run, run_cli: RunCli, scripted_model: Scripted) -> None:
    run("one")
    other = scripted_model(["Bye"], chat_template=STRICT, n_ctx=2048)
    done = run_cli("run", "-m", other, "--session", "s", "two")
    assert (done.code, done.out) == (2, "")
    assert "session s is with the model " in done.err
    assert users() == ["one"]


def test_ctrl_c_keeps_what_came(run: Run, scripted_model: Scripted) -> None:
    run("one")
    path = library().path("s")
    singer = scripted_model(["la", "li"], chat_template=STRICT, loop=True, n_ctx=2048)
    command = [str(SCRIPT), "run", "-t", "1", "--temp", "0", "-m", str(singer), "--session", "song", "sing"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.read(4) == b"lali"
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=20)
    assert child.returncode == 130
    turn = library().read("song").history.turns[0]
    assert (turn.user, turn.finish_reason, turn.text[:4]) == ("sing", "interrupted", "lali")
    assert path.is_file()


def test_a_session_that_is_open_is_told(run: Run) -> None:
    run("one")
    with library().open("s"):
        done = run("two")
    assert (done.code, done.out) == (1, "")
    assert "session s is open in another llmcli (process " in done.err
    assert users() == ["one"]
