"""Rows in styles as bytes of a terminal, or as plain text where there are to be no colours."""

from __future__ import annotations

from collections.abc import Iterable

from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from llmcli.cli.chat_wrap import TAB_CELLS


class AnsiPainter:
    """Turns rows of rich text into text with escape sequences; the sixteen colours of the terminal, no others."""

    def __init__(self, *, styled: bool) -> None:
        self._styled = styled
        self._console = Console(force_terminal=True, legacy_windows=False, color_system="standard", width=80)

    def paint(self, row: Text) -> str:
        """One row."""
        if not self._styled:
            return row.plain
        segments = row.render(self._console, end="")
        return "".join(
            style.render(text, color_system=ColorSystem.STANDARD) if style else text for text, style, _ in segments
        )

    def lines(self, rows: Iterable[Text]) -> str:
        """Rows for the scrollback, each with its newline."""
        return "".join(self.paint(row) + "\n" for row in rows)

    def still(self, rows: Iterable[Text]) -> str:
        """Rows for a part of the screen that is drawn again and again: without tabs, which it cannot show."""
        return "\n".join(self.paint(_without_tabs(row)) for row in rows)


def _without_tabs(row: Text) -> Text:
    if "\t" not in row.plain:
        return row
    row = row.copy()
    row.expand_tabs(TAB_CELLS)
    return row
