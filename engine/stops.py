"""Stop strings: where an answer ends, though a stop string may be spread over several pieces of it.

The stop string that is complete first ends the answer, as if the text came one character at a time, so the result
does not depend on how it was cut. Of two that end at the same character the longer one counts.
Only text that may be the beginning of a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmcli.base.errors import UsageError


class StopMatcher:
    """matched   the stop string that ended the answer, None so far"""

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise UsageError("a stop string is empty", hint="leave --stop out, or give it some text")
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be shown, and whether the answer ends here. After the end everything is swallowed."""
        if not self._stops:
            return text, False
        if self.matched is not None:
            return "", True
        buffer = self._held + text
        if (found := self._first(buffer)) is not None:
            start, self.matched = found
            self._held = ""
            return buffer[:start], True
        shown = len(buffer) - self._begun(buffer)
        self._held = buffer[shown:]
        return buffer[:shown], False

    def finish(self) -> str:
        """The text still held back: a stop string that began and never came true."""
        held, self._held = self._held, ""
        return held

    def _first(self, buffer: str) -> tuple[int, str] | None:
        """Where the stop string that is complete first begins, and which one it is."""
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _begun(self, buffer: str) -> int:
        """How many characters at the end of `buffer` are the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(buffer)), 0, -1):
            tail = buffer[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
