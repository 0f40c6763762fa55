"""matplotlib starts without a word, and leaves nothing behind, where it can keep nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
from llmcli.base.drawing import starting_matplotlib
with starting_matplotlib():
    from matplotlib.figure import Figure
figure = Figure()
figure.subplots().set_title("some text")
figure.savefig("a.svg")
"""


@pytest.mark.parametrize("ends", ["", "import os\nos._exit(0)\n"], ids=["as usual", "at once"])
def test_a_home_that_cannot_be_written(tmp_path: Path, ends: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(
        [sys.executable, "-c", CODE + ends], env=environment, cwd=tmp_path, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    assert (tmp_path / "a.svg").stat().st_size > 1000
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_folder_that_the_user_chose_stays(tmp_path: Path) -> None:
    (tmp_path / "tmp" / "matplotlib-mine").mkdir(parents=True)
    environment = {
        **os.environ,
        "MPLCONFIGDIR": str(tmp_path / "tmp" / "matplotlib-mine"),
        "TMPDIR": str(tmp_path / "tmp"),
    }
    subprocess.run([sys.executable, "-c", CODE], env=environment, cwd=tmp_path, check=True)
    assert list((tmp_path / "tmp").iterdir()) == [tmp_path / "tmp" / "matplotlib-mine"]
