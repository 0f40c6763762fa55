"""A Ctrl-C ends the process, also where Python loses the exception. Each case is a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from llmcli.cli import ctrl_c

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no process can be sent a Ctrl-C there")

PROLOGUE = """
import _imp, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from llmcli.cli import ctrl_c
ctrl_c.install()
def press():
    os.kill(os.getpid(), signal.SIGINT)
"""
IN_A_FINALIZER = """
class Dropping:
    def __del__(self):
        press()
        sum(range(10))
Dropping()
time.sleep(60)
"""
IN_THE_IMPORT_SYSTEM = """
_imp.acquire_lock()  # what an exception in importlib's own callback leaves behind
threading.Thread(target=lambda: __import__("colorsys")).start()
press()
time.sleep(60)
"""
SWALLOWED = """
try:
    press()
    time.sleep(60)
except KeyboardInterrupt:
    pass
time.sleep(60)
"""
SECOND = """
try:
    press()
    time.sleep(60)
except KeyboardInterrupt:
    press()
time.sleep(60)
"""


def python(code: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + code], stderr=subprocess.PIPE, text=True, timeout=30, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("code", [IN_A_FINALIZER, SWALLOWED], ids=["in a finalizer", "swallowed"])
def test_a_lost_interrupt_ends_the_process_with_one_line(code: str) -> None:
    assert python(code) == (130, "error: interrupted\n")


def test_a_thread_that_waits_for_the_import_lock_does_not_keep_it_alive() -> None:
    code, err = python(IN_THE_IMPORT_SYSTEM)
    assert code == 130
    assert err.endswith("error: interrupted\n")


def test_a_second_ctrl_c_ends_it_without_waiting() -> None:
    assert python(SECOND) == (130, "")


def test_the_exception_comes_out_where_nothing_is_in_its_way() -> None:
    code = "try:\n    press()\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    os._exit(7)\n"
    assert python(code) == (7, "")


def test_another_lost_exception_is_shown_as_ever() -> None:
    code = "class Bad:\n    def __del__(self):\n        raise ValueError('seen')\nBad()\n"
    status, err = python(code)
    assert status == 0
    assert "ValueError: seen" in err


def test_an_ignored_interrupt_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ctrl_c.install()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
