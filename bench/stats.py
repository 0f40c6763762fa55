"""What a list of samples says, and what speaks against believing it. Pure functions on numbers, standard library only.

Percentiles are those between order statistics on a straight line (numpy's default, type 7 of Hyndman and Fan, "Sample
Quantiles in Statistical Packages", 1996), which is also what vLLM's serving benchmark reports.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# A middle half that spans more than this share of the median says little about a difference of some percent.
WIDE_SPREAD = 0.05
# Throttling shows as a fall from the first third to the last of at least this share …
_DRIFT_SHARE = 0.05
# … in samples that go one way: of all pairs, this share more fall than rise (Kendall's tau).
_DRIFT_TAU = 0.6
_DRIFT_LEAST = 5


@dataclass(frozen=True, slots=True)
class Summary:
    """Of at least one sample. p25 and p75 bound the middle half; stdev is that of a sample (n - 1), 0 for one."""

    n: int
    mean: float
    stdev: float
    median: float
    p25: float
    p75: float
    least: float
    most: float

    @property
    def half_spread(self) -> float:
        """Half of the middle half's width: what stands behind ±."""
        return (self.p75 - self.p25) / 2


def summarize(samples: Sequence[float]) -> Summary:
    """The figures of at least one sample."""
    return Summary(
        n=len(samples),
        mean=statistics.fmean(samples),
        stdev=statistics.stdev(samples) if len(samples) > 1 else 0.0,
        median=statistics.median(samples),
        p25=percentile(samples, 25),
        p75=percentile(samples, 75),
        least=min(samples),
        most=max(samples),
    )


def percentile(samples: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the samples lie, on a straight line between two of them."""
    ordered = sorted(samples)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def is_wide(samples: Sequence[float]) -> bool:
    """Whether the middle half spans more than WIDE_SPREAD of the median."""
    found = summarize(samples)
    return found.n > 1 and found.p75 - found.p25 > WIDE_SPREAD * found.median


def drift(samples: Sequence[float]) -> float | None:
    """How far the samples moved from the first third to the last, as a share; None where they do not go one way."""
    count = len(samples)
    if count < _DRIFT_LEAST:
        return None
    third = count // 3
    first, last = statistics.median(samples[:third]), statistics.median(samples[-third:])
    moved = last / first - 1 if first else 0.0
    if abs(moved) < _DRIFT_SHARE or kendall(samples) * math.copysign(1, moved) < _DRIFT_TAU:
        return None
    return moved


def kendall(samples: Sequence[float]) -> float:
    """Kendall's tau of the samples against time: 1 where each is above all before it, -1 where each is below."""
    pairs = [(early, late) for i, early in enumerate(samples) for late in samples[i + 1 :]]
    return sum((late > early) - (late < early) for early, late in pairs) / len(pairs) if pairs else 0.0
