"""The process that quantizes: what it says, how it dies, and that it never outlives its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError, ResourceError
from llmcli.engine.quantizer import NativeSettings
from llmcli.quant.child import Child, Job
from tests.fixtures.wide_model import write_wide

SETTINGS = NativeSettings(file_type=7, threads=1)
READ = "import sys, os, signal, json, time\nline = sys.stdin.readline()\n"


def run(code: str, job: Job | None = None) -> float:
    with Child([sys.executable, "-c", READ + code]) as child:
        return child.run(job or Job(Path("in"), Path("out"), SETTINGS), lambda _level, _line: None)


def test_a_job_survives_its_line() -> None:
    job = Job(Path("a b\udcff"), Path("out"), NativeSettings(1, 2, tensor_types=(("x", 8),)), Path("im"), ("a",), ())
    told = json.loads(job.as_line())
    assert (told["source"], told["imatrix"], told["include"], told["folder"]) == ("a b\udcff", "im", ["a"], None)
    assert told["settings"]["tensor_types"] == [["x", 8]]


def test_log_and_seconds() -> None:
    heard: list[tuple[int, str]] = []
    code = (
        READ
        + "print(json.dumps({'log': [2, 'hello']}))\nprint(json.dumps({'done_s': 1.5}), flush=True)\ntime.sleep(60)"
    )
    with Child([sys.executable, "-c", code]) as child:
        seconds = child.run(Job(Path("in"), Path("out"), SETTINGS), lambda level, line: heard.append((level, line)))
    assert (seconds, heard) == (1.5, [(2, "hello")])


def test_an_error_is_raised() -> None:
    with pytest.raises(LlmcliError, match="no good"):
        run("print(json.dumps({'error': 'no good'}), flush=True)")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGBUS)", "changed or shrank"),
        ("sys.stderr.write('x.cpp:7: GGML_ASSERT(a) failed'); sys.stderr.flush(); os.abort()", r"SIGABRT.*GGML_ASSERT"),
        ("sys.exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    ],
)
def test_its_death_is_told(code: str, why: str) -> None:
    with pytest.raises(LlmcliError, match=why):
        run(code)


def test_killed_by_the_system() -> None:
    with pytest.raises(ResourceError, match="out of memory"):
        run("os.kill(os.getpid(), signal.SIGKILL)")


def test_dead_before_the_job() -> None:
    with Child([sys.executable, "-c", "import sys; sys.exit(4)"]) as child:
        child._process.wait()
        with pytest.raises(LlmcliError, match="exit code 4"):
            child.run(Job(Path("in"), Path("out"), SETTINGS), lambda _level, _line: None)


def test_no_process_to_be_had(tmp_path: Path) -> None:
    with pytest.raises(LlmcliError, match="no child process"):
        Child([str(tmp_path / "missing")])


def test_closing_ends_it() -> None:
    with Child([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        process = child._process
    assert process.returncode == -signal.SIGKILL


def test_a_real_job(tmp_path: Path) -> None:
    source = write_wide(tmp_path / "wide.gguf")
    lines: list[str] = []
    with Child() as child:
        child.run(Job(source, tmp_path / "out.gguf", SETTINGS), lambda _level, line: lines.append(line))
        with pytest.raises(LlmcliError, match="failed to quantize"):
            child.run(Job(tmp_path / "none", tmp_path / "x", SETTINGS), lambda _level, _line: None)
    assert (tmp_path / "out.gguf").stat().st_size > 1 << 20
    assert any("blk.0.attn_q.weight" in line and "converting to q8_0" in line for line in lines)


def test_the_end_of_its_stdin_ends_it_and_its_folder(tmp_path: Path) -> None:
    """What happens when the parent is killed: also while the child ignores the signals of a terminal."""
    folder = tmp_path / "work"
    folder.mkdir()
    source = write_wide(tmp_path / "wide.gguf")
    settings = NativeSettings(file_type=25, threads=1)  # IQ4_NL: long enough to be in the middle of
    job = Job(source, folder / "out.gguf", settings, folder=folder)
    child = Child()
    process: subprocess.Popen[bytes] = child._process
    assert process.stdin is not None
    process.stdin.write(job.as_line())
    process.stdin.flush()
    deadline = time.monotonic() + 30
    while not (folder / "out.gguf").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(process.pid, number)
    process.stdin.close()
    assert process.wait(10) == 0
    assert not folder.exists()
    child.close()
