"""What the prefix benchmarks share: measuring in turns, and rows of one table."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
# unit -> (factor, digits, suffix): how a value is shown
_SHOWN = {
    "share": (100, 2, " %"),
    "ratio": (1, 3, ""),
    "times": (1, 1, " x"),
    "s": (1, 3, " s"),
    "ms": (1, 2, " ms"),
    "MB": (1, 1, " MB"),
    "KiB": (1, 0, " KiB"),
    "yes": (1, 0, ""),
}


class BenchError(Exception):
    """A measurement that cannot be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    value       the median, in `unit` ("share" and "ratio" are plain numbers, "yes" is 1 or 0)
    low, high   the extremes of the rounds
    bound       the target; None where there is none. `at_least` tells on which side of it the value must lie
    details     absolute figures behind a ratio, for --json
    """

    what: str
    value: float
    unit: str
    how: str
    low: float
    high: float
    rounds: int
    bound: float | None = None
    at_least: bool = False
    details: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        what: str,
        values: Sequence[float],
        unit: str,
        how: str,
        *,
        bound: float | None = None,
        at_least: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> Row:
        """The row of some rounds' values."""
        return cls(
            what, statistics.median(values), unit, how, min(values), max(values), len(values), bound, at_least, details
        )

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.bound is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def cells(self) -> tuple[str, str, str, str, str, str]:
        """What the table shows."""
        target = "" if self.bound is None else f"{'>=' if self.at_least else '<='} {self._shown(self.bound)}"
        spread = f"{self._shown(self.low)} to {self._shown(self.high)}, n={self.rounds}" if self.rounds > 1 else ""
        met = {None: "", True: "met", False: "MISSED"}[self.met]
        return self.what, target, self._shown(self.value), met, spread, self.how

    def _shown(self, value: float) -> str:
        if self.unit == "yes":
            return "yes" if value else "NO"
        factor, digits, suffix = _SHOWN[self.unit]
        return f"{value * factor:.{digits}f}{suffix}"


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned columns."""
    cells = [("what", "target", "measured", "", "extremes", "how"), *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def in_turns(rounds: int, sides: Mapping[str, Callable[[int], T]]) -> dict[str, list[T]]:
    """Measure every side once a round, in the order given and then in the opposite one, and so on."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            found[name].append(sides[name](number))
    return found


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def disk_bytes(folder: Path) -> int:
    """What everything in the folder takes on the disk: whole file system blocks, the index included."""
    facts = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum(getattr(fact, "st_blocks", 0) * 512 or fact.st_size for fact in facts)


def written_by_process() -> int | None:
    """Bytes that this process has given to the system to write, whatever the file; None where that is not told."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"bench: {text} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
