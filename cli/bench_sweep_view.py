"""What `llmcli bench sweep` shows: the table and the curves, the plot, one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmcli.base.units import format_seconds
from llmcli.bench.plot import Chart, Series
from llmcli.bench.sweep import Sweep, SweepOptions, Tried, Verdict, by_value
from llmcli.bench.tables import percent, table

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
    rows = [(one.candidate.label, str(len(one.rounds)), _time(one)) for one in ranked]
    curves = "".join(_curve(flag, by_value(sweep.tried, name)) for flag, name in _AXES.items())
    asked = f"a request of {options.n_prompt} + {options.n_gen} tokens, by the last round each was in:\n"
    return f"{asked}{table(('settings', 'rounds', 'time'), rows)}\n{curves}{_conclusion(sweep, verdict)}\n"


def _time(one: Tried) -> str:
    """The time of the last round that it was in, and what ended it; "" where it was in none."""
    time = format_seconds(one.request_s) if one.rounds else ""
    return ", then ".join(part for part in (time, one.problem) if part)


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
    words = f"{verdict.winner.candidate.label}: {percent(-verdict.gain)} of the time, p {verdict.p_value:.3f}"
    return words if verdict.is_better else f"{words}; the samples do not show that it is faster"


def sweep_chart(tried: Sequence[Tried]) -> Chart:
    """The rounds of the candidates that came farthest."""
    ranked = sorted((one for one in tried if one.rounds), key=lambda one: (-len(one.rounds), one.request_s))
    series = tuple(
        Series(one.candidate.label, tuple(float(i + 1) for i in range(len(one.rounds))), tuple(one.rounds))
        for one in ranked[:_MOST_LINES]
    )
    return Chart("successive halving", "round", "time of the request (s)", series)
