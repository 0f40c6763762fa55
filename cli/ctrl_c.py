"""A Ctrl-C that always ends the process.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a callback (of a weak reference, a finalizer,
the import system) it is printed and dropped; in the middle of the import system it also leaves the import lock taken,
and the next import in another thread waits for ever. So what is dropped ends the process on the spot, and a thread ends
it if the exception has not done so after a while. Files need no farewell: they are made to survive kill -9.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING

from llmcli.cli import output

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

INTERRUPTED = 130
_PATIENCE_S = 2.0
_pressed: list[bool] = []


def install() -> None:
    """Take over SIGINT for the rest of the process, unless it is ignored, as in a shell script's background job."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_signal)
        sys.unraisablehook = _on_unraisable


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    if _pressed:
        os._exit(INTERRUPTED)
    _pressed.append(True)
    # Not threading.Thread: its start() waits, and takes locks that the interrupted code may hold.
    with contextlib.suppress(RuntimeError):  # no more threads allowed
        _thread.start_new_thread(_end_later, ())
    raise KeyboardInterrupt


def _end_later() -> None:
    time.sleep(_PATIENCE_S)
    _end()


def _on_unraisable(dropped: UnraisableHookArgs) -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        _end()
    sys.__unraisablehook__(dropped)


def _end() -> None:
    output.stderr_line("error: interrupted")
    os._exit(INTERRUPTED)
