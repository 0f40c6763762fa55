"""Code in colours, line by line. rich does the work where it can; code is never changed for it."""

from __future__ import annotations

from rich.text import Text

_CONTEXT_LINES = 30
_LONGEST_LINE = 2000
_THEME = "ansi_dark"  # the terminal's own sixteen colours, so that it is legible on any background


class CodeHighlighter:
    """The lines of one block of code, in order. A line is coloured by what stands at most 30 lines above it."""

    def __init__(self, language: str) -> None:
        self._language, self._above = language, list[str]()

    def line(self, line: str) -> Text:
        """The next line of the block."""
        shown = self.peek(line)
        self._above = [*self._above, line][-_CONTEXT_LINES:]
        return shown

    def peek(self, line: str) -> Text:
        """The same for a line that is still being written."""
        if not self._language or len(line) > _LONGEST_LINE:
            return Text(line, end="")
        shown = _highlight("\n".join([*self._above, line]), self._language).split("\n", allow_blank=True)
        number = len(self._above)
        # A lexer may drop or turn characters; what does not come out as it went in is shown without colours.
        if number < len(shown) and shown[number].plain == line:
            return shown[number]
        return Text(line, end="")


def _highlight(code: str, language: str) -> Text:
    try:
        from rich.syntax import Syntax  # pygments behind it: 40 ms, for those who get code
    except ImportError:
        return Text(code)
    return Syntax(code, language, theme=_THEME, background_color="default", tab_size=8).highlight(code)
