"""Ctrl-C that takes effect at once, also in the middle of a native call.

Python runs its signal handlers in the main thread between two byte codes, so a handler waits until a running
llama_decode returns: seconds, in a long prefill. The C-level handler, however, writes the signal's number to the
wakeup descriptor immediately; a watcher thread reads it there and sets a flag that llama.cpp polls between graph nodes.

The flag is polled by `strlen` of the C library, called directly by ggml on a two-byte buffer: "" is 0 (go on), "!" is 1
(stop). A Python callback in its place would take the interpreter lock some 900 times per token, 5% of the decode rate
of a small model.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_PATIENCE_S = 1.0
_INTERRUPTED = 130


class StopFlag:
    """A stop request that C code can poll. Set by a signal, or by anyone who wants the current work to end."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)

    def set(self) -> None:
        """Ask for a stop."""
        self._buffer[0] = b"!"

    def clear(self) -> None:
        """Withdraw the request."""
        self._buffer[0] = b"\0"

    def is_set(self) -> bool:
        """Whether a stop was asked for."""
        return self._buffer[0] != b"\0"

    @property
    def address(self) -> int:
        """Where C finds the flag; valid as long as this object lives."""
        return ctypes.addressof(self._buffer)


def poll_function(callback_type: Any) -> Any:
    """`strlen` as a ggml_abort_callback: `bool (*)(void *)`. The caller passes `StopFlag.address` as its data."""
    return ctypes.cast(ctypes.CDLL(None).strlen, callback_type)


@contextlib.contextmanager
def stop_on_interrupt(flag: StopFlag) -> Iterator[None]:
    """While inside, Ctrl-C sets `flag` instead of raising; a second Ctrl-C raises KeyboardInterrupt as usual.

    Outside the main thread, where signals cannot be handled, this does nothing; nor where SIGINT is ignored, as in a
    shell script's background job, which a Ctrl-C meant for others must not end.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if flag.is_set() and told:
            raise KeyboardInterrupt
        told.append(True)
        flag.set()

    told: list[bool] = []
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    old_handler = signal.signal(signal.SIGINT, on_signal)
    old_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reader, flag), name="interrupt", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_wakeup)
        signal.signal(signal.SIGINT, old_handler)
        os.close(writer)  # ends the watcher's read
        watcher.join()
        os.close(reader)


def _watch(reader: int, flag: StopFlag) -> None:
    """Set the flag at the first interrupt. A second one that the main thread has not acted on after a second ends the
    process: it is inside a native call that polls nothing (some grammars).
    """
    count, patience_s = 0, None
    while select.select([reader], [], [], patience_s)[0]:
        data = os.read(reader, 16)
        if not data:
            return
        count += data.count(signal.SIGINT)
        if count:
            flag.set()
        if count > 1:
            patience_s = _PATIENCE_S
    os._exit(_INTERRUPTED)
