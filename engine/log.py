"""What llama.cpp says, kept: its log goes through a callback into a bounded ring, never to a file descriptor.

The ring is shown with -v, and its last errors explain a failure. Knows nothing of ctypes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TextIO

from llmcli.base.text import printable

# enum ggml_log_level (ggml.h)
DEBUG, INFO, WARN, ERROR, CONTINUE = 1, 2, 3, 4, 5
_CAPACITY_LINES = 2000


class LogRing:
    """The last 2,000 lines of the native log, with their levels; thread-safe for one writer at a time."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=_CAPACITY_LINES)
        self._open = ""
        self._level = INFO
        self._listener: Callable[[int, str], None] | None = None

    def write(self, level: int, text: str) -> None:
        """Add a piece of log; a line ends at its newline, a CONTINUE piece goes on with the level before it."""
        if level != CONTINUE:
            self._level = level
        *whole, self._open = (self._open + text).split("\n")
        for line in whole:
            self._add(self._level, line)

    def _add(self, level: int, line: str) -> None:
        if not line.strip():
            return
        self._lines.append((level, line))
        if self._listener:
            self._listener(level, line)

    def listen(self, listener: Callable[[int, str], None] | None) -> None:
        """Pass every further line to `listener(level, line)`; None stops that."""
        self._listener = listener

    def echo_to(self, stream: TextIO, *, least: int) -> None:
        """Print the kept lines of level `least` and above to `stream`, and every further one as it comes."""

        def show(level: int, line: str) -> None:
            if level >= least:
                print(printable(line), file=stream, flush=True)

        for level, line in list(self._lines):
            show(level, line)
        self.listen(show)

    def last_error(self) -> str | None:
        """The last complete line logged as an error, else None."""
        return next((line.strip() for level, line in reversed(self._lines) if level == ERROR), None)

    def lines(self) -> list[str]:
        """Every kept line, oldest first."""
        return [line for _, line in self._lines]

    def clear(self) -> None:
        """Forget everything: what follows belongs to another operation."""
        self._lines.clear()
        self._open = ""
