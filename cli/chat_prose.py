"""One line of Markdown that is neither code nor table: heading, list item, quote, rule or plain text, as rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from rich.text import Text

from llmcli.cli.chat_inline import Inline, inline
from llmcli.cli.chat_wrap import cells, word_breaks, wrapped

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(?=\S)")
_RULE = re.compile(r" {0,3}(?:(?:\*[ ]*){3,}|(?:-[ ]*){3,}|(?:_[ ]*){3,})")
_QUOTE = re.compile(r" {0,3}(?:>[ ]?)+")
_ITEM = re.compile(r"([ \t]*)([-*+]|\d{1,9}[.)])([ \t]+)(?=\S)")
_SPACE = re.compile(r"[ \t]*")
_HEADINGS = {1: "bold underline", 2: "bold underline"}
_HEADING_BELOW = "bold"
_QUIET = "dim"


@dataclass(frozen=True, slots=True)
class Prose:
    """A line, read.

    first, rest  what stands before its first row and before the others
    body         the source of what follows
    offset       where that begins in the source of the line
    style        of all of it
    is_item      it begins an item of a list
    is_rule      it is a line across, and nothing else
    """

    first: Text
    rest: Text
    body: str
    offset: int
    style: str = ""
    is_item: bool = False
    is_rule: bool = False
    styled: bool = field(default=True)

    def seen(self, *, unfinished: bool = False) -> Inline:
        """The body as it is seen."""
        if self.styled:
            return inline(self.body, unfinished=unfinished)
        return Inline(Text(self.body, end=""), list(range(len(self.body))))

    def rows(self, width: int, *, unfinished: bool = False) -> list[Text]:
        """The rows on a screen of that width."""
        if self.is_rule:
            return [Text("─" * max(min(width, 60), 3), _QUIET, end="")]
        body = self.seen(unfinished=unfinished).text
        rows = wrapped(body, width, first=self.first, rest=self.rest)
        for row in rows:
            row.stylize_before(self.style)
        return rows

    def cut(self, width: int, most_rows: int) -> int | None:
        """Where in the source the last row begins, if there are more rows than that and the two parts can be read
        apart.
        """
        seen = self.seen(unfinished=True)
        room = max(width - cells(self.first.plain), 1)
        breaks = word_breaks(seen.text.plain, room)
        if len(breaks) < most_rows:
            return None
        for at in reversed(breaks[-3:]):
            source = seen.sources[at]
            before, after = replace(self, body=self.body[:source]), replace(self, body=self.body[source:])
            parts = before.seen(unfinished=True).text.plain + after.seen(unfinished=True).text.plain
            if parts == seen.text.plain:
                return self.offset + source
        return self.offset + seen.sources[breaks[-1]]  # inside something marked: its marks will be seen


def read_prose(line: str, *, styled: bool) -> Prose:
    """Read one line. Without styles the marks stay, and only where rows begin is settled."""
    if styled and _RULE.fullmatch(line):
        return Prose(Text(), Text(), line, 0, is_rule=True)
    if styled and (heading := _HEADING.match(line)):
        style = _HEADINGS.get(len(heading[1]), _HEADING_BELOW)
        return Prose(Text(), Text(), line[heading.end() :], heading.end(), style)
    first, offset = Text(), 0
    if quote := _QUOTE.match(line):
        mark = "│ " * quote.group().count(">") if styled else quote.group()
        first, offset = Text(mark, _QUIET if styled else ""), quote.end()
    rest = first if styled else Text(" " * cells(first.plain))  # a bar goes on, a mark stands once
    if item := _ITEM.match(line, offset):
        mark = "•" if styled and item[2] in "-*+" else item[2]
        begin = Text(item[1] + mark + item[3]) if not styled else Text(item[1] + mark + " ")
        begin.expand_tabs(4)
        hang = rest + Text(" " * cells(begin.plain))
        return Prose(first + begin, hang, line[item.end() :], item.end(), is_item=True, styled=styled)
    space = _SPACE.match(line, offset)
    indent = Text(space.group() if space else "")
    indent.expand_tabs(4)
    end = offset + len(space.group() if space else "")
    return Prose(first + indent, rest + indent, line[end:], end, styled=styled)


def follow_up(line: str, of: Prose) -> Prose:
    """More of a line whose beginning was given out already."""
    return replace(of, first=of.rest, body=line, offset=0, is_rule=False)
