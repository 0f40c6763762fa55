"""The console script as a whole: the table of commands and the one error boundary."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import click
import pytest

from llmcli.base import errors
from llmcli.cli import lazy
from llmcli.cli.main import COMMANDS, call
from tests.conftest import OpenTerminal, RunCli
from tests.fixtures.cli_process import SCRIPT, Completed, run_process

HEAVY = ("llama_cpp", "huggingface_hub", "numpy", "rich", "jinja2", "psutil", "llmcli.engine", "llmcli.models")
needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")


@pytest.fixture
def model(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", " world"])


class Run:
    """Calls llmcli in this process: (exit code, stdout, stderr)."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *args: str) -> tuple[int, str, str]:
        code = call(args)
        return code, *self._capfd.readouterr()


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return Run(capfd)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Puts a body in place of `llmcli doctor`'s."""

    def replace(body: Callable[[], Any]) -> None:
        module = SimpleNamespace(command=click.Command("doctor", callback=body, params=[click.Option(["-v"])]))
        monkeypatch.setattr(lazy, "import_module", lambda name: module)

    return replace


def failing(error: BaseException) -> Callable[[], NoReturn]:
    def body(**_: object) -> NoReturn:
        raise error

    return body


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_tells_the_truth(name: str) -> None:
    module, attribute, summary = COMMANDS[name]
    command = getattr(import_module(f"llmcli.cli.{module}"), attribute)
    assert isinstance(command, click.Command)
    assert summary.endswith(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_is_ascii_and_fits_80_columns(name: str, run: Run) -> None:
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 80
    assert run(name, "-h") == (0, out, "")


def test_help_lists_the_commands_and_version_is_one_line(run: Run) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()] == list(
        COMMANDS
    )
    assert run("--version") == run("-V") == (0, "llmcli 0.1.0\n", "")


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(flag: str) -> None:
    code = (
        "import sys\nfrom llmcli.cli.main import call\n"
        f"assert call([{flag!r}]) == 0\n"
        f"print([n for n in sys.modules if n.startswith({HEAVY!r})], file=sys.stderr)"
    )
    done = run_process([sys.executable, "-c", code])
    assert (done.code, done.err) == (0, "[]\n")
    assert done.out.startswith(("Usage: llmcli", "llmcli 0.1.0"))


def test_no_arguments_show_the_help_on_stderr(run: Run) -> None:
    _, help_text, _ = run("--help")
    assert run() == (2, "", help_text)


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["rnu", "hi"], "llmcli run"),
        (["RUN"], "llmcli run"),
        (["tokenise"], "llmcli tokenize"),
        (["Why is the sky blue?"], 'llmcli run "PROMPT", or llmcli --help'),
        ([""], 'llmcli run "PROMPT", or llmcli --help'),
    ],
)
def test_an_unknown_command_suggests(args: list[str], meant: str, run: Run) -> None:
    message = f"error: there is no command {args[0]!r}; did you mean: {meant} (see llmcli --help)\n"
    assert run(*args) == (2, "", message)


def test_an_unknown_option_suggests(run: Run) -> None:
    code, out, err = run("run", "--tmep", "1", "hi")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: No such option '?--tmep.*--temp.* \(see llmcli run --help\)\n", err)
    assert run("--tmep")[0] == 2


def test_an_option_without_its_value(run: Run) -> None:
    assert run("run", "hi", "-n") == (2, "", "error: Option '-n' requires an argument. (see llmcli run --help)\n")
    assert run("-Z") == (2, "", "error: No such option '-Z'. (see llmcli --help)\n")


# ---- the boundary ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.LlmcliError("a\x1b b", hint="do c"), 1, "a\\x1b b (do c)"),
        (errors.ModelError("no such file: x"), 3, "no such file: x"),
        (errors.LimitMissedError("cut"), 5, "cut"),
        (errors.UserInterruptError(), 130, "interrupted"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (MemoryError(), 6, "not enough memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/x\n"), 6, "/x\\n: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "/x: Permission denied"),
        (OSError("odd"), 1, "odd"),
        (click.UsageError("a\nb"), 2, "a b (see llmcli doctor --help)"),
        (ValueError("a\nb"), 1, "internal error, please report it: ValueError: a\\nb (-v shows where)"),
        (RecursionError(), 1, "internal error, please report it: RecursionError:  (-v shows where)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_failure_is_one_line(error: BaseException, code: int, line: str, command: Any, run: Run) -> None:
    command(failing(error))
    assert run("doctor") == (code, "", f"error: {line}\n")


def test_a_table_stands_below_its_message(command: Any, run: Run) -> None:
    command(failing(errors.ModelError("two\nmodels", hint="one of:\n  a\x1b.gguf\n  b.gguf")))
    assert run("doctor") == (3, "", "error: two\\nmodels; one of:\n  a\\x1b.gguf\n  b.gguf\n")


def test_verbose_shows_where_a_bug_is(command: Any, run: Run) -> None:
    command(failing(ValueError("oh")))
    code, out, err = run("doctor", "-v", "1")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.splitlines()[-1] == "error: internal error, please report it: ValueError: oh (-v shows where)"


def test_a_reader_that_went_away_is_141_without_a_word(command: Any, run: Run) -> None:
    command(failing(BrokenPipeError(errno.EPIPE, "Broken pipe")))
    assert run("doctor") == (141, "", "")


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3), ("text", 0)])
def test_the_exit_code_of_a_command(result: object, code: int, command: Any, run: Run) -> None:
    command(lambda **_: result)
    assert run("doctor") == (code, "", "")


