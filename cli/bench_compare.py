"""`llmcli bench compare`: two runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from llmcli.base.errors import LimitMissedError
from llmcli.base.settings import Settings
from llmcli.bench.compare import LEAST_SAMPLES, Change, Comparison, compare, require_alike
from llmcli.bench.limits import Limit, missed, require_figures
from llmcli.bench.result import Row
from llmcli.bench.runs import load_rows
from llmcli.bench.tables import percent, table
from llmcli.cli import output
from llmcli.cli.bench_limits import across_from, limit_options, limits_from
from llmcli.cli.complete import complete_file
from llmcli.cli.options import option, require_file, verbosity_options
from llmcli.cli.reporter import StderrReporter

_EPILOG = """\b
Examples:
  llmcli bench compare before.json after.json
  llmcli bench compare @-2 @-1
  llmcli bench -o json | llmcli bench compare before.json -
  llmcli bench compare q4.json q8.json --across model
  llmcli bench compare old.json new.json --fail-if 'load>20%'

\b
Exit status: 0 done, 2 usage, or two runs that were not made alike,
5 a limit of --fail-if was missed, 1 anything else."""


@click.command("compare", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", metavar="A", shell_complete=complete_file, callback=require_file)
@click.argument("after", metavar="B", shell_complete=complete_file, callback=require_file)
@limit_options
@option("--json", is_flag=True, help="One JSON object.")
@verbosity_options
@click.pass_obj
def compare_command(settings: Settings, /, **values: Any) -> None:
    """Compare the medians of run B with those of run A, and say whether the samples show a difference.

    A and B are files that `llmcli bench -o json`, jsonl or csv made (llama-bench's too; - is stdin), or runs of the
    history: @7, or @-1 for the last one. Runs on unlike machines, builds, models or settings are refused unless
    --across allows it.
    """
    limits = limits_from(values)
    before, after = load_rows(values["before"], settings), load_rows(values["after"], settings)
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    show_comparison(before, after, limits, values, reporter, to_stdout=True)


def show_comparison(
    before: Sequence[Row],
    after: Sequence[Row],
    limits: Sequence[Limit],
    values: Mapping[str, Any],
    reporter: StderrReporter,
    *,
    to_stdout: bool,
) -> None:
    """Compare and write. Raises LimitMissedError where a limit is missed, UsageError where the two are unlike or a
    limit is about nothing.
    """
    across = across_from(values)
    require_alike(before, after, across)
    found = compare(before, after, across=across)
    over = missed(limits, found.changes)
    if to_stdout and values["json"]:
        output.write_json(comparison_json(found, over))
    else:
        (output.write if to_stdout else output.stderr_text)(comparison_text(found))
    for title in (*found.only_before, *found.only_after):
        reporter.notify(f"{title} is in one of the two only")
    if over:
        limit, change = over[0]
        more = f", and {len(over) - 1} more" if len(over) > 1 else ""
        raise LimitMissedError(f"{change.test} is past {limit.text}: {percent(limit.figure(change))}{more}")
    require_figures(limits, found.changes)


def comparison_json(found: Comparison, over: Sequence[tuple[Limit, Change]]) -> dict[str, Any]:
    """The comparison as one object."""
    return {
        "changes": [change.as_json() for change in found.changes],
        "only_before": list(found.only_before),
        "only_after": list(found.only_after),
        "missed": [{"limit": limit.text, "test": change.test} for limit, change in over],
    }


def comparison_text(found: Comparison) -> str:
    """The comparison as a table."""
    if not found.changes:
        return "no test is in both\n"
    rows = [
        (
            change.test,
            f"{change.before_ts:.2f}",
            f"{change.after_ts:.2f}",
            percent(change.change),
            "" if change.low is None else f"{percent(change.low)} to {percent(change.high)}",
            "" if change.p_value is None else f"{change.p_value:.3f}",
            f"{change.n_before}/{change.n_after}",
            "too few samples" if change.p_value is None else change.verdict,
        )
        for change in found.changes
    ]
    head = ("test", "A t/s", "B t/s", "change", "95% interval", "p", "n", "verdict")
    few = any(change.p_value is None for change in found.changes)
    note = f"a verdict takes {LEAST_SAMPLES} samples on both sides: llmcli bench -r {LEAST_SAMPLES}\n" if few else ""
    return table(head, rows) + note
