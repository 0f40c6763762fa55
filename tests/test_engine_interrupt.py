from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import pytest

from llmcli.engine.interrupt import StopFlag, poll_function, stop_on_interrupt


def test_c_code_sees_the_flag_at_once() -> None:
    flag = StopFlag()
    poll = poll_function(ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p))
    assert poll(flag.address) is False
    flag.set()
    assert poll(flag.address) is True
    flag.clear()
    assert poll(flag.address) is False


def test_ctrl_c_sets_the_flag_while_the_main_thread_is_inside_a_native_call() -> None:
    flag, seen = StopFlag(), []

    def send_and_look() -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        seen.append(flag.is_set())

    with stop_on_interrupt(flag):
        threading.Thread(target=send_and_look).start()
        # PyDLL keeps the interpreter lock, CDLL drops it, as every llama.cpp call does; sleep goes on after a signal.
        begun = time.monotonic()
        while (left := 0.6 - (time.monotonic() - begun)) > 0:
            ctypes.CDLL(None).usleep(int(left * 1e6))
    assert seen == [True]


def test_a_second_ctrl_c_raises() -> None:
    flag = StopFlag()
    with stop_on_interrupt(flag):
        signal.raise_signal(signal.SIGINT)
        assert flag.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handler_and_wakeup_descriptor_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt(StopFlag()):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_in_another_thread_nothing_is_touched() -> None:
    before, done = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with stop_on_interrupt(StopFlag()):
            done.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_where_interrupts_are_ignored_they_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    flag = StopFlag()
    try:
        with stop_on_interrupt(flag):
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert not flag.is_set()