@pytest.mark.parametrize("name", ["run", "tokenize", "doctor", "completion"])
def test_a_broken_config_is_one_line_in_every_command(name: str, llmcli_home: Path, run: Run) -> None:
    (llmcli_home / "config").mkdir()
    path = llmcli_home / "config" / "config.toml"
    path.write_text("= nonsense")
    code, out, err = run(name, "hi")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {path} is not valid TOML: ")
    assert err.endswith(f"(mend or remove {path})\n")


def test_control_characters_in_arguments_do_not_reach_the_terminal(run: Run) -> None:
    for args in (["\x1b]0;x\x07"], ["run", "--\x1b[31m"], ["run", "-m", "\x1b[31m", "hi"], ["run", "-n", "\x1b", "hi"]):
        code, out, err = run(*args)
        assert code in (2, 3)
        assert out == ""
        assert "\x1b" not in err
        assert "\\x1b" in err


# ---- descriptors, locales, homes: whole processes --------------------------------------------------------------------


@pytest.fixture(scope="module")
def warm_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warm")


@pytest.fixture
def warm(warm_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One LLMCLI_HOME for many tests: the library and the models are checked once."""
    monkeypatch.setenv("LLMCLI_HOME", str(warm_home))


def shell(script: str, *args: str | Path, env: dict[str, str] | None = None) -> Completed:
    """`script` with the command's path as $0 and the arguments as "$@"."""
    return run_process(["sh", "-c", script, SCRIPT, *args], env={**os.environ, **(env or {})})


@pytest.mark.parametrize("args", [["run", "-t", "1", "hi"], ["--help"]], ids=["run", "help"])
def test_a_reader_that_is_gone(args: list[str], model: Path, warm: None) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(
        [SCRIPT, *args],
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "LLMCLI_MODEL": str(model)},
    ) as child:
        os.close(writer)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (141, b"")


@needs_full
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "-t", "1", "hi"], "error: cannot write the answer: No space left on device\n"),
        (["--version"], "error: No space left on device\n"),
    ],
    ids=["run", "version"],
)
def test_a_full_disk_below_stdout(args: list[str], message: str, model: Path, warm: None) -> None:
    done = shell('exec "$0" "$@" >/dev/full', *args, env={"LLMCLI_MODEL": str(model)})
    assert (done.code, done.err) == (6, message)


def test_a_closed_stdout(model: Path, warm: None) -> None:
    done = shell('exec "$0" "$@" >&-', "run", "-m", model, "-t", "1", "hi")
    assert (done.code, done.err) == (1, "error: stdout is closed: there is nowhere to write the answer\n")


def test_closed_stdin_and_stderr(model: Path, warm: None) -> None:
    done = shell('exec "$0" "$@" 2>&- <&-', "run", "-m", model, "-t", "1", "-v", "hi")
    assert (done.code, done.out) == (0, "Hello world\n")
    assert shell('exec "$0" "$@" 2>&- <&-', "run", "-m", "/no/such.gguf", "hi").code == 3


@needs_full
def test_stderr_on_a_full_disk_changes_nothing(model: Path, warm: None) -> None:
    done = shell('exec "$0" "$@" 2>/dev/full', "run", "-m", model, "-t", "1", "--stats", "hi")
    assert (done.code, done.out) == (0, "Hello world\n")
    assert shell('exec "$0" "$@" 2>/dev/full', "run", "-m", "/no/such.gguf", "hi").code == 3


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["ascii-streams", "no-utf8-mode"],
)
def test_a_locale_of_c(
    env: dict[str, str], run_cli: RunCli, scripted_model: Callable[..., Path], tmp_path: Path, warm: None
) -> None:
    model = tmp_path / "modèle.gguf"
    model.write_bytes(scripted_model(["Go", *(bytes([b]) for b in "🚀é".encode())]).read_bytes())
    done = run_cli("run", "-m", model, "-t", "1", "-sys", "é", "naïve ☃", env=env)
    assert (done.code, done.out, done.err) == (0, "Go🚀é\n", "")
    done = run_cli("run", "-m", tmp_path / "nö.gguf", "hi", env=env)
    assert (done.code, done.stdout) == (3, b"")
    assert done.stderr.isascii()
    assert done.stderr.count(b"\n") == 1


def test_no_home(run_cli: RunCli, model: Path) -> None:
    # The folders are set, so that nothing lands in the home that the user database has for this user.
    env = {f"XDG_{kind}_HOME": os.environ["TMPDIR"] for kind in ("CONFIG", "CACHE", "STATE", "DATA")}
    missing = {"HOME": None, "LLMCLI_HOME": None, "HF_HOME": None}
    done = run_cli("run", "-m", model, "-t", "1", "hi", env={**env, **missing})
    assert (done.code, done.out, done.err) == (0, "Hello world\n", "")


@pytest.mark.parametrize("kind", ["a file", "read-only"])
def test_a_home_that_cannot_be_written(kind: str, run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    if kind == "a file":
        home.write_bytes(b"")
    else:
        home.mkdir(mode=0o500)
    env = {"HOME": str(home), "LLMCLI_HOME": None, "HF_HOME": None}
    done = run_cli("run", "-m", model, "-t", "1", "hi", env=env, cwd=tmp_path)
    assert (done.code, done.out) == (0, "Hello world\n")
    assert all(line.startswith("the prefix store at ") for line in done.err.splitlines())
    home.chmod(0o700)


def test_a_terminal_gets_the_same_text(open_terminal: OpenTerminal, model: Path, warm: None) -> None:
    with open_terminal("run", "-m", str(model), "-t", "1", "--no-stdin", "hi", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
    assert terminal.screen == b"Hello world\r\n"
