"""What `bench.latency` measured: requests, the points of each length, and what follows from them. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llmcli.bench.stats import percentile

Kind = Literal["cold", "memory", "disk"]
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


def break_even(points: Sequence[Point]) -> float | None:
    """The prefix length from which on a restored prefix answers sooner than a cold start, to the last point measured.

    Between two lengths on a straight line; the first length where it holds for all; None where it never does.
    """
    known = [
        (point.prefix_tokens, cold - disk)
        for point in sorted(points, key=lambda one: one.prefix_tokens)
        if (cold := point.ttft_s("cold")) is not None and (disk := point.ttft_s("disk")) is not None
    ]
    losing = [i for i, (_, won) in enumerate(known) if won <= 0]
    first = losing[-1] + 1 if losing else 0
    if first >= len(known):
        return None
    if first == 0:
        return float(known[0][0])
    (near, lost), (far, won) = known[first - 1], known[first]
    return near + (far - near) * -lost / (won - lost)
