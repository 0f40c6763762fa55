"""`llmcli pull`: models from the hub or from an address, checked and ready to run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from llmcli.base.errors import LlmcliError, ModelError, UsageError, UserInterruptError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cli import output
from llmcli.cli.complete import complete_pull
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.pull_progress import PullProgress
from llmcli.cli.pull_view import headline, plan_json, plan_text, remarks, result_json
from llmcli.engine.pull_fit import Fit, choose, fit_of
from llmcli.hardware.memory import Memory, read_memory
from llmcli.models.pull import PullOptions, carry_out, make_plan, require_room
from llmcli.models.pull_plan import PullPlan
from llmcli.models.reach import without_credentials

_EPILOG = """\b
Examples:
  llmcli pull qwen3-4b
  llmcli pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  llmcli pull --dry-run unsloth/gemma-3-4b-it-GGUF
  llmcli pull --sha256 9f2c... https://example.org/model.gguf
  llmcli run -m "$(llmcli pull -q qwen3-0.6b)" "Hello"

\b
Exit status: 0 done, 2 usage, 3 not to be had or not a model, 6 not enough
memory or disk, 130 interrupted, 1 anything else."""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("references", metavar="REF...", nargs=-1, required=True, shell_complete=complete_pull)
@option("--quant", metavar="QUANT", help="The quantization to take, such as Q4_K_M. [default: the best that fits]")
@option("--revision", metavar="REV", help="A branch, tag or commit of the repository. [default: main]")
@option("--sha256", metavar="HEX", help="What a file from a plain address must have.")
@option("--dry-run", is_flag=True, help="Show files, sizes, free space and memory, and fetch no model.")
@option("--no-space-check", is_flag=True, help="Begin even where the disk says that it has too little room.")
@option("--json", is_flag=True, help="One JSON object for each REF.")
@verbosity_options
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> int:
    """Fetch models: owner/repo[:QUANT|:FILE], hf://..., an https address of a .gguf file, or a short name.

    A model comes into the Hugging Face cache, where other tools find it too; from a plain address it comes into
    llmcli's own folder. What was cut off is gone on from, and every byte is checked. The path goes to stdout.
    """
    memory, failures = read_memory(), _Failures(len(set(values["references"])))
    with PullProgress(settings, quiet=values["quiet"]) as progress:
        plans = _plans(values, settings, memory, progress, failures)
        if values["dry_run"]:
            for plan in plans:
                _show_plan(plan, _fit(plan, memory), values)
            return failures.code
        if not values["no_space_check"]:
            require_room(plans)
        for plan in plans:
            with failures, _naming(plan.reference):
                _pull(plan, _fit(plan, memory), values, settings, progress)
    return failures.code


class _Failures:
    """What went wrong with one of several references is told at once, and the others go on.

    With a single reference the error goes to the error boundary as it is.
    """

    def __init__(self, references: int) -> None:
        self.code = 0
        self._single = references == 1

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if self._single or not isinstance(error, LlmcliError) or isinstance(error, (UsageError, UserInterruptError)):
            return False
        output.stderr_error(error.message, error.hint)
        self.code = self.code or error.exit_code
        return True


def _plans(
    values: Mapping[str, Any], settings: Settings, memory: Memory, progress: PullProgress, failures: _Failures
) -> list[PullPlan]:
    """A plan for each reference, all of them before anything is fetched: a slip of the pen is found at once."""
    options = PullOptions(
        revision=values["revision"],
        quant=values["quant"],
        sha256=_digest(values["sha256"], values["references"]),
    )
    plans: list[PullPlan] = []
    for reference in dict.fromkeys(values["references"]):
        with failures, _naming(reference):
            chooser = partial(choose, memory=memory)
            plans.append(make_plan(reference, options, settings, choose=chooser, notify=progress.say))
    return plans


@contextlib.contextmanager
def _naming(reference: str) -> Iterator[None]:
    """A failure tells what was asked for: the hub's own words are about hosts, tokens and networks."""
    try:
        yield
    except ModelError as error:
        shown = without_credentials(printable(reference))
        name = shown if "://" in shown else shown.partition(":")[0]
        if name.casefold() in error.message.casefold():
            raise
        raise ModelError(f"{shown}: {error.message}", hint=error.hint) from None


def _digest(text: str | None, references: Sequence[str]) -> str | None:
    if text is None:
        return None
    found = text.strip().lower().removeprefix("sha256:")
    if len(found) != 64 or set(found) - set("0123456789abcdef"):
        raise UsageError(f"--sha256 {text!r} is not a sha256", hint="64 digits, 0 to 9 and a to f")
    if len(set(references)) > 1:
        raise UsageError("--sha256 is the digest of one file: give one address")
    return found


def _fit(plan: PullPlan, memory: Memory) -> Fit:
    return fit_of(plan.size_bytes, plan.facts, memory)


def _show_plan(plan: PullPlan, fit: Fit, values: Mapping[str, Any]) -> None:
    if values["json"]:
        output.write_json(plan_json(plan, fit))
    else:
        output.write(plan_text(plan, fit))


def _pull(plan: PullPlan, fit: Fit, values: Mapping[str, Any], settings: Settings, progress: PullProgress) -> None:
    progress.say(headline(plan))
    for line in remarks(plan, fit):
        progress.say(line)
    if values["verbose"]:
        for file in plan.files:
            progress.say(f"{file.name}: {file.digest or 'no digest stated'}, to {file.path}")
    progress.had = {file.name: file.have_bytes for file in plan.files if file.state == "half"}
    try:
        pulled = carry_out(plan, settings, progress=progress, notify=progress.say)
    except (KeyboardInterrupt, UserInterruptError):
        raise UserInterruptError("interrupted; what came is kept", hint="the same command goes on from there") from None
    finally:
        progress.clear()
    if values["json"]:
        output.write_json(result_json(plan, pulled, fit))
    else:
        output.write_names([str(pulled.path)])
