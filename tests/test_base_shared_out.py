"""Work over several processes: the same results, whatever becomes of the processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from llmcli.base import shared_out as module
from llmcli.base.shared_out import shared_out

ITEMS = list(range(50))


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four processors."""
    if sys.platform != "linux":
        pytest.skip("processes are copied on Linux alone")
    monkeypatch.setattr(module, "_processors", lambda: 4)


def with_process(item: int) -> list[int]:
    return [item * item, os.getpid()]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 39, 40, 50])
def test_results_come_in_order(four: None, count: int) -> None:
    found = shared_out(with_process, ITEMS[:count], least=10)
    assert [square for square, _ in found] == [item * item for item in ITEMS[:count]]
    assert len({process for _, process in found}) == min(4, count, max(1, count // 10))


def test_everything_at_once_is_not_more_than_eight(monkeypatch: pytest.MonkeyPatch, four: None) -> None:
    monkeypatch.setattr(module, "_processors", lambda: 64)
    assert len({process for _, process in shared_out(with_process, ITEMS, least=1)}) == 8


def test_one_processor_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_processors", lambda: 1)
    assert {process for _, process in shared_out(with_process, ITEMS, least=1)} == {os.getpid()}


def processors(*lines: str) -> int:
    """What a process of its own finds after these lines."""
    code = "\n".join([*lines, "from llmcli.base import shared_out", "print(shared_out._processors())"])
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


def test_this_machine() -> None:
    if sys.platform != "linux":
        assert processors() == 1
        return
    assert processors() == len(os.sched_getaffinity(0))
    assert processors("import os", "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})") == 1


def test_a_process_with_threads_is_not_copied() -> None:
    assert (
        processors("import threading, time", "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()")
        == 1
    )


def test_threads_that_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_THREADS", "/proc/self/no such thing")
    assert module._processors() == 1


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def ended() -> None:
    os._exit(0)


def failed() -> None:
    raise MemoryError


def told() -> None:
    sys.exit("this goes nowhere")


@pytest.mark.parametrize("fate", [killed, interrupted, ended, failed, told])
def test_what_a_dead_process_owes_is_worked_out_here(
    four: None, fate: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    parent = os.getpid()

    def work(item: int) -> int:
        if os.getpid() != parent and item > 20:
            fate()
        return -item

    assert shared_out(work, ITEMS, least=10) == [-item for item in ITEMS]
    assert capfd.readouterr() == ("", "")


def test_no_process_left(four: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    assert shared_out(with_process, ITEMS, least=1) == [[item * item, os.getpid()] for item in ITEMS]


@pytest.mark.parametrize("left", range(8))
def test_hardly_any_file_may_be_opened(left: int) -> None:
    code = (
        "import os, resource\n"
        "from llmcli.base import shared_out as module\n"
        "module._processors = lambda: 4\n"
        "lowest = os.dup(0)\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + {left}, hard))\n"
        "os.close(lowest)\n"
        "print(module.shared_out(lambda item: -item, list(range(40)), least=1) == [-item for item in range(40)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


def test_results_larger_than_a_pipe_holds(four: None) -> None:
    assert shared_out(lambda item: "x" * 50_000 + str(item), ITEMS, least=1) == [f"{'x' * 50_000}{n}" for n in ITEMS]


def test_nothing_is_left_behind(four: None) -> None:
    before = len(os.listdir("/proc/self/fd"))

    def stops(item: int) -> Any:
        if item == 0:  # the first share is this process's own
            raise KeyboardInterrupt
        return "x" * 50_000

    with pytest.raises(KeyboardInterrupt):
        shared_out(stops, ITEMS, least=1)
    shared_out(with_process, ITEMS, least=1)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_what_is_waiting_to_be_written_is_written_once(four: None, capfd: pytest.CaptureFixture[str]) -> None:
    sys.stdout.write("once")
    shared_out(with_process, ITEMS, least=1)
    sys.stdout.flush()
    assert capfd.readouterr().out == "once"


def test_processes_do_not_outlive_this_one(four: None) -> None:
    """They have more to say than a pipe holds, and their reader is killed."""
    code = (
        "import os, signal, sys\n"
        "from llmcli.base import shared_out as module\n"
        "module._processors = lambda: 4\n"
        "parent = os.getpid()\n"
        "def work(item):\n"
        "    if os.getpid() == parent:\n"
        "        os.kill(parent, signal.SIGKILL)\n"
        "    return 'x' * 50_000\n"
        "module.shared_out(work, list(range(50)), least=1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        # Its copies hold the other end of this pipe, too: it ends when the last of them does.
        assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == -signal.SIGKILL
