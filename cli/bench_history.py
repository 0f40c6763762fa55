"""`llmcli bench history`: what was measured before, as a table and a plot over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from llmcli.base.errors import UsageError
from llmcli.base.settings import Settings
from llmcli.base.units import format_count
from llmcli.bench.plot import MOST_LINES, Chart, Series, check_name, draw
from llmcli.bench.report import rate_text
from llmcli.bench.result import Row
from llmcli.bench.runs import Run, history_file, read_history
from llmcli.bench.tables import table
from llmcli.cli import output
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.params import Whole
from llmcli.cli.reporter import StderrReporter

_EPILOG = """\b
Examples:
  llmcli bench history
  llmcli bench history --test tg128 --plot tg.svg
  llmcli bench history --json | jq '.runs[-1]'
  llmcli bench compare @-2 @-1

\b
Exit status: 0 done, 2 usage, 6 the disk is full, 1 anything else."""


@click.command("history", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@option("--test", metavar="NAME", help="Only this test, as tg128.")
@option("--model-name", metavar="NAME", help="Only models of this name.")
@option("--last", type=Whole(1), metavar="N", help="Only the last N runs.")
@option("--plot", metavar="FILE", help="Draw the rates over time into an .svg or .png file.")
@option("--json", is_flag=True, help="One JSON object.")
@verbosity_options
@click.pass_obj
def history_command(settings: Settings, /, **values: Any) -> None:
    """Show what `llmcli bench` measured before: one line per test, its run's number first.

    `llmcli bench` keeps every run in the state folder, unless --no-history is given.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    path = None if values["plot"] is None else check_name(values["plot"])
    runs, damaged = read_history(settings)
    if damaged:
        reporter.notify(f"{format_count(damaged, 'line')} of {history_file(settings)} cannot be read and are left out")
    chosen = _chosen(runs, values)
    chart = _chart(chosen) if path and chosen else None
    if chart and len(chart.series) > MOST_LINES:
        hint = "--test, --model-name or --last"
        raise UsageError(f"{len(chart.series)} tests are more than a plot can show ({MOST_LINES})", hint=hint)
    if values["json"]:
        output.write_json({"path": str(history_file(settings)), "runs": [_run_json(run) for run in chosen]})
    elif chosen:
        output.write(_text(chosen))
    else:
        reporter.notify("nothing was measured yet: llmcli bench" if not runs else "no run has such a test")
    if path and chart:
        draw(chart, path)
        reporter.notify(f"wrote {path}")


def _chosen(runs: Sequence[Run], values: Any) -> list[Run]:
    chosen = []
    for run in runs[-values["last"] :] if values["last"] else runs:
        rows = tuple(
            row
            for row in run.rows
            if values["test"] in (None, row.get("test")) and values["model_name"] in (None, row.get("model_name"))
        )
        if rows:
            chosen.append(Run(run.number, run.time, run.label, rows))
    return chosen


def _run_json(run: Run) -> dict[str, Any]:
    return {"number": run.number, "time": run.time, "label": run.label, "results": list(run.rows)}


def _text(runs: Sequence[Run]) -> str:
    rows = [
        (
            f"@{run.number}",
            run.time,
            str(row.get("model_name", "")),
            str(row.get("test", "")),
            rate_text(row),
            str(row["n_threads"] or ""),
            run.label,
            "!" * bool(row.get("flags")),
        )
        for run in runs
        for row in run.rows
    ]
    return table(("run", "time", "model", "test", "t/s", "threads", "label", "warned"), rows, left=4)


def _chart(runs: Sequence[Run]) -> Chart:
    """The rates of each test of each model, run by run."""
    places: dict[str, list[tuple[int, Row]]] = {}
    for place, run in enumerate(runs):
        for row in run.rows:
            places.setdefault(f"{row.get('model_name', '')} {row.get('test', '')}", []).append((place, row))
    series = tuple(
        Series(
            label,
            tuple(float(place) for place, _ in points),
            tuple(row["median_ts"] for _, row in points),
            tuple(row["p25_ts"] for _, row in points),
            tuple(row["p75_ts"] for _, row in points),
        )
        for label, points in places.items()
    )
    names = tuple(f"@{run.number} {run.time[:10]}" for run in runs)
    return Chart("rates over time", "run", "tokens per second", series, x_names=names)
