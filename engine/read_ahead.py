"""Steps that a second thread makes in order, while the caller uses the result of the last one.

For reading blocks: fetching and checking a part takes about as long as copying it into the context, and neither needs
Python's lock for most of it. On one core nothing is won or lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

_AHEAD = 1  # results that wait for the caller; the nearest ones are still in the processor's cache when they are used


class ReadAhead(Generic[T]):
    """Makes `steps` while entered (`with`); `take` gives one result after the other.

    What was taken is let go of by the thread, when the next result is taken: for a mapped file that is the unmapping.
    """

    def __init__(self, steps: Sequence[Callable[[], T]]) -> None:
        self._steps = steps
        self._found: SimpleQueue[tuple[T] | Exception] = SimpleQueue()
        self._room = threading.Semaphore(_AHEAD)
        self._ended = False
        self._taken: list[T] = []
        self._thread = threading.Thread(target=self._make, name="prefix store reader", daemon=True)

    def __enter__(self) -> ReadAhead[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._room.release()
        self._thread.join()

    def take(self) -> T:
        """The result of the next step. Raises what that step raised; no step is made after that."""
        found = self._found.get()
        if isinstance(found, Exception):
            raise found
        self._taken.append(found[0])
        self._room.release()
        return found[0]

    def _make(self) -> None:
        for step in self._steps:
            self._room.acquire()
            if self._ended:
                return
            del self._taken[:-1]  # the last one is in use
            try:
                self._found.put((step(),))
            except Exception as error:  # noqa: BLE001  # the boundary of this thread: raised again by `take`
                self._found.put(error)
                return
