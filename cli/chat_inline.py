"""Markdown inside a line: bold, italics, code, links. Knows nothing of blocks, rows or the terminal.

Only marks are hidden, and only where they surely are marks: what a model writes is text first, and `2*3*4`,
`snake_case`, a Windows path or a formula must come out as they went in. A mark without its partner is text. Everything
else, entities, tags and backslashes included, is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.text import Text

_TOKEN = re.compile(
    r"""(?P<literal>\\\(.*?\\\) | \\\[.*?\\\] | \$\$.*?\$\$ | \\. | https?://[^\s)*`>]+)
      | (?P<code>(?P<fence>`+)(?!`)(?P<inside>.*?[^`])(?P=fence)(?!`))
      | (?P<ticks>`+)
      | (?<!!)\[(?P<label>[^\[\]]+)\]\((?P<target>[^()\s]+(?:\([^()\s]*\)[^()\s]*)*)\)
      | (?P<mark>\*+|_+|~~)""",
    re.VERBOSE,
)
# Not __: it is a part of Python's names far more often than a mark.
_MARKS = {"*": "italic", "**": "bold", "***": "bold italic", "_": "italic", "~~": "strike"}
_DEEPEST = 8
_CODE, _LINK, _TARGET = "cyan", "underline", "dim"


@dataclass(slots=True)
class Inline:
    """What is seen, and for each of its characters where it stands in the source."""

    text: Text = field(default_factory=lambda: Text(end=""))
    sources: list[int] = field(default_factory=list)

    def add(self, source: str, begin: int, end: int, style: str) -> None:
        """Show source[begin:end]."""
        if end > begin:
            self.text.append(source[begin:end], style or None)
            self.sources.extend(range(begin, end))


def inline(source: str, *, unfinished: bool = False) -> Inline:
    """The line as it is seen. `unfinished`: more is to come, and a mark that is open reaches to the end for now."""
    line = _Line(source, unfinished=unfinished)
    line.show(0, len(source), "")
    return line.seen


class _Line:
    """One line on its way to what is seen of it; each method returns where to go on."""

    def __init__(self, source: str, *, unfinished: bool) -> None:
        self._source, self._unfinished, self.seen = source, unfinished, Inline()
        self._alone: set[tuple[str, int]] = set()  # marks that have no partner before an offset: not sought again
        self._parts: dict[str | None, Callable[[re.Match[str], int, str], int]] = {
            "literal": self._literal,
            "code": self._code,
            "ticks": self._ticks,
            "target": self._link,
            "mark": self._mark,
        }

    def show(self, begin: int, end: int, style: str) -> None:
        """What stands between the two offsets, in a style."""
        while found := _TOKEN.search(self._source, begin, end):
            self._add(begin, found.start(), style)
            begin = self._parts[found.lastgroup](found, end, style)
        self._add(begin, end, style)

    def _add(self, begin: int, end: int, style: str) -> None:
        self.seen.add(self._source, begin, end, style.strip())

    def _literal(self, found: re.Match[str], _end: int, style: str) -> int:
        self._add(found.start(), found.end(), style)
        return found.end()

    def _code(self, found: re.Match[str], _end: int, style: str) -> int:
        self._add(*found.span("inside"), f"{style} {_CODE}")
        return found.end()

    def _ticks(self, found: re.Match[str], end: int, style: str) -> int:
        if not self._unfinished:
            return self._literal(found, end, style)
        self._add(found.end(), end, f"{style} {_CODE}")
        return end

    def _link(self, found: re.Match[str], _end: int, style: str) -> int:
        begin, end = found.span("label")
        self.show(begin, end, f"{style} {_LINK}")
        if found["label"] != found["target"]:
            self.seen.text.append(" ")
            self.seen.sources.append(end)
            self._add(found.start("target") - 1, found.end(), _TARGET)
        return found.end()

    def _mark(self, found: re.Match[str], end: int, style: str) -> int:
        mark = found["mark"]
        if mark not in _MARKS or style.count(" ") >= _DEEPEST or not _opens(self._source, found, end):
            return self._literal(found, end, style)
        closing = None if (mark, end) in self._alone else _closing(self._source, mark, found.end(), end)
        if closing is None:
            self._alone.add((mark, end))
            if not self._unfinished:
                return self._literal(found, end, style)
            self.show(found.end(), end, f"{style} {_MARKS[mark]}")
            return end
        self.show(found.end(), closing, f"{style} {_MARKS[mark]}")
        return closing + len(mark)


def _opens(source: str, found: re.Match[str], end: int) -> bool:
    """Whether a mark can begin something: not in the middle of a word or a sum, and something stands behind it."""
    before = source[found.start() - 1 : found.start()]
    after = source[found.end() : found.end() + 1]
    if found.end() >= end or after.isspace():
        return False
    return not _joins(before, found["mark"]) or (len(found["mark"]) > 1 and not _in_a_word(after))


def _closing(source: str, mark: str, begin: int, end: int) -> int | None:
    """Where the partner of `mark` stands."""
    at = begin
    while found := _TOKEN.search(source, at, end):
        at = found.end()
        if found["mark"] == mark and found.start() > begin and not source[found.start() - 1].isspace():
            after = source[found.end() : found.end() + 1] if found.end() < end else ""
            if not _joins(after, mark):
                return found.start()
    return None


def _joins(neighbour: str, mark: str) -> bool:
    """Whether a letter or digit next to the mark makes it a part of a word; Chinese and Japanese have no spaces."""
    return neighbour.isalnum() if mark[0] == "_" else _in_a_word(neighbour)


def _in_a_word(character: str) -> bool:
    return character.isascii() and character.isalnum()
