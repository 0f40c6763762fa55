"""The output of prompt_toolkit for the chat: writes that can be held back, and a terminal that may go away."""

from __future__ import annotations

import os
from typing import TextIO

from prompt_toolkit.data_structures import Size
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

_STDIN, _STDOUT = 0, 1
_USUAL_SIZE = Size(rows=24, columns=80)


class ChatOutput(Vt100_Output):
    """Writes to stdout as UTF-8, whatever the locale.

    Held, it collects: rubbing out, printing and drawing then reach the terminal in one piece, and nothing flickers.
    A terminal that has gone away takes everything and shows nothing.
    """

    def __init__(self, *, term: str | None, styled: bool) -> None:
        self.held = self.gone = False
        super().__init__(
            utf8_stream(_STDOUT, "w"),
            _size,
            term=term,
            default_color_depth=ColorDepth.DEPTH_4_BIT if styled else ColorDepth.DEPTH_1_BIT,
            enable_bell=False,
            enable_cpr=False,  # where the cursor stands does not matter, and the answer would come between the keys
        )

    def flush(self) -> None:
        """Send what is buffered, unless it is held."""
        if self.held:
            return
        try:
            super().flush()
        except OSError:
            self.gone = True


def utf8_stream(descriptor: int, mode: str) -> TextIO:
    """A text stream on a descriptor that stays open when the stream goes."""
    return open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False)  # type: ignore[return-value]


def _size() -> Size:
    try:
        columns, rows = os.get_terminal_size(_STDOUT)
    except OSError:
        return _USUAL_SIZE
    return Size(rows=rows or _USUAL_SIZE.rows, columns=columns or _USUAL_SIZE.columns)
