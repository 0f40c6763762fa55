"""One answer as rows of the screen: thinking, dimmed or folded into one row, then the answer in Markdown."""

from __future__ import annotations

import time

from rich.text import Text

from llmcli.base.units import format_count, format_seconds
from llmcli.cli.chat_markdown import Look, MarkdownStream
from llmcli.cli.safe_text import SafeText
from llmcli.engine.generate import Kind, Part

QUIET = "dim"
_NO_LIMIT = 1 << 16


class AnswerView:
    """Takes the parts of one answer; gives rows as MarkdownStream does.

    shows_thinking   may be changed at any time: what is hidden appears, what is shown is folded from then on
    """

    def __init__(self, look: Look, *, shows_thinking: bool) -> None:
        self._look: Look = look
        self.shows_thinking = shows_thinking
        self.thinking = ""
        self._kind: Kind | None = None
        self._stream = MarkdownStream(look)
        self._safe = SafeText()
        self._rows: list[Text] = []
        self._thought_from_s = time.monotonic()
        self._hidden = False
        self._begun = False

    def push(self, part: Part, width: int, most_rows: int) -> None:
        """More of it, for a screen of this size."""
        if part.kind != self._kind:
            self._change(part.kind, width, most_rows)
        text = self._safe.push(part.text)
        if part.kind == "reasoning":
            self.thinking += text
            if self._hidden:
                return
        if not self._begun:  # an answer begins with its first letter
            text = text.lstrip("\n")
            self._begun = bool(text)
        self._stream.push(text)

    def take(self, width: int, most_rows: int) -> list[Text]:
        """The rows that are finished and were not given out yet. Once for a frame: it looks at the whole paragraph."""
        rows, self._rows = self._rows + self._stream.take(width, most_rows), []
        return rows

    def rows_in_progress(self, width: int) -> list[Text]:
        """What is not finished yet."""
        if self._hidden and self._kind == "reasoning":
            words = format_count(len(self.thinking.split()), "word")
            return [Text(f"thinking: {words}, Ctrl-O shows them"[:width], QUIET)]
        return self._stream.rows_in_progress(width)

    def finish(self, width: int, most_rows: int) -> None:
        """The answer is over."""
        self._change(None, width, most_rows)

    def whole(self, text: str, width: int) -> list[Text]:
        """The rows of an answer that is there already."""
        self.push(Part("text", text), width, _NO_LIMIT)
        self.finish(width, _NO_LIMIT)
        return self.take(width, _NO_LIMIT)

    def unfold(self, width: int) -> None:
        """Show what was hidden of the thinking so far, and go on showing it."""
        self.shows_thinking = True
        if self._hidden and self._kind == "reasoning":
            self._hidden = False
            self._stream.push(self.thinking.lstrip("\n"))
            self._begun = bool(self.thinking.strip("\n"))
            self._rows += self._stream.take(width, _NO_LIMIT)

    def fold(self) -> None:
        """Hide the thinking of answers to come."""
        self.shows_thinking = False

    def _change(self, kind: Kind | None, width: int, most_rows: int) -> None:
        """One kind of part ends, another begins."""
        rest = self._safe.finish()
        if self._kind == "reasoning" and self._hidden:
            taken = format_seconds(time.monotonic() - self._thought_from_s)
            self._rows.append(Text(f"thought for {taken}; Ctrl-O shows it", QUIET))
        else:
            self._stream.push(rest)
            self._stream.finish()
            self._rows += self._stream.take(width, most_rows)
        if self._kind == "reasoning" and kind == "text":
            self._rows.append(Text())
        self._kind, self._begun, self._safe = kind, False, SafeText()
        self._hidden = kind == "reasoning" and not self.shows_thinking
        self._thought_from_s = time.monotonic()
        # Thinking is dimmed in every look; where there are no colours the screen leaves that out.
        self._stream = MarkdownStream("marks", style=QUIET) if kind == "reasoning" else MarkdownStream(self._look)


def thinking_rows(thinking: str, width: int) -> list[Text]:
    """Thinking that was hidden, in full."""
    stream = MarkdownStream("marks", style=QUIET)
    stream.push(thinking.strip("\n"))
    stream.finish()
    return stream.take(width, _NO_LIMIT)
