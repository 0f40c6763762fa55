"""`llmcli quality`: how well models predict a text, and how far they are from the model they were made of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmcli.base.errors import LimitMissedError, LlmcliError, UsageError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cli import output
from llmcli.cli.complete import complete_model
from llmcli.cli.measure_options import measure_options, measure_request, most_windows
from llmcli.cli.options import model_option, option, verbosity_options
from llmcli.cli.params import Size
from llmcli.cli.reporter import StderrReporter
from llmcli.cli.text_source import text_from
from llmcli.engine import native

if TYPE_CHECKING:
    from llmcli.quant.quality_compare import Comparison
    from llmcli.quant.quality_limits import Limit

_EPILOG = """\b
Examples:
  llmcli quality model-Q4_K_M.gguf
  llmcli quality model-Q4_K_M.gguf --base model-F16.gguf
  llmcli quality *-Q*.gguf --base model-F16.gguf --plot quality.svg
  llmcli quality m-Q4_0.gguf --base m-F16.gguf --fail-if 'kld>0.1'

\b
Exit status: 0 done, 2 usage, 3 no such model, 5 --fail-if,
6 not enough memory or disk, 130 interrupted, 1 anything else."""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", metavar="[MODEL]...", nargs=-1, shell_complete=complete_model)
@model_option
@option("--base", metavar="MODEL", help="The model to compare with, best the one that MODEL was made of.")
@option("-f", "--file", metavar="FILE", help="The text; '-' is stdin. [default: one that comes with llmcli]")
@option(
    "--logits-memory",
    type=Size(),
    default="512M",
    show_default=True,
    metavar="SIZE",
    help="Most memory for what the base said; nothing is written to disk. With more, models are opened less often.",
)
@option("--no-rates", is_flag=True, help="Leave out how fast each model reads and writes.")
@option("--plot", metavar="FILE", help="A picture of size against loss, .png or .svg.")
@option("--force", is_flag=True, help="Replace a picture that is there already.")
@option(
    "--fail-if",
    multiple=True,
    metavar="LIMIT",
    help="Exit 5 where it holds, such as 'kld>0.1' or 'same_top<95'; may be repeated.",
)
@option("--json", is_flag=True, help="One JSON object on stdout.")
@measure_options
@verbosity_options
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> None:
    """Measure how well each MODEL predicts a text, and with --base how far it is from that model.

    Perplexity, KL divergence and the rest are computed as llama-perplexity does: the text in windows, of which the
    second half is scored.
    """
    from llmcli.quant.corpus import EVALUATION
    from llmcli.quant.quality_compare import Options, compare
    from llmcli.quant.quality_limits import parse_limit

    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    limits = [parse_limit(text) for text in values["fail_if"]]
    _check(values, limits)
    found = compare(
        values["base"],
        values["names"] or (values["model"],),
        text_from(values["file"], EVALUATION, reporter.notify),
        plan=measure_request(values),
        settings=settings,
        reporter=reporter,
        options=Options(
            n_windows=most_windows(values),
            logits_bytes=values["logits_memory"],
            with_rates=not values["no_rates"],
        ),
    )
    _print(found, values)
    if values["plot"]:
        _plot(found, Path(values["plot"]))
        reporter.notify(f"wrote {values['plot']}")
    _hold(found, limits)


def _check(values: Mapping[str, Any], limits: Sequence[Limit]) -> None:
    """Refuse before minutes are spent what cannot be answered or written."""
    from llmcli.quant.quality_plot import check_plot

    for limit in limits:
        if limit.needs_base and not values["base"]:
            raise UsageError(f"--fail-if {limit.metric} is about two models", hint="name the other with --base")
    if values["plot"]:
        path = Path(values["plot"])
        check_plot(path)
        if _is_there(path) and not values["force"]:
            raise LlmcliError(f"{printable(str(path))} is there already", hint="--force replaces it")
        if not path.absolute().parent.is_dir():
            raise LlmcliError(f"the folder {printable(str(path.absolute().parent))} does not exist")


def _is_there(path: Path) -> bool:
    """Whether the name is taken. Raises LlmcliError for one that no file can have, such as a long one."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unwritable(path, error) from None
    return True


def _print(found: Comparison, values: Mapping[str, Any]) -> None:
    from llmcli.cli.quality_view import table_lines

    if values["json"]:
        output.write_json(found.as_json())
    else:
        lines = table_lines(found, shutil.get_terminal_size().columns)
        output.write("".join(line + "\n" for line in lines))


def _plot(found: Comparison, path: Path) -> None:
    from llmcli.quant.quality_plot import write_plot

    try:
        write_plot(found, path)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> LlmcliError:
    error.filename = path  # not the temporary one
    return output.os_failure(error, "cannot write ")


def _hold(found: Comparison, limits: Sequence[Limit]) -> None:
    missed = [
        f"{printable(row.name)}: {why}"
        for row in found.rows
        for limit in limits
        if (why := limit.missed_by(row.figures()))
    ]
    if missed:
        raise LimitMissedError("; ".join(missed))
