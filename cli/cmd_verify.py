"""`llmcli verify`: are the files of a model whole, sound, and the bytes that the hub has? Works without the network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from llmcli.base.errors import ModelError, UsageError
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.cli import output
from llmcli.cli.complete import complete_model
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.reporter import StderrReporter
from llmcli.models.inventory import take_inventory
from llmcli.models.resolve import resolve_here
from llmcli.models.verification import FileCheck, Verification, verify_model

_EPILOG = """\b
Examples:
  llmcli verify owner/repo:Q4_K_M
  llmcli verify --all
  llmcli verify --json model.gguf | jq '.[0].sound'

\b
Exit status: 0 nothing is wrong, 2 usage, 3 no such model or
something is wrong with one, 1 anything else."""
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class _Asked:
    """A model to check: by name, or an entry of the list with its file and what is known to be wrong with it."""

    name: str
    path: Path | None = None
    problem: str | None = None


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", metavar="[MODEL]...", nargs=-1, shell_complete=complete_model)
@option("--all", is_flag=True, help="Every model of `llmcli ls`, the damaged ones too.")
@option("--json", is_flag=True, help="An array of objects.")
@verbosity_options
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> int:
    """Check models: the header, the vocabulary, that every tensor lies inside its file, and the sha256 of all bytes.

    The sha256 is compared with the hub's for what lies in the Hugging Face cache, and with what was found when the
    same file was first used here.
    """
    if bool(values["models"]) == values["all"]:
        raise UsageError("name models, or --all" if not values["all"] else "--all leaves no model to name")
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    results: list[dict[str, Any]] = []
    is_sound = True
    for asked in _asked(values, settings):
        try:
            found = _verified(asked, settings, reporter)
        except ModelError as error:
            if len(values["models"]) == 1:
                raise
            results.append(
                {"reference": asked.name, "path": None, "sound": False, "problem": error.message, "files": []}
            )
            is_sound, text = False, f"{printable(asked.name)}: WRONG\n  {printable(error.message)}\n"
        else:
            results.append(_as_json(asked.name, found))
            is_sound = is_sound and found.is_sound
            text = "".join(f"{line}\n" for line in _lines(asked.name, found))
        if not values["json"]:
            output.write(text)
    if values["json"]:
        output.write_json(results)
    return 0 if is_sound else ModelError.exit_code


def _asked(values: dict[str, Any], settings: Settings) -> Iterator[_Asked]:
    if not values["all"]:
        yield from (_Asked(name) for name in values["models"])
        return
    for entry in take_inventory(settings):
        if entry.headline.status != "other":  # sound, and nothing that a model is checked for
            problem = None if entry.is_usable else entry.headline.problem
            yield _Asked(entry.reference, entry.path, problem)


def _verified(asked: _Asked, settings: Settings, reporter: StderrReporter) -> Verification:
    if asked.problem:
        raise ModelError(asked.problem)
    path = asked.path or resolve_here(asked.name, settings).path
    with contextlib.ExitStack() as stack:
        bar: list[Any] = []

        def on_bytes(done: int, total: int) -> None:
            if not bar:
                bar.append(stack.enter_context(reporter.progress(f"checking {path.name}", total)))
            bar[0].update(done)

        return verify_model(path, settings, on_bytes=on_bytes)


def _lines(name: str, found: Verification) -> Iterator[str]:
    yield f"{printable(name)}: {'ok' if found.is_sound else 'WRONG'}"
    if found.problem:
        yield f"  {printable(found.problem)}"
    else:
        yield f"  header, vocabulary and the extents of {format_count(found.n_tensors, 'tensor')} are sound"
    for file in found.files:
        yield f"  {printable(file.path.name)}, {format_bytes(file.size_bytes)}, {_digest(file)}"
    if found.as_before is not None:
        yield "  the bytes are " + ("" if found.as_before else "NOT ") + "those of its first use here"
    if not found.is_sound and any(file.matches is False for file in found.files):
        yield "  remove it (llmcli rm) and pull it again"


def _digest(file: FileCheck) -> str:
    if file.matches is None:
        return f"sha256 {file.sha256}: nothing states what it should be"
    if file.matches:
        return f"sha256 {file.sha256[:_DIGITS]}…: as {file.stated_by} states it"
    return f"sha256 {file.sha256}: NOT what {file.stated_by} states, {file.expected}"


def _as_json(name: str, found: Verification) -> dict[str, Any]:
    return {
        "reference": name,
        "path": str(found.path),
        "sound": found.is_sound,
        "proven": found.is_proven,
        "problem": found.problem,
        "n_tensors": found.n_tensors,
        "as_before": found.as_before,
        "files": [
            {
                "path": str(file.path),
                "size_bytes": file.size_bytes,
                "sha256": file.sha256,
                "expected": file.expected,
                "stated_by": file.stated_by,
                "matches": file.matches,
            }
            for file in found.files
        ],
    }
