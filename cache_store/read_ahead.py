"""Parts in the order of their use: a second thread maps and verifies the next one while the caller uses the last.

Verifying a part and copying it into the engine take about as long as each other, and neither holds Python's lock, so
that two cores halve the time of a restore. No part is read that is not asked for in the end, but for the two behind one
that turns out bad.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple

from llmcli.cache_store.block_file import read_part
from llmcli.cache_store.keys import Key

_AHEAD = 2  # parts that wait, mapped, for the caller


class Wanted(NamedTuple):
    """One part of one block file."""

    path: str
    key: Key
    name: str


class ReadAhead:
    """Reads `wanted` from now on; `take` gives one after the other. To be used in a `with`, which ends the thread."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._wanted = wanted
        self._found: SimpleQueue[memoryview | Exception] = SimpleQueue()
        self._room = threading.Semaphore(_AHEAD)
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="prefix store reader", daemon=True)

    def __enter__(self) -> ReadAhead:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._room.release()
        self._thread.join()

    def take(self) -> memoryview:
        """The next part. Raises what `read_part` raises for it; nothing comes after that."""
        found = self._found.get()
        self._room.release()
        if isinstance(found, Exception):
            raise found
        return found

    def _read(self) -> None:
        for path, key, name in self._wanted:
            self._room.acquire()
            if self._ended:
                return
            try:
                self._found.put(read_part(path, key, name))
            except Exception as error:  # noqa: BLE001  # the boundary of this thread: raised again by `take`
                self._found.put(error)
                return
