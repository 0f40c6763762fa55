"""The console script: what it calls, and a Ctrl-C before there is anything to call."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llmcli.base.version import VERSION


def started(*lines: str) -> subprocess.CompletedProcess[str]:
    code = "\n".join(
        ["import sys", "sys.argv[1:] = ['--version']", *lines, "from llmcli.cli.start import run", "run()"]
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_it_runs_the_command_line() -> None:
    done = started()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"llmcli {VERSION}\n", "")


@pytest.mark.parametrize("module", ["click", "click.core", "llmcli.cli.main", "llmcli.cli.output", "gc"])
def test_a_ctrl_c_in_the_middle_of_an_import(module: str) -> None:
    done = started(
        "class Pressing:",
        "    @staticmethod",
        "    def find_spec(name, *_):",
        f"        if name == {module!r}:",
        "            raise KeyboardInterrupt",
        f"sys.modules.pop({module!r}, None)",
        "sys.meta_path.insert(0, Pressing)",
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")
