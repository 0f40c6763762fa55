"""An answer as rows of a terminal while it comes: what is finished is given out once, the rest can be looked at.

Works line by line, because models write a paragraph as one line: a line is finished at its newline, a table at the
first line that is none of its rows. Line breaks stay where they are. Knows nothing of the screen; the caller says how
wide it is. What it is given must be harmless already (safe_text).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from rich.text import Text

from llmcli.cli.chat_code import CodeHighlighter
from llmcli.cli.chat_inline import inline
from llmcli.cli.chat_prose import Prose, follow_up, read_prose
from llmcli.cli.chat_table import is_delimiter, may_be_row, table_rows
from llmcli.cli.chat_wrap import fold_breaks, folded

Look = Literal["styled", "marks", "raw"]
"""styled: marks hidden, text in styles; marks: no styles, so the marks stay; raw: not read as Markdown at all."""

_FENCE = re.compile(r" *(?P<mark>`{3,}|~{3,}) *(?P<language>[^\s`]*)[^`]*")
_CODE_INDENT = re.compile(r"(?: {4}|\t)")
_QUIET = "dim"
_LONGEST_LINE = 2000
_LONGEST_TABLE = 100


class MarkdownStream:
    """Takes the text of one answer in pieces: push, take, rows_in_progress, again and again; then finish, and take.

    style   the style of everything, as for thinking
    """

    def __init__(self, look: Look = "styled", *, style: str = "") -> None:
        self._look, self._style = look, style
        self._lines: list[str] = []
        self._line = ""
        self._over = False
        self._table: list[str] = []
        self._fence = ""
        self._code = CodeHighlighter("")
        self._begun: Prose | None = None  # the line whose beginning was given out
        self._in_list, self._after_blank = False, True

    def push(self, text: str) -> None:
        """More of the answer."""
        *lines, self._line = (self._line + text).split("\n")
        self._lines += lines

    def finish(self) -> None:
        """The answer is over."""
        self._over = True
        if self._line:
            self._lines.append(self._line)
            self._line = ""

    def take(self, width: int, most_rows: int) -> list[Text]:
        """The rows that are finished and were not given out yet. Of a line that is longer than `most_rows` rows, what
        will not change any more is finished too, so that little stays in progress.
        """
        lines, self._lines = self._lines, []
        rows = [row for line in lines for row in self._complete(line, width, most_rows)]
        if self._over:
            rows += self._end_table(width)
        while (cut := self._cut(self._line, width, most_rows)) is not None:
            rows += self._begin(self._line[:cut], width)
            self._line = self._line[cut:]
        return self._based(rows)

    def rows_in_progress(self, width: int) -> list[Text]:
        """What is not finished yet, as it looks for now; every row fits the width."""
        if self._table:
            rows = self._table_rows([*self._table, *([self._line] if self._line else [])], width)
        elif not self._line:
            return []
        elif self._is_verbatim(self._line):
            rows = folded(self._verbatim(self._line), width)
        else:
            rows = self._read(self._line).rows(width, unfinished=True)
        return self._based(rows)

    def _complete(self, line: str, width: int, most_rows: int) -> Iterator[Text]:
        """The rows that the end of a line finishes."""
        if self._ends_table(line):
            yield from self._end_table(width)
        while len(line) > _LONGEST_LINE and (cut := self._cut(line, width, most_rows)) is not None:
            yield from self._begin(line[:cut], width)
            line = line[cut:]
        if self._look == "raw":
            yield Text(line, end="")
        elif self._fence:
            yield self._code_line(line)
        elif not self._begun and (fence := _FENCE.fullmatch(line)):
            self._fence = fence["mark"]
            self._code = CodeHighlighter(fence["language"] if self._look == "styled" else "")
            yield Text(line, self._quiet, end="")
        elif self._is_verbatim(line):
            yield Text(line, end="")
        elif may_be_row(line) and not self._begun:
            self._table.append(line)
            if len(self._table) > _LONGEST_TABLE:
                yield from self._end_table(width)
        else:
            yield from self._prose_rows(line, width)
        self._begun = None
        self._after_blank = not line.strip()

    def _prose_rows(self, line: str, width: int) -> list[Text]:
        prose = self._read(line)
        if line.strip() and not self._begun:
            self._in_list = prose.is_item or (self._in_list and line[0] in " \t")
        return prose.rows(width)

    def _read(self, line: str) -> Prose:
        return follow_up(line, self._begun) if self._begun else read_prose(line, styled=self._look == "styled")

    def _begin(self, line: str, width: int) -> list[Text]:
        """The rows of a line's beginning, whose rest is to come."""
        if self._is_verbatim(line):
            return [self._verbatim(line)]
        prose = self._begun = self._read(line)
        return prose.rows(width)

    def _cut(self, line: str, width: int, most_rows: int) -> int | None:
        """How much of a line can be given out before it is complete; None where it is short."""
        if len(line) < most_rows * width // 2 or self._table:
            return None
        part = line[:_LONGEST_LINE]
        if not self._is_verbatim(part):
            return self._read(part).cut(width, most_rows)
        breaks = fold_breaks(part, width)
        return breaks[-1] if len(breaks) >= most_rows else None

    def _is_verbatim(self, line: str) -> bool:
        """Whether the line is shown as it is: code, also by its indentation, or everything."""
        if self._look == "raw" or self._fence:
            return True
        return self._after_blank and not self._in_list and not self._begun and _CODE_INDENT.match(line) is not None

    def _verbatim(self, line: str) -> Text:
        return self._code.peek(line) if self._fence else Text(line, end="")

    def _code_line(self, line: str) -> Text:
        bare = line.strip()
        if len(bare) >= len(self._fence) and set(bare) == {self._fence[0]}:
            self._fence = ""
            return Text(line, self._quiet, end="")
        return self._code.line(line)

    def _ends_table(self, line: str) -> bool:
        if len(self._table) == 1:
            return not is_delimiter(line)
        return bool(self._table) and not may_be_row(line)

    def _end_table(self, width: int) -> list[Text]:
        lines, self._table = self._table, []
        return self._table_rows(lines, width) if lines else []

    def _table_rows(self, lines: list[str], width: int) -> list[Text]:
        if len(lines) > 1 and is_delimiter(lines[1]):
            rows = table_rows(lines, width, self._cell, rule=self._quiet)
            if rows is not None:
                return rows
        return [row for line in lines for row in self._prose_rows(line, width)]

    def _cell(self, source: str) -> Text:
        return inline(source).text if self._look == "styled" else Text(source)

    @property
    def _quiet(self) -> str:
        return _QUIET if self._look == "styled" else ""

    def _based(self, rows: list[Text]) -> list[Text]:
        if self._style:
            for row in rows:
                row.stylize_before(self._style)
        return rows
