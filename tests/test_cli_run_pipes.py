"""`llmcli run` between other programs: what its descriptors, its locale, its home and its limits may be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from llmcli.base.settings import load
from tests.cli_run_case import engine_memo, known_engine, refused  # noqa: F401  # fixtures
from tests.conftest import RunCli
from tests.fixtures.cli_process import SCRIPT, Completed, run_process

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs what Linux has alone")
needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
HINT = "still waiting for stdin, an open pipe that sends nothing; end it with Ctrl-D, or use --no-stdin\n"
NO_SPACE = "error: cannot write the answer: No space left on device"


def shell(script: str, *args: str | Path, env: Mapping[str, str] | None = None) -> Completed:
    """`script` with the command's path as $0 and `run -t 1 …` as "$@"."""
    return run_process(["sh", "-c", script, SCRIPT, "run", "-t", "1", *args], env={**os.environ, **(env or {})})


@pytest.fixture
def hello(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", " world"])


@pytest.fixture
def ticking(scripted_model: Callable[..., Path]) -> Path:
    """A model that never ends by itself, with a context for some 100,000 characters."""
    return scripted_model(["tick", " tock", "\n"], loop=True, n_ctx=32768)


@pytest.fixture
def emoji(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Go", *(bytes([byte]) for byte in "🚀é".encode()), "!"])


# ---- stdout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--json"], ["--no-stream"]], ids=["stream", "json", "whole"])
@needs_full
def test_a_full_disk(options: list[str], hello: Path) -> None:
    done = shell('exec "$0" "$@" >/dev/full', "-m", hello, *options, "hi")
    assert refused(done, 6) == NO_SPACE


def test_a_file_that_may_not_grow(hello: Path, tmp_path: Path) -> None:
    done = shell(f'ulimit -f 0; exec "$0" "$@" >{tmp_path / "answer.txt"}', "-m", hello, "hi")
    # The prefix store meets the same limit, and says so before.
    assert (done.code, done.err.splitlines()[-1]) == (1, "error: cannot write to stdout: File too large")
    assert b"Traceback" not in done.stderr
    assert (tmp_path / "answer.txt").read_bytes() == b""


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["stream", "json"])
def test_a_closed_stdout(options: list[str], hello: Path) -> None:
    done = shell('exec "$0" "$@" >&-', "-m", hello, *options, "hi")
    assert refused(done, 1) == "error: stdout is closed: there is nowhere to write the answer"


def test_a_reader_that_takes_one_byte(ticking: Path) -> None:
    done = shell('{ "$0" "$@" -n 20000; echo "exit $?" >&2; } | head -c 1', "-m", ticking, "-c", "32768", "hi")
    assert (done.stdout, done.stderr) == (b"t", b"exit 141\n")


def test_a_reader_that_is_gone_when_the_whole_answer_comes(hello: Path) -> None:
    done = shell('{ "$0" "$@" --json; echo "exit $?" >&2; } | true', "-m", hello, "hi")
    assert (done.stdout, done.stderr) == (b"", b"exit 141\n")


@linux
def test_a_slow_reader_behind_a_non_blocking_pipe(ticking: Path) -> None:
    import fcntl

    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    command: list[str | Path] = [SCRIPT, "run", "-t", "1", "-m", ticking, "-n", "3000", "hi"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE) as child:
        os.close(writer)
        time.sleep(1)
        with open(reader, "rb") as answer:
            assert answer.read() == b"tick tock\n" * 1000
        assert child.communicate()[1] == b""
    assert child.returncode == 0


def test_control_characters_pass_through_a_pipe_as_they_are(
    run_cli: RunCli, scripted_model: Callable[..., Path]
) -> None:
    model = scripted_model(["\x1b[31m", "red", "\x1b]0;x\x07", b"\0", "\r", " end"])
    done = run_cli("run", "-t", "1", "-m", model, "hi")
    assert (done.code, done.stdout, done.stderr) == (0, b"\x1b[31mred\x1b]0;x\x07\0\r end\n", b"")


# ---- stdin -----------------------------------------------------------------------------------------------------------


def test_stdin_is_one_prompt_however_many_lines(run_cli: RunCli, hello: Path) -> None:
    done = run_cli("run", "-t", "1", "-m", hello, stdin="a\nb\nc\n")
    assert (done.code, done.out, done.err) == (0, "Hello world\n", "")


def test_a_closed_stdin(hello: Path) -> None:
    done = shell('exec "$0" "$@" <&-', "-m", hello, "hi")
    assert (done.code, done.out, done.err) == (0, "Hello world\n", "")
    assert "there is no prompt" in refused(shell('exec "$0" "$@" <&-', "-m", hello), 2)


def test_a_stdin_that_is_open_for_writing_alone(hello: Path) -> None:
    # nohup leaves /dev/null like this where stdin was a terminal.
    done = shell('exec "$0" "$@" 0>/dev/null', "-m", hello, "hi")
    assert (done.code, done.out, done.err) == (0, "Hello world\n", "")
    line = refused(shell('exec "$0" "$@" 0>/dev/null', "-m", hello, "-"), 1)
    assert line == "error: cannot read stdin: Bad file descriptor"


def test_a_stdin_that_is_a_directory(hello: Path) -> None:
    # The interpreter refuses it before any of our code runs, in words of its own.
    done = shell('exec "$0" "$@" </', "-m", hello, "hi")
    assert (done.code, done.stdout) == (1, b"")
    assert b"directory" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_silent_pipe_gets_a_hint(hello: Path) -> None:
    done = shell('sleep 4.5 | exec "$0" "$@"', "-m", hello, "hi")
    assert (done.code, done.out, done.err) == (0, "Hello world\n", HINT)


def test_a_silent_pipe_is_left_alone_on_request(hello: Path) -> None:
    reader, writer = os.pipe()
    try:
        with subprocess.Popen(
            [SCRIPT, "run", "-t", "1", "-m", hello, "--no-stdin", "hi"], stdin=reader, stdout=-1, stderr=-1
        ) as child:
            assert child.communicate(timeout=60) == (b"Hello world\n", b"")
    finally:
        os.close(reader)
        os.close(writer)


def test_a_pipe_that_speaks_late_and_does_not_block(hello: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with subprocess.Popen([SCRIPT, "run", "-t", "1", "-m", hello], stdin=reader, stdout=-1, stderr=-1) as child:
        os.close(reader)
        time.sleep(1)
        os.write(writer, b"hi")
        os.close(writer)
        assert child.communicate(timeout=60) == (b"Hello world\n", b"")


@linux
def test_files_that_open_and_cannot_be_read(run_cli: RunCli, hello: Path) -> None:
    line = refused(run_cli("run", "-t", "1", "-m", hello, "-f", "/proc/self/mem", "hi"), 2)
    assert line == "error: cannot read /proc/self/mem: Input/output error"
    assert refused(run_cli("run", "-t", "1", "-m", "/proc/self/mem", "hi"), 3)


def test_a_file_without_permission(run_cli: RunCli, hello: Path, tmp_path: Path) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("x")
    file.chmod(0)
    done = run_cli("run", "-t", "1", "-m", hello, "-f", file, "hi")
    if os.geteuid():
        assert refused(done, 2) == f"error: cannot read {file}: Permission denied"
    else:  # root reads everything
        assert (done.code, done.out) == (0, "Hello world\n")


# ---- locale ----------------------------------------------------------------------------------------------------------

_ASCII = {"LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii"}
_NO_UTF8 = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("env", [_ASCII, _NO_UTF8], ids=["ascii-streams", "no-utf8-mode"])
def test_an_ascii_locale(env: dict[str, str], run_cli: RunCli, emoji: Path) -> None:
    done = run_cli("run", "-t", "1", "-m", emoji, "-sys", "é", "naïve 🚀", env=env)
    assert (done.code, done.stdout, done.stderr) == (0, "Go🚀é!\n".encode(), b"")
    done = run_cli("run", "-t", "1", "-m", emoji, "--stop", "é", stdin="🚀", env=env)
    assert (done.code, done.stdout, done.stderr) == (0, "Go🚀\n".encode(), b"")
    done = run_cli("run", "-t", "1", "-m", emoji, "--grammar", 'root ::= "é"', "hi", env=env)
    assert (done.code, done.stdout, done.stderr) == (0, "é\n".encode(), b"")


def test_an_ascii_locale_and_a_config_that_is_not(run_cli: RunCli, emoji: Path) -> None:
    path = load().config_file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('prompt = "naïve 🚀"\nstop = "é"\nsystem-prompt = "ß"\n', encoding="utf-8")
    done = run_cli("run", "-t", "1", "-m", emoji, env=_NO_UTF8)
    assert (done.code, done.stdout, done.stderr) == (0, "Go🚀\n".encode(), b"")


def test_an_argument_that_is_not_utf8(hello: Path) -> None:
    done = run_process([os.fsencode(SCRIPT), b"run", b"-t", b"1", b"-m", os.fsencode(hello), b"a\xffb"])  # type: ignore[list-item]
    assert (done.code, done.out) == (0, "Hello world\n")
    assert done.err == "warning: the prompt is not UTF-8 at byte 1; wrong bytes were replaced\n"


# ---- home ------------------------------------------------------------------------------------------------------------


def answers_without_the_store(done: Completed) -> None:
    """Nothing that llmcli keeps is needed for an answer. That the prefix store is off is said; nothing else is."""
    assert (done.code, done.out) == (0, "Hello world\n")
    lines = done.err.splitlines()
    assert len(lines) <= 1
    assert all(line.startswith("the prefix store ") for line in lines)


def test_no_home(run_cli: RunCli, hello: Path, tmp_path: Path) -> None:
    # Without HOME the password database has a say, so the folders are moved out of the real one.
    moved = {f"XDG_{kind}_HOME": str(tmp_path / kind) for kind in ("CACHE", "CONFIG", "DATA", "STATE")}
    env = {"HOME": None, "LLMCLI_HOME": None, "HF_HOME": None, **moved}
    done = run_cli("run", "-t", "1", "-m", hello, "hi", env=env)
    assert (done.code, done.out, done.err) == (0, "Hello world\n", "")


# Not even root may write in /proc; elsewhere the home below a file is test enough.
@pytest.mark.parametrize("home", ["/dev/null", "/dev/null/home", pytest.param("/proc", marks=linux)])
def test_a_home_that_cannot_be_written(home: str, run_cli: RunCli, hello: Path) -> None:
    env = {"HOME": home, "LLMCLI_HOME": None, "HF_HOME": None}
    answers_without_the_store(run_cli("run", "-t", "1", "-m", hello, "hi", env=env))
    answers_without_the_store(run_cli("run", "-t", "1", "-m", hello, "hi", env={"LLMCLI_HOME": home}))


def test_a_home_without_write_permission(run_cli: RunCli, hello: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)  # root writes there all the same, and answers too
    try:
        answers_without_the_store(
            run_cli("run", "-t", "1", "-m", hello, "hi", env={"HOME": str(tmp_path), "LLMCLI_HOME": None})
        )
    finally:
        tmp_path.chmod(0o700)


# ---- limits ----------------------------------------------------------------------------------------------------------


@linux
def test_mlock_over_the_limit_warns_and_runs(hello: Path) -> None:
    done = shell('ulimit -l 64; exec "$0" "$@"', "-m", hello, "--mlock", "hi")
    assert (done.code, done.out) == (0, "Hello world\n")
    assert done.err.startswith("--mlock: at most 64.0 KiB may be locked (ulimit -l) and the weights take ")
    assert done.err.count("\n") == 1


@linux
def test_memory_that_cannot_be_had(ticking: Path) -> None:
    # The machine has it, the process may not: only the allocation tells. 256,000 places take 281 MiB.
    done = shell('ulimit -v 300000; exec "$0" "$@" -q', "-m", ticking, "-c", "256000", "hi")
    line = refused(done, 6)
    assert line.startswith("error: no context of 256,000 tokens could be made (KV cache ")
    assert "-ctk q8_0" in line
