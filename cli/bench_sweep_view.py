"""What `llmcli bench sweep` shows: the table and the curves, the plot, one JSON object."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from llmcli.base.units import format_seconds
from llmcli.bench.plot import Chart, Series
from llmcli.bench.sweep import Sweep, SweepOptions, Tried, Verdict, by_value
from llmcli.bench.tables import table

_AXES = {"-t": "n_threads", "-b": "n_batch", "-ub": "n_ubatch", "-fa": "flash_attn", "-ctk": "type_k", "type": "quant"}
_MOST_LINES = 6


def sweep_json(sweep: Sweep, verdict: Verdict | None, saved: dict[str, Any] | None) -> dict[str, Any]:
    """With the names of docs/commands/bench.md; verdict: None after Ctrl-C."""
    return {
        "tried": [one.as_json() for one in sweep.tried],
        "winner": verdict.winner.as_json() if verdict else None,
        "usual": verdict.usual.as_json() if verdict else None,
        "gain": verdict.gain if verdict else None,
        "p_value": verdict.p_value if verdict else None,
        "is_better": bool(verdict and verdict.is_better),
        "was_cut": sweep.was_cut,
        "interrupted": verdict is None,
        "saved": saved,
    }


def sweep_text(sweep: Sweep, verdict: Verdict | None, options: SweepOptions) -> str:
    """The candidates, the curve of each setting, and what follows."""
    ranked = sorted(sweep.tried, key=lambda one: (-len(one.rounds), one.request_s))
    rows = [(one.candidate.label, str(len(one.rounds)), _first(one), _last(one), _final(one)) for one in ranked]
    curves = "".join(_curve(flag, by_value(sweep.tried, name)) for flag, name in _AXES.items())
    asked = f"the time of a request of {options.n_prompt} + {options.n_gen} tokens, as each round found it:\n"
    shown = table(("settings", "rounds", "first round", "last round", "final, median"), rows)
    best = "\nthe shortest time with each value in the first round, where all were measured:\n" if curves else "\n"
    return f"{asked}{shown}{best}{curves}{_conclusion(sweep, verdict)}\n"


def _first(one: Tried) -> str:
    return format_seconds(one.rounds[0]) if one.rounds else ""


def _last(one: Tried) -> str:
    """The time of the last round that it was in, and what ended it; "" where it was in none."""
    time = format_seconds(one.request_s) if one.rounds else ""
    return ", then ".join(part for part in (time, one.problem) if part)


def _final(one: Tried) -> str:
    return format_seconds(statistics.median(one.samples)) if one.samples else ""


def _curve(flag: str, values: Sequence[tuple[str, float]]) -> str:
    known = [(value, seconds) for value, seconds in values if value != "None"]
    if len(known) < 2:
        return ""
    return f"{flag:<5}" + ", ".join(f"{value}: {format_seconds(seconds)}" for value, seconds in known) + "\n"


def _conclusion(sweep: Sweep, verdict: Verdict | None) -> str:
    if verdict is None:
        return "interrupted: there is no winner"
    if verdict.winner is verdict.usual:
        measured = sum(bool(one.rounds) for one in sweep.tried)
        of = "" if measured == len(sweep.tried) else f" of the {measured} that were measured"
        return f"the settings as they are answer soonest{of}"
    if verdict.p_value is None:
        return f"{verdict.winner.candidate.label}: the final failed: {verdict.winner.problem or verdict.usual.problem}"
    more = "less" if verdict.gain >= 0 else "more"
    words = (
        f"in the final, {len(verdict.winner.samples)} times in turns, {verdict.winner.candidate.label} took "
        f"{abs(verdict.gain):.1%} {more} time than the settings as they are: {_final(verdict.winner)} against "
        f"{_final(verdict.usual)}, p {verdict.p_value:.3f}"
    )
    return words if verdict.is_better else f"{words}; the samples do not show that it is faster"


def sweep_chart(tried: Sequence[Tried]) -> Chart:
    """The rounds of the candidates that came farthest."""
    ranked = sorted((one for one in tried if one.rounds), key=lambda one: (-len(one.rounds), one.request_s))
    series = tuple(
        Series(one.candidate.label, tuple(float(i + 1) for i in range(len(one.rounds))), tuple(one.rounds))
        for one in ranked[:_MOST_LINES]
    )
    return Chart("successive halving", "round", "time of the request (s)", series)
