"""Many small jobs that only compute and read, shared out over the processors of this machine.

Processes, because Python's threads take turns; copies of this one (fork), because to start Python anew takes longer
than the jobs. Only Linux is known to allow that, and only while there are no other threads, whose locks a copy would
find taken for good: elsewhere, and with one processor, nothing is shared out.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_MOST_PROCESSES = 8
_THREADS = "/proc/self/task"  # all of them, those of native libraries too


def shared_out(work: Callable[[T], Any], items: Sequence[T], *, least: int) -> list[Any]:
    """What `work` makes of each item, in order; it has to be something that JSON can carry, and may not raise.

    least   items for which another process is worth its start, about 5 ms
    A process that dies costs time: what it did not give back is worked out here.
    """
    count = min(_processors(), _MOST_PROCESSES, max(1, len(items) // least))
    children: list[_Child] = []
    results: list[Any] = [None] * len(items)
    try:
        children.extend(_Child(work, items[share::count]) for share in range(1, count))
        results[::count] = map(work, items[::count])
        for share, child in enumerate(children, 1):
            mine = items[share::count]
            found = child.results()
            results[share::count] = found if found is not None and len(found) == len(mine) else map(work, mine)
    finally:
        for child in children:
            child.end()
    return results


def _processors() -> int:
    """How many this process may use for copies of itself."""
    if sys.platform != "linux":
        return 1
    try:
        is_alone = len(os.listdir(_THREADS)) == 1
    except OSError:
        return 1
    return len(os.sched_getaffinity(0)) if is_alone else 1


class _Child:
    """A copy of this process that works off its items, writes the results into a pipe, and is gone."""

    def __init__(self, work: Callable[[T], Any], items: Sequence[T]) -> None:
        self._pid, self._pipe, into = 0, -1, -1  # as if it had died at once
        # A Ctrl-C comes before the copy or after it, never in between, where both would tell of it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._pipe, into = os.pipe()
            self._pid = os.fork()
            if self._pid == 0:
                os.close(self._pipe)  # or it would be its own reader, and wait for ever if this process were killed
                _work_and_exit(work, items, into)
        except OSError:  # one process or one file too many
            pass
        finally:
            if into >= 0:
                os.close(into)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def results(self) -> list[Any] | None:
        """Wait for the end; None where it did not come to it."""
        if not self._pid:
            return None
        try:
            with open(self._pipe, "rb", closefd=False) as source:
                found = json.loads(source.read())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, list) else None

    def end(self) -> None:
        """See that it is gone: it has given back what it had, or nobody wants that any more."""
        if self._pipe >= 0:
            os.close(self._pipe)
        if self._pid:
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)


def _work_and_exit(work: Callable[[T], Any], items: Sequence[T], into: int) -> None:
    """The whole life of a child. It says nothing and runs none of the parent's handlers and exits."""
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with open(into, "wb") as out:
            out.write(json.dumps(list(map(work, items))).encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001 - Ctrl-C, no memory: the parent does the work itself, or ends, too
        os._exit(1)
