"""Columns of text, aligned: what comparison, history, latency and sweep show on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from llmcli.base.text import printable


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """The rows below their head; the first `left` columns are set to the left, numbers to the right."""
    cells = [list(head), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = (
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return "".join(line.rstrip() + "\n" for line in lines)


def percent(share: float | None, digits: int = 1) -> str:
    """`+3.2%`; "" for None."""
    return "" if share is None else f"{share:+.{digits}%}"
