"""What `llmcli bench latency` shows: tables, the plot, one JSON object."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.base.units import format_bytes, format_count, format_seconds
from llmcli.bench.environment import machine_id
from llmcli.bench.latency import LatencyOptions
from llmcli.bench.latency_result import (
    KINDS,
    LEAST_SAMPLES,
    Kind,
    Point,
    Request,
    break_even,
    comparable,
    disk_wins,
    itl_percentiles,
)
from llmcli.bench.plot import Chart, Series
from llmcli.bench.process import ProcessTimes
from llmcli.bench.result import busy_flag
from llmcli.bench.stats import percentile
from llmcli.bench.tables import table

_NAMES: Mapping[Kind, str] = {
    "cold": "cold",
    "memory": "prefix in memory",
    "disk": "prefix restored from disk",
}


@dataclass(slots=True)
class Found:
    """Everything that was measured. error: what ended it before the end."""

    model: str
    load_s: float
    environment: dict[str, Any]
    options: LatencyOptions
    points: list[Point] = field(default_factory=list)
    processes: dict[str, list[ProcessTimes]] = field(default_factory=dict)
    interrupted: bool = False
    error: LlmcliError | None = None

    @property
    def flags(self) -> list[str]:
        """What speaks against believing the figures."""
        busy = busy_flag(self.environment)
        return [busy] if busy else []

    def as_json(self) -> dict[str, Any]:
        """With the names of docs/commands/bench.md."""
        return {
            "model": self.model,
            "load_s": self.load_s,
            "question_tokens": self.options.question_tokens,
            "answer_tokens": self.options.answer_tokens,
            "repetitions": self.options.repetitions,
            "break_even_tokens": break_even(self.points),
            "points": [point.as_json() for point in self.points],
            "processes": {name: [asdict(one) for one in many] for name, many in self.processes.items()},
            "flags": self.flags,
            "interrupted": self.interrupted,
            "error": self.error.message if self.error else None,
            "environment": self.environment,
        }

    def as_text(self) -> str:
        """The tables."""
        parts = [_prefix_table(self.points), _kind_table(self.points[-1])]
        if self.processes:
            parts.append(_process_table(self.processes))
        if self.flags:
            parts.append("\n".join(f"! {flag}" for flag in self.flags) + "\n")
        foot = f"model {self.model}, load {format_seconds(self.load_s)}; {machine_id(self.environment)}; medians of "
        return "\n".join([*parts, f"{foot}{self.options.repetitions}\n"])

    def chart(self) -> Chart:
        """TTFT against the length of the prefix."""
        series = tuple(one for kind in KINDS if (one := _series(self.points, kind)))
        even = break_even(self.points)
        marks = ((even, f"disk wins from {even:.0f} tokens on"),) if even else ()
        return Chart(
            f"Time to first token, {self.model}",
            f"prefix length (tokens), a question of {self.options.question_tokens} tokens behind it",
            "time to first token (ms)",
            series,
            x_log2=True,
            y_log=True,
            marks=marks,
        )


def _series(points: Sequence[Point], kind: Kind) -> Series | None:
    known = [(point.prefix_tokens, [1000 * one.ttft_s for one in point.of(kind)]) for point in points]
    known = [(length, times) for length, times in known if times]
    if not known:
        return None
    return Series(
        _NAMES[kind],
        tuple(float(length) for length, _ in known),
        tuple(statistics.median(times) for _, times in known),
        tuple(percentile(times, 25) for _, times in known),
        tuple(percentile(times, 75) for _, times in known),
    )


def _prefix_table(points: Sequence[Point]) -> str:
    rows = []
    for point in points:
        cold, memory, disk = (point.ttft_s(kind) for kind in KINDS)
        restored = max((one.restored_tokens for one in point.of("disk")), default=0)
        won = "" if cold is None or disk is None else f"{cold / disk:.1f}x"
        rows.append(
            (
                f"{point.prefix_tokens:,}",
                _time(cold),
                _time(memory),
                _time(disk),
                won,
                f"{restored:,}",
                format_bytes(point.written_bytes),
                _time(point.save_s),
            )
        )
    head = ("prefix", "TTFT cold", "memory", "disk", "cold/disk", "restored", "on disk", "saving")
    return table(head, rows, left=0) + _verdict(points) + "\n"


def _verdict(points: Sequence[Point]) -> str:
    even, known = break_even(points), comparable(points)
    if not known:
        return "no prefix was restored from disk"
    if even is None and disk_wins(known[-1]) is None:
        return f"whether disk wins cannot be told: {_why_untold(known[-1])}"
    if even is None:
        return "a restored prefix does not pay at these lengths"
    words = f"disk wins from {even:.0f} tokens on"
    if even == min(point.prefix_tokens for point in points):
        return f"{words}, the shortest that was measured"
    before = [point for point in known if point.prefix_tokens < even]
    return words + (" at the latest" if before and disk_wins(before[-1]) is None else "")


def _why_untold(point: Point) -> str:
    fewest = min(len(point.of("cold")), len(point.of("disk")))
    if fewest < LEAST_SAMPLES:
        return f"{format_count(fewest, 'sample')} of a kind, and a verdict takes {LEAST_SAMPLES} (-r {LEAST_SAMPLES})"
    return "the times of cold and disk are too scattered; a quieter machine or a larger -r may tell"


def _kind_table(point: Point) -> str:
    rows = []
    for kind in KINDS:
        requests = point.of(kind)
        if requests:
            phases = [
                _time(_median(requests, name)) for name in ("tokenize_s", "restore_s", "prefill_s", "ttft_s", "tpot_s")
            ]
            itl = [_time(one) for one in itl_percentiles(requests, (50, 90, 99)) or (None,) * 3]
            rows.append((kind, *phases, *itl, _time(_median(requests, "total_s"))))
    head = ("", "tokenize", "restore", "prefill", "TTFT", "TPOT", "ITL p50", "p90", "p99", "total")
    return f"prefix of {point.prefix_tokens:,} tokens:\n" + table(head, rows)


def _median(requests: Sequence[Request], name: str) -> float | None:
    times = [value for one in requests if (value := getattr(one, name)) is not None]
    return statistics.median(times) if times else None


def _process_table(processes: Mapping[str, Sequence[ProcessTimes]]) -> str:
    names = ("start_s", "load_s", "tokenize_s", "restore_s", "prefill_s", "ttft_s", "first_byte_s", "whole_s")
    rows = [
        (
            kind,
            *(_time(statistics.median(getattr(one, name) for one in many)) for name in names),
            f"{min(one.restored_tokens for one in many):,}",
        )
        for kind, many in processes.items()
    ]
    head = ("", "start", "load", "tokenize", "restore", "prefill", "TTFT", "first byte", "whole", "restored")
    return "whole processes, the longest prefix:\n" + table(head, rows)


def _time(seconds: float | None) -> str:
    """Milliseconds in three digits, seconds above."""
    if seconds is None:
        return ""
    if seconds >= 1:
        return format_seconds(seconds)
    return f"{1000 * seconds:.3g} ms"
