"""`llmcli bench sweep`: the settings that answer soonest, found under a time budget and kept in config.toml."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from llmcli.base.config_edit import set_table
from llmcli.base.errors import LlmcliError, UserInterruptError
from llmcli.base.files import make_private_dir
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_seconds
from llmcli.bench.environment import machine_id
from llmcli.bench.plot import check_name, draw
from llmcli.bench.run import Runner, find_models
from llmcli.bench.sweep import Sweep, SweepOptions, Verdict, candidates, run_options
from llmcli.cli import output
from llmcli.cli.bench_latency import ourselves
from llmcli.cli.bench_params import FLASH, KINDS_OF_KV, Numbers, Texts, list_option
from llmcli.cli.bench_rates import Status
from llmcli.cli.bench_sweep_view import sweep_chart, sweep_json, sweep_text
from llmcli.cli.options import model_option, option, verbosity_options
from llmcli.cli.params import Duration, Whole
from llmcli.cli.reporter import StderrReporter
from llmcli.engine import native
from llmcli.engine.interrupt import StopFlag, stop_on_interrupt
from llmcli.engine.tuning import SECTION, table_name
from llmcli.hardware.cores import read_cores

_EPILOG = """\b
Examples:
  llmcli bench sweep
  llmcli bench sweep -m some-model.gguf --budget 5m --save
  llmcli bench sweep -t 1-8 -ub 128,256,512 -fa on -ctk f16 --plot sweep.svg
  llmcli bench sweep --types Q4_0,IQ4_NL

\b
Exit status: 0 done, 2 usage, 3 no such model, 6 not enough memory or disk,
130 interrupted (what was measured is written, nothing is saved),
1 anything else."""


@click.command("sweep", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@model_option
@list_option("-t", "--threads", kind=Numbers(1), metavar="LIST", help="Threads. [default: 1 to the usable cores]")
@list_option("-b", "--batch-size", kind=Numbers(1), metavar="LIST", help="Logical batches. [default: 2048]")
@list_option("-ub", "--ubatch-size", kind=Numbers(1), metavar="LIST", help="Physical batches. [default: 64-1024*2]")
@list_option("-fa", "--flash-attn", kind=FLASH, metavar="LIST", help="Flash attention. [default: on,off]")
@list_option("-ctk", "--cache-type-k", kind=KINDS_OF_KV, metavar="LIST", help="KV types, K and V alike. [default: f16]")
@list_option("--types", kind=Texts(), metavar="LIST", help="Also quantize the model to these types, and try them.")
@option(
    "--budget", type=Duration(), default=120.0, metavar="DURATION", help="Time for all rounds, as 5m. [default: 2m]"
)
@option(
    "--prompt-tokens", type=Whole(0), default=512, show_default=True, metavar="N", help="The prompt to be fast for."
)
@option(
    "--answer-tokens", type=Whole(0), default=128, show_default=True, metavar="N", help="The answer to be fast for."
)
@option("--save", is_flag=True, help="Write the winner into config.toml for this model, if the samples show it.")
@option("--plot", metavar="FILE", help="Draw the halving into an .svg or .png file.")
@option("--json", is_flag=True, help="One JSON object.")
@verbosity_options
@click.pass_obj
def sweep_command(settings: Settings, /, **values: Any) -> None:
    """Find the threads, batches, KV type and flash attention that answer soonest with this model on this machine.

    All combinations are measured shortly, the better half goes on and is measured twice as long, and so on. The last is
    compared with the settings as they are. --save keeps it: `llmcli run` and `llmcli chat` use it where nothing else is
    asked for.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    plot = None if values["plot"] is None else check_name(values["plot"])
    options = SweepOptions(values["budget"], values["prompt_tokens"], values["answer_tokens"])
    if not options.n_prompt and not options.n_gen:
        raise click.UsageError("nothing to be fast for: --prompt-tokens and --answer-tokens are both 0")
    with _quantized(settings, values, reporter) as models:
        sweep, verdict, found = _run(settings, values, options, models, reporter)
    saved, unsaved = None, None
    if verdict and values["save"]:
        try:
            saved = _save(verdict, found, settings, reporter)
        except (LlmcliError, OSError) as error:  # told behind what was measured
            unsaved = error
    if any(one.rounds for one in sweep.tried):
        if values["json"]:
            output.write_json(sweep_json(sweep, verdict, saved))
        else:
            output.write(sweep_text(sweep, verdict, options))
        if plot:
            draw(sweep_chart(sweep.tried), plot)
            reporter.notify(f"wrote {plot}")
    if verdict is None:
        raise UserInterruptError
    if unsaved:
        raise unsaved


