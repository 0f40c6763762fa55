"""What `bench.latency` measured: requests, the points of each length, and what follows from them. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llmcli.bench.stats import percentile

Kind = Literal["cold", "memory", "disk"]
LEAST_SAMPLES = 3
KINDS: tuple[Kind, ...] = ("cold", "memory", "disk")


@dataclass(frozen=True, slots=True)
class Request:
    """One request, in seconds; restored_tokens: what was not computed, of `prompt_tokens`."""

    kind: Kind
    prompt_tokens: int
    restored_tokens: int
    tokenize_s: float
    restore_s: float
    prefill_s: float
    ttft_s: float
    itl_s: tuple[float, ...]
    total_s: float

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first."""
        return statistics.fmean(self.itl_s) if self.itl_s else None


@dataclass(slots=True)
class Point:
    """One prefix length. written_bytes, save_s: what keeping it took, and how long a user waited for that."""

    prefix_tokens: int
    written_bytes: int = 0
    save_s: float = 0.0
    requests: list[Request] = field(default_factory=list)

    def of(self, kind: Kind) -> list[Request]:
        """The requests of one kind; of `disk` only those that were restored."""
        return [one for one in self.requests if one.kind == kind and (kind != "disk" or one.restored_tokens)]

    def ttft_s(self, kind: Kind) -> float | None:
        """The median TTFT, None where there is none of this kind."""
        found = [one.ttft_s for one in self.of(kind)]
        return statistics.median(found) if found else None

    def as_json(self) -> dict[str, Any]:
        """With the names of docs/commands/bench.md."""
        return {
            "prefix_tokens": self.prefix_tokens,
            "written_bytes": self.written_bytes,
            "save_s": self.save_s,
            **{f"{kind}_ttft_s": self.ttft_s(kind) for kind in KINDS},
            "requests": [_request_json(one) for one in self.requests],
        }


def _request_json(one: Request) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "prompt_tokens": one.prompt_tokens,
        "restored_tokens": one.restored_tokens,
        "tokenize_s": one.tokenize_s,
        "restore_s": one.restore_s,
        "prefill_s": one.prefill_s,
        "ttft_s": one.ttft_s,
        "tpot_s": one.tpot_s,
        "itl_s": list(one.itl_s),
        "total_s": one.total_s,
    }


def itl_percentiles(requests: Sequence[Request], percents: Sequence[float]) -> list[float] | None:
    """Percentiles of the times between tokens, of all requests together; None where there are none."""
    times = [one for request in requests for one in request.itl_s]
    return [percentile(times, percent) for percent in percents] if times else None


def disk_wins(point: Point) -> bool | None:
    """Whether a restored prefix answers sooner than a cold start; None where the samples do not tell.

    They tell with LEAST_SAMPLES of each whose middle halves lie apart.
    """
    cold, disk = ([one.ttft_s for one in point.of(kind)] for kind in ("cold", "disk"))
    if min(len(cold), len(disk)) < LEAST_SAMPLES:
        return None
    if percentile(disk, 75) < percentile(cold, 25):
        return True
    return False if percentile(cold, 75) < percentile(disk, 25) else None


def comparable(points: Sequence[Point]) -> list[Point]:
    """Those with a cold start and a restored prefix, the shortest prefix first."""
    both = (one for one in points if one.of("cold") and one.of("disk"))
    return sorted(both, key=lambda one: one.prefix_tokens)


def break_even(points: Sequence[Point]) -> float | None:
    """The prefix length from which on a restored prefix answers sooner than a cold start, to the last point measured.

    Where the length before surely loses, between the two on a straight line; else the first length from which on it
    holds for all. None where it never does, or the samples do not tell.
    """
    known = comparable(points)
    first = next((i + 1 for i in reversed(range(len(known))) if not disk_wins(known[i])), 0)
    if first >= len(known):
        return None
    if first == 0 or disk_wins(known[first - 1]) is None:
        return float(known[first].prefix_tokens)
    (near, lost), (far, won) = ((one.prefix_tokens, _won_s(one)) for one in known[first - 1 : first + 1])
    return near + (far - near) * -lost / (won - lost)


def _won_s(point: Point) -> float:
    return (point.ttft_s("cold") or 0.0) - (point.ttft_s("disk") or 0.0)
