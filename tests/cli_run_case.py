"""What the tests of `llmcli run` share: how a refusal looks, a home that knows the engine, the command in this process.

Fixtures are imported by the files that want them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.settings import load
from llmcli.cli.main import call
from llmcli.engine import native
from llmcli.engine.preflight import check_build
from tests.fixtures.cli_process import Completed


def refused(done: Completed, code: int) -> str:
    """The one line on stderr of a command that ended with `code` and printed nothing else."""
    assert (done.code, done.stdout) == (code, b""), done.err
    assert done.err.endswith("\n")
    assert done.err.count("\n") == 1, done.err
    assert done.err.startswith("error: ")
    assert done.err[:-1].isprintable()
    return done.err[:-1]


@pytest.fixture(scope="module")
def engine_memo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What llmcli remembers of the installed engine. Without it, its first call tries the engine in a child process."""
    home = tmp_path_factory.mktemp("memo")
    check_build(load({"LLMCLI_HOME": str(home)}))
    return home / "cache" / "engine"


@pytest.fixture(autouse=True)
def known_engine(llmcli_home: Path, engine_memo: Path) -> None:
    shutil.copytree(engine_memo, llmcli_home / "cache" / "engine")


class Answer:
    """Calls `llmcli run -t 1 -m MODEL …` in this process, a tenth of the time of a new one, and expects exit code 0."""

    def __init__(self, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self._captured, self._monkeypatch = capfdbinary, monkeypatch

    def run(
        self, *args: str | Path, stdin: str | bytes | None = None, env: Mapping[str, str] | None = None
    ) -> Completed:
        """`llmcli run -t 1` with any arguments and any exit code."""
        with self._monkeypatch.context() as patch, _as_stdin(stdin):
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            code = call(["run", "-t", "1", *map(str, args)])
        out, err = self._captured.readouterr()
        return Completed(code, out, err, 0.0, 0)

    def __call__(self, model: Path, *args: str | Path, **options: Any) -> Completed:
        done = self.run("-m", model, *args, **options)
        assert done.code == 0, done.err
        return done

    def json(self, model: Path, *args: str | Path, **options: Any) -> dict[str, Any]:
        """The account of --json, which is one line."""
        done = self(model, "--json", *args, **options)
        assert done.out.count("\n") == 1
        found: dict[str, Any] = json.loads(done.out)
        return found


@contextlib.contextmanager
def _as_stdin(data: str | bytes | None) -> Iterator[None]:
    """Descriptor 0 reads `data`; as pytest left it, the null device, where it is None."""
    if data is None:
        yield
        return
    kept = os.dup(0)
    with tempfile.TemporaryFile() as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.seek(0)
        os.dup2(file.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(kept, 0)
            os.close(kept)


@pytest.fixture(name="answer")
def in_process(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Answer]:
    yield Answer(capfdbinary, monkeypatch)
    native.LOG.listen(None)