def _run(
    settings: Settings,
    values: Mapping[str, Any],
    options: SweepOptions,
    models: Sequence[tuple[str | None, str | None]],
    reporter: StderrReporter,
) -> tuple[Sweep, Verdict | None, dict[str, Any]]:
    """The sweep, its verdict (None after Ctrl-C), and what was swept where."""
    reference = values["model"]
    found = find_models([reference, *(path for path, _ in models if path)], settings, reporter)
    if isinstance(error := found[reference], LlmcliError):
        raise error
    cores = read_cores()
    wanted = candidates(
        _typed(values, "threads") or tuple(range(1, cores.usable + 1)),
        _typed(values, "batch_size") or (None,),
        _typed(values, "ubatch_size") or (64, 128, 256, 512, 1024),
        _typed(values, "flash_attn") or ("on", "off"),
        [(kind, kind) for kind in _typed(values, "cache_type_k") or ("f16",)],
        models,
    )
    status, stop = Status(settings, reporter), StopFlag()
    with stop_on_interrupt(stop), Runner(settings, found, run_options(), stop) as runner:
        sweep = Sweep(runner, reference, options, status.tell)
        verdict = None
        try:
            verdict = sweep.run(wanted)
        except UserInterruptError:
            status.clear()
            reporter.notify(f"{sum(bool(one.rounds) for one in sweep.tried)} of {len(sweep.tried)} were measured")
        finally:
            status.clear()
        environment = runner.environment
    if sweep.was_cut:
        reporter.notify(f"the time of {format_seconds(options.budget_s)} was up before the end: --budget takes more")
    resolved, inspected = found[reference]  # type: ignore[misc]  # an error was raised above
    return sweep, verdict, {"name": resolved.name, "id": inspected.content_id, "machine": machine_id(environment)}


def _typed(values: Mapping[str, Any], name: str) -> Any:
    """A list from the command line: what environment and config have for a run is no wish to try nothing else."""
    source = click.get_current_context().get_parameter_source(name)
    return values[name] if source is ParameterSource.COMMANDLINE else ()


@contextlib.contextmanager
def _quantized(
    settings: Settings, values: Mapping[str, Any], reporter: StderrReporter
) -> Iterator[list[tuple[str | None, str | None]]]:
    """The model itself and, made on the fly by `llmcli quantize`, the same in other types; removed afterwards."""
    kinds = [word.strip() for text in values["types"] for word in text.split(",") if word.strip()]
    if not kinds:  # a sweep of settings writes nothing
        yield [(None, None)]
        return
    with tempfile.TemporaryDirectory(prefix="sweep-", dir=make_private_dir(settings.cache_dir)) as folder:
        source = _path_of(values["model"], settings, reporter)
        paths = {kind: Path(folder) / f"{number}.gguf" for number, kind in enumerate(kinds)}
        made = [_quantize(source, path, kind, reporter) for kind, path in paths.items()]
        yield [(None, None), *(one for one in made if one)]


def _quantize(source: str, path: Path, kind: str, reporter: StderrReporter) -> tuple[str, str] | None:
    """Make the file: its path and its name in the table; None, told, where that fails."""
    reporter.notify(f"quantizing to {kind}")
    command = [*ourselves(), "quantize", "--allow-requantize", "--", source, str(path), kind]
    done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        reporter.notify(f"{printable(kind)} is left out: {printable(lines[-1].removeprefix('error: '))}")
        return None
    return str(path), f"{kind} ({format_bytes(path.stat().st_size)})"


def _path_of(reference: str | None, settings: Settings, reporter: StderrReporter) -> str:
    """The file of a model. Raises LlmcliError where there is none."""
    found = find_models([reference], settings, reporter)[reference]
    if isinstance(found, LlmcliError):
        raise found
    return str(found[0].path)


def _save(
    verdict: Verdict, found: Mapping[str, Any], settings: Settings, reporter: StderrReporter
) -> dict[str, Any] | None:
    """Write the winner for this model; nothing where it is not shown to be better, or is another file."""
    winner = verdict.winner
    if winner.candidate.model is not None:
        reporter.notify("the winner is another file: llmcli quantize makes it, and a sweep of that one can be saved")
        return None
    if not verdict.is_better or winner.plan is None:
        reporter.notify(
            "nothing is saved: the samples do not show that anything is faster than the settings as they are"
        )
        return None
    values: dict[str, Any] = {
        "model": found["name"],
        "machine": found["machine"],
        "found": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        **winner.candidate.as_config(winner.plan),
    }
    set_table(settings.config_file, SECTION, table_name(found["id"]), values)
    reporter.notify(f"saved in {printable(str(settings.config_file))}, [{SECTION}.{table_name(found['id'])}]")
    return values
