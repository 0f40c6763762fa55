"""Long pastes in the line editor: a short name stands for the text, which is put in its place when the turn is sent.

A line editor lays out every character at every key press, and nobody edits 10 MB of them.
"""

from __future__ import annotations

import re

from llmcli.base.units import format_bytes, format_count

_MOST_CHARACTERS = 2000
_MOST_LINES = 20


class Pastes:
    """The texts that names stand for, for as long as the chat runs."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def add(self, text: str) -> str:
        """What to put into the line: the text itself, or the name of a long one."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if len(text) <= _MOST_CHARACTERS and lines <= _MOST_LINES:
            return text
        size = format_bytes(len(text.encode("utf-8", "replace")))
        name = f"[paste {len(self._texts) + 1}: {format_count(lines, 'line')}, {size}]"
        self._texts[name] = text
        return name

    def expand(self, line: str) -> str:
        """The line with every name replaced by its text."""
        if not self._texts:
            return line
        names = "|".join(map(re.escape, self._texts))
        return re.sub(names, lambda found: self._texts[found.group()], line)

    def names_in(self, line: str) -> bool:
        """Whether the line holds such a name."""
        return any(name in line for name in self._texts)
