"""`llmcli sessions ls`, `show`, `export` and `path`: looking at saved conversations."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.named_file import write_named
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_count
from llmcli.cli import output
from llmcli.cli.complete import complete_session
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.params import Utf8
from llmcli.cli.reporter import StderrReporter
from llmcli.cli.session_table import info_json, info_lines
from llmcli.sessions.export import as_json, exported
from llmcli.sessions.file import Reading
from llmcli.sessions.library import Library

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_FORMATS = {"markdown": ".md", "json": ".json", "session": ".jsonl"}


@click.command(
    "ls",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli sessions ls
  llmcli sessions ls --json | jq -r '.[].name'

\b
Exit status: 0 done, 2 usage, 1 anything else.""",
)
@option("--json", is_flag=True, help="An array of objects.")
@click.pass_obj
def ls(settings: Settings, /, **values: Any) -> None:
    """List the saved conversations, the last used first. TOKENS are those of the whole conversation."""
    library = Library(settings.sessions_dir)
    infos = library.infos()
    if values["json"]:
        now_s = time.time()
        output.write_json([info_json(info, now_s) for info in infos])
        return
    columns = output.terminal_columns() or 200
    lines = info_lines(infos, columns) if infos else ["nothing is saved"]
    output.write("".join(line + "\n" for line in lines))


@click.command(
    "show",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli sessions show holidays
  llmcli sessions show --last 1 holidays
  llmcli sessions show --json holidays | jq -r '.turns[-1].text'

\b
Exit status: 0 done, 2 usage, 1 no such session or a damaged one.""",
)
@click.argument("name", type=Utf8(), shell_complete=complete_session, metavar="NAME")
@option("--last", type=click.IntRange(1), metavar="N", help="The last N turns alone.")
@option("--reasoning", is_flag=True, help="With the thinking before the answers.")
@option("--json", is_flag=True, help="One JSON object.")
@verbosity_options
@click.pass_obj
def show(settings: Settings, /, **values: Any) -> None:
    """Show what was said in a conversation, without what was taken back."""
    found = _read(settings, values)
    last = values["last"] or len(found.history.turns)
    if values["json"]:
        shown = as_json(values["name"], found.header, found.history)
        shown["turns"] = shown["turns"][-last:]
        output.write_json(shown)
        return
    output.write("".join(line + "\n" for line in _said(found, last, reasoning=values["reasoning"])))


def _read(settings: Settings, values: dict[str, Any]) -> Reading:
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    found = Library(settings.sessions_dir).read(values["name"])
    for warning in found.warnings:
        reporter.notify(f"warning: {warning}")
    return found


def _said(found: Reading, last: int, *, reasoning: bool) -> Iterator[str]:
    history = found.history
    yield f"{printable(found.header.model.name)}, begun {printable(found.header.created)}"
    yield f"{format_count(len(history.turns), 'turn')}" + (
        f", {history.dropped:,} of them no longer seen by the model" if history.dropped else ""
    )
    if history.system is not None:
        yield from ("", "system:", history.system)
    for turn in history.turns[-last:] if last else ():
        yield from ("", f"> {turn.user}".replace("\n", "\n> "), "")
        if reasoning and turn.reasoning.strip():
            yield from (f"({turn.reasoning.strip()})", "")
        yield turn.text.strip("\n") + ("" if turn.finish_reason == "stop" else f" [{turn.finish_reason}]")


@click.command(
    "export",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli sessions export holidays > holidays.md
  llmcli sessions export holidays -o holidays.json
  llmcli sessions export --format session holidays -o copy.jsonl

\b
Exit status: 0 done, 2 usage, 6 no room, 1 no such session, or the file is
there already.""",
)
@click.argument("name", type=Utf8(), shell_complete=complete_session, metavar="NAME")
@option("-o", "--output", metavar="FILE", help="Where to; without it stdout.")
@option(
    "--format",
    type=click.Choice(list(_FORMATS)),
    help="markdown, json, or session (with the token ids). [default: as the file's name ends, else markdown]",
)
@option("--force", is_flag=True, help="Write over a file that is there.")
@verbosity_options
@click.pass_obj
def export(settings: Settings, /, **values: Any) -> None:
    """Write a conversation for people (Markdown), programs (JSON) or another llmcli (a session file)."""
    target, found = values["output"], _read(settings, values)
    if values["format"]:
        suffix = _FORMATS[values["format"]]
    else:
        suffix = Path(target).suffix.lower() if target else ".md"
        if suffix not in _FORMATS.values():
            raise UsageError(f"--format says how to write {printable(target)}", hint=", ".join(_FORMATS))
    data = exported(suffix, values["name"], found.header, found.history)
    if target is None:
        output.write(data.decode("utf-8"))
    else:
        _write(target, data, force=values["force"])


def _write(target: str, data: bytes, *, force: bool) -> None:
    try:
        write_named(target, data, over=force)
    except FileExistsError:
        raise LlmcliError(f"{printable(target)} is there already", hint="--force, or another name") from None
    except OSError as error:
        raise output.os_failure(error, "cannot write ") from None
    except ValueError as error:  # a NUL in the name, which config.toml can have
        raise UsageError(f"cannot write {printable(target)}: {error}") from None


@click.command(
    "path",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli sessions path
  grep -l Lisbon "$(llmcli sessions path)"/*.jsonl

\b
Exit status: 0 done, 2 usage.""",
)
@click.pass_obj
def path(settings: Settings) -> None:
    """Print the folder of the conversations, whether it is there or not."""
    output.write_names([os.fspath(settings.sessions_dir)])
