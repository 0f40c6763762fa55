"""Lines where there is no terminal."""

from __future__ import annotations

import threading

import pytest

from llmcli.base.settings import load
from llmcli.cli.pull_progress import PullProgress


def test_a_line_when_a_file_is_whole(capfd: pytest.CaptureFixture[str]) -> None:
    with PullProgress(load(), quiet=False) as progress:
        with progress("a/m.gguf", 2048) as task:
            task.update(2048)
        progress.had = {"n.gguf": 1024}
        with progress("n.gguf", None) as task:
            task.update(3072)
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("a/m.gguf: 2.0 KiB in ")
    assert first.endswith("/s), checked")
    assert second.startswith("n.gguf: 3.0 KiB in ")
    assert second.endswith("/s), 1.0 KiB of it from an earlier try, checked")


def test_no_line_for_what_failed(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with PullProgress(load(), quiet=False) as progress, progress("m.gguf", 10) as task:
            task.update(5)
            raise OSError("cut")

    with pytest.raises(OSError, match="cut"):
        fail()
    assert capfd.readouterr() == ("", "")


def test_quiet_and_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    with PullProgress(load(), quiet=True) as progress:
        progress.say("x")
    with PullProgress(load(), quiet=False) as progress:
        progress.say("y\x1b[31m")
        progress.say("y\x1b[31m")
    assert capfd.readouterr().err == "y\\x1b[31m\n"


def test_files_side_by_side(capfd: pytest.CaptureFixture[str]) -> None:
    with PullProgress(load(), quiet=False) as progress:

        def one(name: str) -> None:
            with progress(name, 10) as task:
                task.update(10)

        threads = [threading.Thread(target=one, args=(f"{n}.gguf",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = capfd.readouterr().err.splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == [f"{n}.gguf" for n in range(8)]
