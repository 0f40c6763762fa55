"""`llmcli bench latency`: what a user waits for, cold, with the prefix in memory, and restored from the store."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from llmcli.base.errors import LlmcliError, UserInterruptError
from llmcli.base.files import make_private_dir
from llmcli.base.settings import Settings
from llmcli.bench.environment import describe
from llmcli.bench.latency import Latency, LatencyOptions
from llmcli.bench.plot import check_name, draw
from llmcli.bench.process import run_process
from llmcli.cli import output
from llmcli.cli.bench_latency_view import Found
from llmcli.cli.bench_params import Numbers, list_option
from llmcli.cli.bench_rates import Status
from llmcli.cli.engine_options import engine_options, request_from, rope_from
from llmcli.cli.inputs import read_text_file
from llmcli.cli.options import model_option, option, verbosity_options
from llmcli.cli.params import Whole
from llmcli.cli.reporter import StderrReporter
from llmcli.engine import native
from llmcli.engine.engine import open_engine
from llmcli.engine.interrupt import StopFlag, stop_on_interrupt
from llmcli.engine.plan import Request

DEFAULT_LENGTHS = (64, 128, 256, 512, 1024, 2048)
_EPILOG = """\b
Examples:
  llmcli bench latency
  llmcli bench latency -p 64-4096*2 -r 5 --plot ttft.svg
  llmcli bench latency -f report.txt -p 256-2048+256 --drop-page-cache
  llmcli bench latency --json | jq '.break_even_tokens'

\b
Exit status: 0 done, 2 usage, 3 no such model, 4 a prefix does not fit,
6 not enough memory or disk, 130 interrupted (what was measured is written),
1 anything else."""


@click.command("latency", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@model_option
@list_option(
    "-p", "--n-prompt", kind=Numbers(1), metavar="LIST", help="Lengths of the prefix, in tokens. [default: 64-2048*2]"
)
@option("-f", "--file", metavar="FILE", help="Cut the prefixes from this text. [default: words]")
@option(
    "--question-tokens", type=Whole(1), default=32, show_default=True, metavar="N", help="Tokens behind the prefix."
)
@option("--answer-tokens", type=Whole(2), default=32, show_default=True, metavar="N", help="Tokens to generate.")
@option("-r", "--repetitions", type=Whole(1), default=3, show_default=True, metavar="N", help="Requests of each kind.")
@option("--drop-page-cache", is_flag=True, help="Read stored prefixes from the disk, as after a reboot (Linux).")
@option("--no-processes", is_flag=True, help="Leave out the part that starts processes.")
@option("--plot", metavar="FILE", help="Draw TTFT against the prefix length into an .svg or .png file.")
@option("--json", is_flag=True, help="One JSON object.")
@engine_options
@verbosity_options
@click.pass_obj
def latency_command(settings: Settings, /, **values: Any) -> None:
    """Measure the time to the first token and between tokens, end to end, for prefixes of growing length.

    cold: nothing is there. memory: the open model still holds the prefix. disk: the prefix store has it. Behind the
    prefix stands a question that no request before had. A folder of its own serves as the store and is removed.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    path = None if values["plot"] is None else check_name(values["plot"])
    found = _measure(settings, values, reporter)
    if values["json"] and (found.points or not found.error):
        output.write_json(found.as_json())
    elif found.points:
        output.write(found.as_text())
    if path and found.points:
        draw(found.chart(), path)
        reporter.notify(f"wrote {path}")
    if found.interrupted:
        raise UserInterruptError
    if found.error:
        raise found.error


def _measure(settings: Settings, values: Mapping[str, Any], reporter: StderrReporter) -> Found:
    native.LOG.listen(reporter.native_log)
    options = LatencyOptions(
        tuple(dict.fromkeys(values["n_prompt"])) or DEFAULT_LENGTHS,  # one twice would find what the first kept
        values["question_tokens"],
        values["answer_tokens"],
        values["repetitions"],
        drop_page_cache=values["drop_page_cache"],
    )
    text = None if values["file"] is None else read_text_file(values["file"], reporter.notify)
    request = request_from(values)
    if request.n_ctx is None:
        request = replace(request, n_ctx=options.needed_tokens)
    status, stop = Status(settings, reporter), StopFlag()
    with _folder(settings) as folder:
        with open_engine(
            values["model"], request, settings, reporter, rope=rope_from(values), loras=values["lora"], stop=stop
        ) as engine:
            found = Found(engine.resolved.name, engine.load_s, describe(settings), options)
            latency = Latency(engine, options, settings, Path(folder) / "store", text, reporter.notify)
            prompts = [latency.text(max(options.lengths), number) for number in (1, 2)]
            path = str(engine.resolved.path)
            with stop_on_interrupt(stop):
                try:
                    for point in latency.run(status.tell):
                        found.points.append(point)
                except UserInterruptError:
                    found.interrupted = True
                except LlmcliError as error:
                    found.error = error
        # The model is closed by now: two of them at once would share cores and memory.
        if not (found.interrupted or found.error or values["no_processes"]):
            _measure_processes(found, path, prompts, request, Path(folder) / "processes", values, status)
    status.clear()
    return found


def _folder(settings: Settings) -> tempfile.TemporaryDirectory[str]:
    """A folder on the disk where the store lives."""
    return tempfile.TemporaryDirectory(prefix="bench-", dir=make_private_dir(settings.cache_dir))


def _measure_processes(
    found: Found,
    path: str,
    prompts: Sequence[str],
    request: Request,
    folder: Path,
    values: Mapping[str, Any],
    status: Status,
) -> None:
    common = [*ourselves(), "run", "-m", path, *_flags(request, values)]
    cold = [*common, "--cache", "off"]
    disk = [*common, "--cache-dir", str(folder), "--cache"]
    status.tell("processes: keeping the prefix")
    try:
        run_process([*disk, "auto"], prompts[0])
        for number in range(1, found.options.repetitions + 1):
            for name, command in (("cold", cold), ("disk", [*disk, "readonly"])):
                status.tell(f"processes: {name}, {number} of {found.options.repetitions}")
                found.processes.setdefault(name, []).append(run_process(command, prompts[1]))
    except (UserInterruptError, KeyboardInterrupt):
        found.interrupted = True
    except LlmcliError as error:
        found.error = error


def ourselves() -> list[str]:
    """The llmcli that runs here as a command; `-c` would put the working folder first, where a json.py may lie."""
    code = f"import sys\nsys.path[:] = {sys.path!r}\nfrom llmcli.cli.main import run\nrun()"
    return [sys.executable, "-c", code]


def _flags(request: Request, values: Mapping[str, Any]) -> list[str]:
    """The settings of the open engine, for a process; without a template, and never ending early."""
    given = {
        "-c": request.n_ctx,
        "-t": request.n_threads,
        "-tb": request.n_threads_batch,
        "-b": request.n_batch,
        "-ub": request.n_ubatch,
        "-ngl": request.n_gpu_layers,
        "-fa": request.flash_attn,
        "-ctk": request.type_k,
        "-ctv": request.type_v,
        "-n": values["answer_tokens"],
    }
    flags = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    switches = [flag for flag, name in (("--no-mmap", "no_mmap"), ("--mlock", "mlock")) if values[name]]
    return [*flags, *switches, "--raw", "--temp", "0", "--ignore-eos", "-q"]
