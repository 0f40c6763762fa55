"""`llmcli run` in a terminal, and what ends it: Ctrl-C in each of its phases, SIGTERM."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli_run_case import engine_memo, known_engine  # noqa: F401  # fixtures
from tests.conftest import OpenTerminal
from tests.fixtures.cli_process import SCRIPT
from tests.fixtures.terminal import CTRL_C, CTRL_D, ENTER

# From the signal to the end of the process. Idle it is 0.1 s; the rest is for machines that do something else too.
AT_ONCE_S = 3.0


@pytest.fixture
def hello(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", " world"])


@pytest.fixture
def ticking(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["tick", " tock", "\n"], loop=True, n_ctx=32768)


@pytest.fixture
def thinking(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["<think>", "secret", "</think>", "answer"])


# ---- what a person sees ----------------------------------------------------------------------------------------------


def test_an_answer(open_terminal: OpenTerminal, hello: Path) -> None:
    with open_terminal("run", "-t", "1", "-m", hello, "hi") as terminal:
        assert terminal.wait() == 0
        assert terminal.screen == b"Hello world\r\n"


def test_no_prompt_is_a_usage_error_and_no_dialogue(open_terminal: OpenTerminal, hello: Path) -> None:
    with open_terminal("run", "-t", "1", "-m", hello) as terminal:
        assert terminal.wait() == 2
        assert terminal.screen == b'error: there is no prompt (try: llmcli run "Why is the sky blue?")\r\n'


def test_a_prompt_typed_in(open_terminal: OpenTerminal, hello: Path) -> None:
    with open_terminal("run", "-t", "1", "-m", hello, "-") as terminal:
        terminal.read_until("reading the prompt from the terminal; end it with Ctrl-D\r\n")
        terminal.send(b"hi" + ENTER + CTRL_D)
        assert terminal.wait() == 0
        assert terminal.screen.endswith(b"Hello world\r\n")


def test_control_characters_of_the_model_do_nothing(
    open_terminal: OpenTerminal, scripted_model: Callable[..., Path]
) -> None:
    model = scripted_model(["\x1b[31m", "red", "\x1b]0;x\x07", b"\x9b", "\r", "\x08", "\tend"])
    with open_terminal("run", "-t", "1", "-m", model, "hi") as terminal:
        assert terminal.wait() == 0
        assert terminal.screen == "\\x1b[31mred\\x1b]0;x\\x07\ufffd\\x0d\\x08\tend\r\n".encode()


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, b"\x1b[2msecret\x1b[0m\x1b[2m\r\n\x1b[0manswer\r\n"),
        ({"NO_COLOR": "1"}, b"secret\r\nanswer\r\n"),
        ({"NO_COLOR": ""}, b"\x1b[2msecret\x1b[0m\x1b[2m\r\n\x1b[0manswer\r\n"),
        ({"TERM": "dumb"}, b"secret\r\nanswer\r\n"),
    ],
    ids=["color", "NO_COLOR", "empty NO_COLOR", "dumb"],
)
def test_thinking_is_dimmed(env: dict[str, str], expected: bytes, open_terminal: OpenTerminal, thinking: Path) -> None:
    with open_terminal("run", "-t", "1", "-m", thinking, "hi", env=env) as terminal:
        assert terminal.wait() == 0
        assert terminal.screen == expected


def test_thinking_alone_is_the_answer_and_not_dimmed(open_terminal: OpenTerminal, thinking: Path) -> None:
    with open_terminal("run", "-t", "1", "-m", thinking, "--reasoning", "only", "hi") as terminal:
        assert terminal.wait() == 0
        assert terminal.screen == b"secret\r\n"


def test_no_thinking_to_show_is_said(open_terminal: OpenTerminal, hello: Path) -> None:
    with open_terminal("run", "-t", "1", "-m", hello, "--reasoning", "only", "hi") as terminal:
        assert terminal.wait() == 0
        assert terminal.screen == b"the model wrote no thinking, and --reasoning only shows nothing else\r\n"


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_while_a_large_model_is_checked(open_terminal: OpenTerminal, hello: Path, tmp_path: Path) -> None:
    large = tmp_path / "large.gguf"
    shutil.copyfile(hello, large)
    os.truncate(large, 64 << 30)  # takes no room, and a minute to hash
    with open_terminal("run", "-t", "1", "-m", large, "hi") as terminal:
        terminal.read_until("checking")
        begun = time.monotonic()
        terminal.send(CTRL_C)
        assert terminal.wait() == 130
        assert time.monotonic() - begun < AT_ONCE_S
        assert b"error: interrupted\r\n" in terminal.screen
        assert b"Traceback" not in terminal.screen


def test_ctrl_c_while_a_template_runs(open_terminal: OpenTerminal, scripted_model: Callable[..., Path]) -> None:
    slow = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with open_terminal("run", "-t", "1", "-v", "-m", scripted_model(["x"], chat_template=slow), "hi") as terminal:
        terminal.read_until("sched_reserve: reserve took")  # the last line of the load; then the template has 2 s
        time.sleep(0.5)
        terminal.send(CTRL_C)
        assert terminal.wait() == 130
        assert terminal.screen.endswith(b"error: interrupted\r\n")


def test_ctrl_c_while_the_prompt_is_typed(open_terminal: OpenTerminal, hello: Path) -> None:
    with open_terminal("run", "-t", "1", "-m", hello, "-") as terminal:
        terminal.read_until("Ctrl-D\r\n")
        terminal.send(CTRL_C)
        assert terminal.wait() == 130
        assert terminal.screen.endswith(b"error: interrupted\r\n")


def test_ctrl_c_during_the_answer(open_terminal: OpenTerminal, ticking: Path) -> None:
    with open_terminal("run", "-t", "1", "-m", ticking, "-c", "32768", "hi") as terminal:
        terminal.read_until("tick tock\r\n" * 20)
        begun = time.monotonic()
        terminal.send(CTRL_C)
        assert terminal.wait() == 130
        assert time.monotonic() - begun < AT_ONCE_S
    # Both the answer's newline and the message are there; ^C is the terminal's echo.
    assert re.fullmatch(rb"(tick(\^C)?( tock(\^C)?(\r\n(\^C)?)?)?)*(\r\n)?error: interrupted\r\n", terminal.screen)


class Child:
    """`llmcli run -t 1 …` with pipes, to be sent a signal."""

    def __init__(self, *args: str | Path, stdin: bytes = b"") -> None:
        command = [SCRIPT, "run", "-t", "1", *args]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        assert self.process.stdin is not None
        self.process.stdin.write(stdin)
        self.process.stdin.close()

    def heard(self, wanted: bytes, descriptor: int) -> bytes:
        """What came on stdout (1) or stderr (2) up to the first piece that has `wanted` in it."""
        pipe = self.process.stdout if descriptor == 1 else self.process.stderr
        assert pipe is not None
        data = b""
        while wanted not in data:
            piece = os.read(pipe.fileno(), 65536)
            assert piece, data
            data += piece
        return data

    def end(self, number: signal.Signals) -> tuple[int, bytes, bytes, float]:
        """Send the signal: the exit code, what else came on stdout and stderr, the seconds it took."""
        begun = time.monotonic()
        self.process.send_signal(number)
        assert self.process.stdout is not None and self.process.stderr is not None
        with self.process, self.process.stdout as out, self.process.stderr as err:
            rest = out.read(), err.read()
            code = self.process.wait(timeout=60)
        return code, *rest, time.monotonic() - begun


def test_an_interrupt_keeps_what_was_said(ticking: Path) -> None:
    child = Child("-m", ticking, "-c", "32768", "hi")
    begun = child.heard(b"tick tock\n" * 5, 1)
    code, rest, err, seconds = child.end(signal.SIGINT)
    assert (code, err) == (130, b"error: interrupted\n")
    assert re.fullmatch(rb"(tick tock\n)*(tick( tock)?\n)?", begun + rest)
    assert seconds < AT_ONCE_S


@pytest.mark.parametrize("options", [("--json",), ("--no-stream",)], ids=["json", "whole"])
def test_an_interrupt_of_an_answer_that_is_not_streamed(options: tuple[str, ...], ticking: Path) -> None:
    child = Child("-m", ticking, "-c", "32768", "-v", *options, "hi")
    child.heard(b"sched_reserve: reserve took", 2)
    time.sleep(1.0)
    code, out, err, seconds = child.end(signal.SIGINT)
    assert code == 130
    assert err.endswith(b"error: interrupted\n")
    assert b"tick tock" in out
    assert out.endswith(b"\n")
    assert seconds < AT_ONCE_S
    if "--json" in options:
        assert b'"finish_reason": "interrupted"' in out


def test_sigterm_ends_it_as_a_signal_does(ticking: Path) -> None:
    child = Child("-m", ticking, "-c", "32768", "hi")
    child.heard(b"tick tock\n" * 5, 1)
    code, _, err, seconds = child.end(signal.SIGTERM)
    assert (code, err) == (-signal.SIGTERM, b"")
    assert seconds < AT_ONCE_S


@pytest.mark.real_model
def test_an_interrupt_during_a_long_prefill(smollm2_path: Path) -> None:
    text = b"The quick brown fox jumps over the lazy dog. " * 360
    child = Child("-m", smollm2_path, "-v", "-n", "5", stdin=text)
    child.heard(b"sched_reserve: reserve took", 2)
    time.sleep(1.5)
    code, out, err, seconds = child.end(signal.SIGINT)
    assert (code, out) == (130, b"\n")
    assert err.endswith(b"error: interrupted\n")
    assert b"Traceback" not in err
    assert b" 0 tokens in " in err  # of --stats: nothing was generated
    assert seconds < AT_ONCE_S
