"""`llmcli doctor`: one page about this machine, the build and the folders, each line with a verdict."""

from __future__ import annotations

import shutil
import sys

import click
from click.core import ParameterSource

from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cli import output
from llmcli.cli.options import option
from llmcli.cli.params import Whole
from llmcli.engine.diagnose import Check, Terminal, gather, judge, worst

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}
_EPILOG = """\b
Examples:
  llmcli doctor
  llmcli doctor --json
  llmcli doctor --estimate some-model.gguf -c 32768
  llmcli doctor --fit

\b
Exit status: 0 nothing fails (warnings may be there), 1 something does;
with --estimate 0 the model fits, 6 it does not."""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@option("--estimate", metavar="MODEL", help="What this model takes, and how fast it may be, without loading it.")
@option("--fit", is_flag=True, help="The same for every model on this machine, one line each.")
@option("-c", "--ctx-size", type=Whole(0), metavar="N", help="The context for --estimate and --fit. [default: 4096]")
@option("--quick", is_flag=True, help="Try neither the disks nor the hub.")
@option("--json", is_flag=True, help="One JSON object.")
@click.pass_obj
def command(
    settings: Settings, /, *, estimate: str | None, fit: bool, ctx_size: int | None, quick: bool, json: bool
) -> int:
    """Check this machine, the build of llama.cpp and the folders, and say what to do.

    The library is first loaded in a child process, so that a build for another CPU is reported and kills nothing.
    Nothing is fetched; the hub is asked for a connection, and the disks are tried with a file of 32 MiB.
    """
    _require_sense(estimate, fit=fit)
    if estimate is not None or fit:
        from llmcli.cli.doctor_estimate import show_estimate, show_fit

        if fit:
            return show_fit(ctx_size, settings, json=json)
        return show_estimate(estimate or "", ctx_size, settings, json=json)
    from llmcli.cli.doctor_settings import judge_settings
    from llmcli.cli.slow_types import check_types
    from llmcli.engine.survey import judge_survey, survey

    terminal = _terminal(settings)
    facts = gather(settings, terminal)
    around = survey(settings, facts.gpus, quick=quick)
    slow = check_types(facts.default_model.path, settings)
    checks = (*judge(facts), *slow, *judge_survey(around), *judge_settings(settings))
    if json:
        lines = [{"name": c.name, "status": c.status, "message": c.message, "advice": c.advice} for c in checks]
        output.write_json({"status": worst(checks), "checks": lines, **facts.as_json(), **around.as_json()})
    else:
        _show(checks, color=terminal.color)
    return 1 if worst(checks) == "fail" else 0


def _require_sense(estimate: str | None, *, fit: bool) -> None:
    """Raise click.UsageError for options on the command line that would have no effect."""
    source = click.get_current_context().get_parameter_source
    if estimate is not None and fit:
        raise click.UsageError("--estimate is for one model, --fit for all: give one of them")
    if estimate is None and not fit and source("ctx_size") is ParameterSource.COMMANDLINE:
        raise click.UsageError("-c is for --estimate and --fit")


def _terminal(settings: Settings) -> Terminal:
    is_terminal = output.is_terminal()
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    return Terminal(
        is_terminal=is_terminal,
        encoding=getattr(sys.stdout, "encoding", None) or "utf-8",
        columns=shutil.get_terminal_size().columns,
        color=is_terminal and not settings.no_color,
        locale=next((value for name in names if (value := settings.environment.get(name))), None),
    )


def _show(checks: tuple[Check, ...], *, color: bool) -> None:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        status = check.status.ljust(4)
        mark = click.style(status, _COLORS[check.status]) if color else status
        lines.append(f"{mark}  {check.name:<{width}}  {printable(check.message)}")
        if check.advice:
            lines.append(f"{'':<{width + 8}}do: {printable(check.advice)}")
    text = "\n".join(lines) + "\n"
    if color:
        click.echo(text, nl=False)  # output.write shows escapes instead of sending them; what is not ours is printable
    else:
        output.write(text)
