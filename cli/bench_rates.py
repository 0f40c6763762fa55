"""The work of `llmcli bench` without a sub command: run the trials, write the rows as they come, tell what failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmcli.base.errors import LlmcliError, UsageError, UserInterruptError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.bench.report import Report, make_report
from llmcli.bench.result import Failed, Result, Row, row_of
from llmcli.bench.run import Runner, RunOptions, find_models
from llmcli.bench.runs import load_rows, remember
from llmcli.bench.trials import Trial, trials
from llmcli.cli import output
from llmcli.cli.bench_limits import limits_from
from llmcli.cli.bench_params import grid_from
from llmcli.cli.reporter import StderrReporter
from llmcli.engine import native
from llmcli.engine.interrupt import StopFlag, stop_on_interrupt

_STDERR = 2
_CLEAR_LINE = "\r\x1b[K"


class Status:
    """What is being measured, on one line of a terminal that the next one replaces; nothing elsewhere."""

    def __init__(self, settings: Settings, reporter: StderrReporter) -> None:
        dumb = settings.environment.get("TERM") == "dumb"
        self._shows = output.is_terminal(_STDERR) and not reporter.quiet and not dumb
        self._reporter = reporter

    def tell(self, text: str) -> None:
        """What is about to be done."""
        self._reporter.detail(text)
        if self._shows and not self._reporter.verbose:
            output.stderr_text(_CLEAR_LINE + printable(text))

    def clear(self) -> None:
        """Take the line away, before something else is written."""
        if self._shows:
            output.stderr_text(_CLEAR_LINE)


class RowWriter:
    """Writes rows in one format as they come; the head of a table with the first of them.

    rows    where they are kept, also where they cannot be written
    """

    def __init__(self, report: Report, rows: list[Row]) -> None:
        self._report, self.rows = report, rows

    def write(self, row: Row) -> None:
        """One row more."""
        head = "" if self.rows else self._report.begin()
        self.rows.append(row)
        output.write(head + self._report.row(row))

    def end(self) -> None:
        """What stands behind the rows; nothing where there are none."""
        if self.rows:
            output.write(self._report.end())


class Silent:
    """For --json: keeps the rows, which become one object."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def write(self, row: Row) -> None:
        """One row more."""
        self.rows.append(row)

    def end(self) -> None:
        """Nothing."""


def bench(settings: Settings, values: dict[str, Any]) -> int:
    """Measure, write, keep, compare: the exit code."""
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    limits = limits_from(values)
    if limits and values["baseline"] is None:
        raise UsageError("--fail-if needs something to compare with: --baseline FILE")
    baseline = None if values["baseline"] is None else load_rows(values["baseline"], settings)
    rows: list[Row] = []
    try:
        failures, interrupted = measure_all(settings, values, reporter, rows, _enrich(settings, values))
    finally:  # also where a full disk or a reader that went away ended the writing
        if rows and not values["no_history"]:
            _keep(rows, values["label"], settings, reporter)
    if rows and values["json"]:
        output.write_json({"results": rows, "failures": failures_json(failures), "interrupted": interrupted})
    if baseline and rows and not interrupted:
        from llmcli.cli.bench_compare import show_comparison

        for_people = _is_read_by_people(values)
        if for_people:
            output.write("\n")
        show_comparison(baseline, rows, limits, values, reporter, to_stdout=for_people)
    return conclude(failures, interrupted=interrupted, has_rows=bool(rows))


def _enrich(settings: Settings, values: Mapping[str, Any]) -> Callable[[Result, Row], Row] | None:
    if not values["roofline"]:
        return None
    from llmcli.bench.roofline import Roofline

    return Roofline(settings).enrich


def _is_read_by_people(values: Mapping[str, Any]) -> bool:
    """Whether stdout has a table; behind rows of another format a comparison goes to stderr."""
    return values["output_format"] == "md" and not values["json"]


def _keep(rows: Sequence[Row], label: str, settings: Settings, reporter: StderrReporter) -> None:
    try:
        remember(rows, label, settings)
    except LlmcliError as error:
        reporter.notify(f"{error.message}; --no-history does without")


def measure_all(
    settings: Settings,
    values: Mapping[str, Any],
    reporter: StderrReporter,
    rows: list[Row],
    enrich: Callable[[Result, Row], Row] | None = None,
) -> tuple[list[Failed], bool]:
    """Run what the options ask for, write it and put it into `rows`: what failed, and whether Ctrl-C ended it."""
    wanted = trials(grid_from(values))
    if not wanted:
        raise UsageError("nothing to measure: every size is 0", hint="llmcli bench -p 512 -n 128")
    writer: RowWriter | Silent = Silent(rows)
    if not values["json"]:
        columns = output.terminal_columns()
        report = make_report(values["output_format"], wanted, roofline=bool(enrich), columns=columns)
        writer = RowWriter(report, rows)
    failures: list[Failed] = []
    stop = StopFlag()
    status = Status(settings, reporter)
    found = find_models((trial.model for trial in wanted), settings, reporter)
    options = RunOptions(values["repetitions"], warmup=not values["no_warmup"], delay_s=values["delay"])
    with stop_on_interrupt(stop), Runner(settings, found, options, stop, status.tell) as runner:
        for outcome in runner.run(wanted):
            status.clear()
            if isinstance(outcome, Failed):
                failures.append(outcome)
                continue
            row = row_of(outcome)
            writer.write(enrich(outcome, row) if enrich else row)
    status.clear()
    writer.end()
    if rows:  # else the first of them is the one line of the command
        _tell_failures(failures, reporter)
    return failures, stop.is_set()


def _tell_failures(failures: Sequence[Failed], reporter: StderrReporter) -> None:
    for failed in failures:
        hint = f" ({failed.error.hint})" if failed.error.hint and "\n" not in failed.error.hint else ""
        reporter.notify(f"{_title(failed.trial)} was not measured: {failed.error.message}{hint}")


def _title(trial: Trial) -> str:
    return trial.sizes.name + (f" with {trial.model}" if trial.model else "")


def failures_json(failures: Sequence[Failed]) -> list[dict[str, Any]]:
    """What failed, for --json."""
    return [
        {"test": failed.trial.sizes.name, "model": failed.trial.model, "error": failed.error.message}
        for failed in failures
    ]


def conclude(failures: Sequence[Failed], *, interrupted: bool, has_rows: bool) -> int:
    """The exit code: that of what failed, though the rest was measured; 130 after Ctrl-C. A failure that left nothing
    at all to show is raised.
    """
    if interrupted:
        raise UserInterruptError
    if failures and not has_rows:
        raise failures[0].error
    return failures[0].error.exit_code if failures else 0
