"""Tables of Markdown as aligned columns. Every cell comes out whole: what does not fit its column goes on below."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rich.text import Text

from llmcli.cli.chat_wrap import cells, wrapped

Show = Callable[[str], Text]
_DELIMITER = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_NARROWEST = 6
_GAP, _RULE, _CROSSING = " │ ", "─", "─┼─"


def may_be_row(line: str) -> bool:
    """Whether the line can belong to a table."""
    return "|" in line


def is_delimiter(line: str) -> bool:
    """Whether the line is the one below a table's head."""
    return "-" in line and "|" in line and _DELIMITER.fullmatch(line) is not None


def split_row(line: str) -> list[str]:
    """The cells of a row; a bar in code or behind a backslash separates nothing."""
    row, cell, at = list[str](), "", 0
    text = line.strip()
    text = text.removeprefix("|")
    for found in re.finditer(r"\\.|(`+)(?!`).*?\1(?!`)|\|", text):
        cell += text[at : found.start()]
        at = found.end()
        if found.group() == "|":
            row.append(cell.strip())
            cell = ""
        else:
            cell += found.group()
    cell += text[at:]
    return [*row, cell.strip()] if cell.strip() or not row else row


def table_rows(lines: Sequence[str], width: int, show: Show, *, rule: str) -> list[Text] | None:
    """Head, delimiter and rows in columns; None where `width` is too little for that. `rule` styles the lines."""
    rows = [[show(cell) for cell in split_row(line)] for number, line in enumerate(lines) if number != 1]
    count = max(map(len, rows))
    rows = [row + [Text()] * (count - len(row)) for row in rows]
    widths = _widths([max(cells(row[column].plain) for row in rows) for column in range(count)], width)
    if widths is None:
        return None
    aligns = ([_align(cell) for cell in split_row(lines[1])] + ["left"] * count)[:count]
    shown = [line for row in rows for line in _row(row, widths, aligns, rule)]
    head = _row(rows[0], widths, aligns, rule)
    for line in head:
        line.stylize("bold")
    crossing = Text(_CROSSING.join(_RULE * size for size in widths), rule)
    return [*head, crossing, *shown[len(head) :]]


def _widths(natural: list[int], width: int) -> list[int] | None:
    """The columns' widths: the widest give way first."""
    room = width - len(_GAP) * (len(natural) - 1)
    widths = [max(size, 1) for size in natural]
    if sum(min(size, _NARROWEST) for size in widths) > room:
        return None
    if sum(widths) <= room:
        return widths
    low, high = _NARROWEST, max(widths)
    while low < high:  # the greatest limit at which they all fit
        limit = (low + high + 1) // 2
        low, high = (limit, high) if sum(min(size, limit) for size in widths) <= room else (low, limit - 1)
    return [min(size, low) for size in widths]


def _align(delimiter: str) -> str:
    if delimiter.endswith(":"):
        return "center" if delimiter.startswith(":") else "right"
    return "left"


def _row(row: Sequence[Text], widths: Sequence[int], aligns: Sequence[str], rule: str) -> list[Text]:
    parts = [wrapped(cell, size) for cell, size in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(map(len, parts))):
        line = Text(end="")
        for column, (part, size, align) in enumerate(zip(parts, widths, aligns, strict=True)):
            if column:
                line.append(_GAP, rule)
            line.append_text(_padded(part[number] if number < len(part) else Text(), size, align))
        line.rstrip()
        lines.append(line)
    return lines


def _padded(text: Text, size: int, align: str) -> Text:
    text = text.copy()
    text.rstrip()
    missing = max(size - cells(text.plain), 0)
    left = {"left": 0, "right": missing, "center": missing // 2}[align]
    return Text(" " * left) + text + Text(" " * (missing - left))
