"""Several waits on the network at once. Knows nothing of what is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from llmcli.base.errors import UserInterruptError

AT_ONCE = 4
T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], items: Sequence[T], *, stop: threading.Event | None = None) -> list[R]:
    """What `work` makes of each item, some at a time; the first failure sets `stop` and is raised.

    In threads of their own that end with the process: a Ctrl-C must not wait for a server that is silent.
    """
    stop = stop or threading.Event()
    results: dict[int, R] = {}
    failures: list[BaseException] = []
    waiting = list(enumerate(items))
    turn = threading.Lock()

    def work_off() -> None:
        while not stop.is_set():
            with turn:
                if not waiting:
                    return
                index, item = waiting.pop(0)
            try:
                results[index] = work(item)
            except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
                failures.append(error)
                stop.set()

    threads = [threading.Thread(target=work_off, daemon=True) for _ in items[:AT_ONCE]]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        stop.set()
        raise
    if failures:
        raise next((f for f in failures if not isinstance(f, UserInterruptError)), failures[0])
    return [results[index] for index in range(len(items))]
