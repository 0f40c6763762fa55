"""Rows of cells as lines of even columns, for terminals and for pipes."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table_lines(rows: Sequence[Sequence[str]], *, right: Collection[int], columns: int | None = None) -> list[str]:
    """One line per row, the cells of the columns in `right` set flush right; cut at `columns`, where there is an edge.

    The last column is never padded, so nothing trails. The cells have to be printable.
    """
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(cells).rstrip()
        lines.append(line if columns is None or len(line) <= columns else line[: columns - 1] + "…")
    return lines
