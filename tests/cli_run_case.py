"""What the tests of `llmcli run` share: how a refusal looks, and a home that knows the engine already."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llmcli.base.settings import load
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
