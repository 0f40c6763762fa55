"""`llmcli imatrix`: what the weights of a model are multiplied with, measured on a text; adding up and showing that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from llmcli.base.errors import UsageError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_count, format_seconds
from llmcli.cli import output
from llmcli.cli.complete import complete_model
from llmcli.cli.measure_options import measure_options, measure_request, most_windows, one_model
from llmcli.cli.options import model_option, option, verbosity_options
from llmcli.cli.params import Whole
from llmcli.cli.reporter import StderrReporter
from llmcli.cli.text_source import text_from
from llmcli.engine import native

if TYPE_CHECKING:
    from llmcli.quant.imatrix_compute import ImatrixRequest, ImatrixResult

_EPILOG = """\b
Examples:
  llmcli imatrix model-F16.gguf
  llmcli imatrix model-F16.gguf -f corpus.txt -o model.imatrix.gguf
  llmcli imatrix --in-file a.gguf --in-file b.gguf -o both.gguf
  llmcli imatrix --show-statistics model.imatrix.gguf

\b
Exit status: 0 done, 2 usage, 3 no such model or no such matrix,
6 not enough memory or disk, 130 interrupted (what was computed is
kept), 1 anything else."""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=complete_model)
@model_option
@option("-f", "--file", metavar="FILE", help="The text; '-' is stdin. [default: one that comes with llmcli]")
@option("-o", "--output", metavar="FILE", help="Where to write it. [default: MODEL.imatrix.gguf in this folder]")
@option(
    "--in-file",
    multiple=True,
    metavar="FILE",
    help="A matrix of the same model to add in; may be repeated. Without MODEL, only these are added up.",
)
@option(
    "--chunk", type=Whole(0), default=0, show_default=True, metavar="N", help="Windows to leave out at the beginning."
)
@option("--process-output", is_flag=True, help="Measure output.weight too.")
@option("--parse-special", is_flag=True, help="Texts of control tokens in the text become those tokens.")
@option("--show-statistics", is_flag=True, help="Show what a matrix says (MODEL is the file), and compute nothing.")
@option("--force", is_flag=True, help="Replace an output that is there already.")
@option("--no-resume", is_flag=True, help="Start over, whatever an interrupted run has left.")
@option("--json", is_flag=True, help="One JSON object on stdout.")
@measure_options
@verbosity_options
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> None:
    """Measure the importance matrix of MODEL: which columns of its weights matter, on a text.

    `llmcli quantize --imatrix` makes better small models with it. The text is read in windows; an interrupted run goes
    on where it was when it is started again. The file is the one that llama.cpp's tools write and read.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    if (values["output"] or "").endswith(os.sep):
        raise UsageError(f"-o {printable(values['output'])} names a folder", hint="name the file in it")
    if values["show_statistics"]:
        _show_statistics(_statistics_file(values), values)
        return
    from llmcli.quant.imatrix_compute import compute_imatrix, merge_files

    if _only_merges(values):
        if not values["output"]:
            raise UsageError("there is no name for the sum", hint="-o FILE")
        files = [Path(name) for name in values["in_file"]]
        result = merge_files(files, Path(values["output"]), force=values["force"])
    else:
        result = compute_imatrix(_request(values, settings, reporter), settings, reporter)
    _report(result, values, reporter)


def _only_merges(values: Mapping[str, Any]) -> bool:
    """Whether there is nothing to compute: files to add up, and no model or text on the command line."""
    source = click.get_current_context().get_parameter_source
    named = values["name"] is not None or source("model") is ParameterSource.COMMANDLINE
    return bool(values["in_file"]) and not named and source("file") is not ParameterSource.COMMANDLINE


def _request(values: Mapping[str, Any], settings: Settings, reporter: StderrReporter) -> ImatrixRequest:
    from llmcli.engine.engine import find_model
    from llmcli.quant.corpus import CALIBRATION
    from llmcli.quant.imatrix_compute import ImatrixRequest

    text = text_from(values["file"], CALIBRATION, reporter.notify)
    reference = one_model(values)
    target = values["output"]
    if target is None:
        resolved, _ = find_model(reference, settings, reporter)
        target = f"{resolved.name}.imatrix.gguf"
    return ImatrixRequest(
        reference=reference,
        text=text,
        output=Path(target),
        plan=measure_request(values),
        n_chunks=most_windows(values),
        skip_chunks=values["chunk"],
        process_output=values["process_output"],
        parse_special=values["parse_special"],
        in_files=tuple(Path(name) for name in values["in_file"]),
        text_file=Path(values["file"]) if values["file"] not in (None, "-") else None,
        force=values["force"],
        goes_on=not values["no_resume"],
    )


def _report(result: ImatrixResult, values: Mapping[str, Any], reporter: StderrReporter) -> None:
    matrix = result.imatrix
    if unused := matrix.n_unused_experts:
        reporter.notify(
            f"warning: {unused:,} of the experts' weights got no token of the text: they will be quantized as if all "
            "columns mattered alike; a longer text reaches more of them"
        )
    if values["json"]:
        output.write_json(_as_json(result))
        return
    rate = f", {result.tok_s:.0f} tok/s in {format_seconds(result.compute_s)}" if result.tok_s else ""
    output.write(
        f"{printable(str(result.output))}: {format_count(len(matrix.entries), 'weight')}, "
        f"{format_count(matrix.n_chunks, 'window')} of {format_count(matrix.chunk_tokens, 'token')}{rate}\n"
    )


def _as_json(result: ImatrixResult) -> dict[str, Any]:
    matrix, measured = result.imatrix, result.model
    model = None
    if measured:
        resolved, inspected = measured.resolved, measured.inspected
        model = {"name": resolved.name, "path": str(resolved.path), "content_id": inspected.content_id}
    return {
        "output": str(result.output),
        "model": model,
        "datasets": list(matrix.datasets),
        "weights": len(matrix.entries),
        "windows": matrix.n_chunks,
        "window_tokens": matrix.chunk_tokens,
        "unused_experts": matrix.n_unused_experts,
        "resumed_windows": result.n_resumed,
        "compute_s": result.compute_s,
        "prefill_tok_s": result.tok_s,
    }


def _statistics_file(values: Mapping[str, Any]) -> Path:
    named = [*([values["name"]] if values["name"] is not None else []), *values["in_file"]]
    if len(named) != 1:
        raise UsageError("--show-statistics is about one matrix", hint="llmcli imatrix --show-statistics FILE")
    if not named[0]:
        raise UsageError("the name of the file is empty")
    return Path(named[0])


def _show_statistics(path: Path, values: Mapping[str, Any]) -> None:
    from llmcli.cli.imatrix_view import statistics_lines
    from llmcli.quant.imatrix_file import read_imatrix
    from llmcli.quant.imatrix_stats import layer_statistics, tensor_statistics

    matrix = read_imatrix(path)
    tensors = tensor_statistics(matrix)
    layers = layer_statistics(tensors)
    if values["json"]:
        output.write_json(
            {
                "file": str(path),
                "datasets": list(matrix.datasets),
                "windows": matrix.n_chunks,
                "window_tokens": matrix.chunk_tokens,
                "weights": [one.as_json() for one in tensors],
                "layers": [one.as_json() for one in layers],
            }
        )
    else:
        output.write("".join(line + "\n" for line in statistics_lines(matrix, tensors, layers)))
