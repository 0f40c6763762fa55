"""Rows of cells as lines of even columns, for terminals and for pipes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_GAP = 2
_GOOD_TEXT, _LEAST_TEXT = 24, 8  # as narrow as a text gets before columns go, and at all


def table_lines(
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int],
    columns: int | None = None,
    less_needed: Sequence[int] = (),
) -> list[str]:
    """One line per row, the cells of the columns in `right` set flush right, within `columns` where there is an edge.

    right         numbers: they are never cut, since what is left of one would be read as another
    less_needed   the columns to leave out, the first first, where the line is too long. Then texts are shortened, and
                  at last columns go from the end; the first one stays
    The last column is never padded, so nothing trails. The cells have to be printable.
    """
    if not rows:
        return []
    widths = {at: max(len(row[at]) for row in rows) for at in range(len(rows[0]))}
    if columns is not None:
        widths = _fitted(widths, frozenset(right), columns, less_needed)
    last = max(widths)
    lines = []
    for row in rows:
        cells = [_shortened(row[at], width, middle=at != last) for at, width in widths.items()]
        padded = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for cell, (at, width) in zip(cells, widths.items(), strict=True)
        ]
        lines.append((" " * _GAP).join(padded).rstrip())
    return lines


def _fitted(
    widths: dict[int, int], numbers: frozenset[int], columns: int, less_needed: Sequence[int]
) -> dict[int, int]:
    kept = dict(widths)

    def excess(least_text: int) -> int:
        """How much too long the line is with every text as narrow as that."""
        narrow = (width if at in numbers else min(width, least_text) for at, width in kept.items())
        return sum(narrow) + _GAP * (len(kept) - 1) - columns

    for at in less_needed:
        if excess(_GOOD_TEXT) > 0:
            del kept[at]
    while excess(_LEAST_TEXT) > 0 and len(kept) > 1:
        del kept[max(kept)]
    least = _LEAST_TEXT if len(kept) > 1 else 1
    texts = [at for at in kept if at not in numbers]
    while excess(max(widths.values())) > 0 and texts:
        widest = max(texts, key=lambda at: kept[at])
        if kept[widest] <= least:
            break
        kept[widest] -= 1
    return kept


def _shortened(text: str, width: int, *, middle: bool) -> str:
    """Of names both ends tell something, of other texts the beginning does."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2 if middle else 0
    return text[: width - 1 - end] + "…" + text[len(text) - end :]
