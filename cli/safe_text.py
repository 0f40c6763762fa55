"""Text of a model, a file or a name on its way to a terminal: nothing in it can drive the terminal.

Control characters are shown as escapes (ESC as its number): the whole of C0 and C1 but newline and tab, so no
cursor, title, clipboard or colour sequence survives, nor a carriage return or backspace that overwrites what was read.
So are the characters that reorder a line (bidirectional overrides) and those that some programs take for the end of
one. Letters, emoji and their joiners pass as they are. This is for terminals alone: a pipe gets the bytes as they came.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """`text` with everything that could drive a terminal shown as an escape."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class SafeText:
    """The same for text that comes in pieces; a carriage return right before a newline is dropped."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """What can be shown of all that came and was not given out yet."""
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        return harmless(text[: len(text) - len(self._held)].replace("\r\n", "\n"))

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return harmless(held)
