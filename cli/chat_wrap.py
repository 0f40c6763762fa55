"""Lines into rows of a terminal: where a text breaks at a given width. Knows character widths and nothing of Markdown.

A character counts by itself (a family emoji as its members), which is what the line editor does too: a row is never
wider on the screen than it is counted here. No character is dropped but spaces at the end of a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import get_character_cell_size
from rich.text import Text

TAB_CELLS = 8
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)|^ +")
_WORD = re.compile(r"\S+\s*")


def cells(text: str) -> int:
    """How many columns `text` takes; a tab takes as many as it can."""
    if text.isascii():
        return len(text) + (TAB_CELLS - 1) * text.count("\t")
    return sum(map(_size, text))


def _size(character: str) -> int:
    return TAB_CELLS if character == "\t" else get_character_cell_size(character)


def word_breaks(text: str, width: int) -> list[int]:
    """The offsets at which rows of at most `width` columns begin, the first one (0) not named; words stay whole where
    they fit a row.
    """
    breaks, used = list[int](), 0
    for start, word in _words(text):
        size = cells(word.rstrip())
        if used and used + size > width:
            breaks.append(start)
            used = 0
        if used + size > width:
            inside = fold_breaks(word.rstrip(), width)
            breaks += [start + offset for offset in inside]
            used = cells(word[inside[-1] :]) if inside else size
        else:
            used += cells(word)
    return breaks


def _words(text: str) -> Iterator[tuple[int, str]]:
    """Words with the space behind them; white space at the beginning of the text belongs to the first."""
    at = 0
    for found in _WORD.finditer(text):
        yield at, text[at : found.end()]
        at = found.end()


def fold_breaks(text: str, width: int) -> list[int]:
    """The offsets at which rows begin when only the width counts."""
    breaks, used = list[int](), 0
    for offset, character in enumerate(text):
        size = _size(character)
        if used and used + size > width:
            breaks.append(offset)
            used = 0
        used += size
    return breaks


def wrapped(text: Text, width: int, *, first: Text | None = None, rest: Text | None = None) -> list[Text]:
    """`text` in rows; `first` stands before the first one, `rest` before the others, where there is room for them."""
    first, rest = first or Text(), rest or Text()
    room = width - max(cells(first.plain), cells(rest.plain))
    if room < min(width, 10):
        return wrapped(first + text, width) if first else [text]
    rows = [(rest if number else first) + row for number, row in enumerate(text.divide(word_breaks(text.plain, room)))]
    for row in rows:
        row.rstrip()
    return rows


def in_columns(text: Text, width: int) -> list[Text]:
    """A line of a list in rows: what does not fit goes on under its last column, where two spaces part columns."""
    last = max((found.end() for found in _GAP.finditer(text.plain)), default=0)
    hang = last if cells(text.plain[:last]) <= width // 2 else 0
    return wrapped(text[hang:], width, first=text[:hang], rest=Text(" " * cells(text.plain[:hang])))


def folded(text: Text, width: int) -> list[Text]:
    """`text` in rows that are as full as they can be, as a terminal itself breaks a long line."""
    return list(text.divide(fold_breaks(text.plain, width)))
