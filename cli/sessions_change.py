"""`llmcli sessions fork`, `rename` and `rm`: changing what is saved. A session that is open elsewhere is left alone."""

from __future__ import annotations

from typing import Any

import click

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.cli import output
from llmcli.cli.complete import complete_session
from llmcli.cli.confirm import confirm_options, confirmed
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.params import Utf8
from llmcli.sessions.library import Library, SessionInfo

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.command(
    "fork",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli sessions fork holidays winter
  llmcli chat --session winter

\b
Exit status: 0 done, 2 usage, 6 no room, 1 no such session, or the new name
is taken.""",
)
@click.argument("name", type=Utf8(), shell_complete=complete_session, metavar="NAME")
@click.argument("new", type=Utf8(), metavar="NEW")
@click.pass_obj
def fork(settings: Settings, name: str, new: str) -> None:
    """Copy a conversation to a new name: both go on from there, and share what was computed."""
    Library(settings.sessions_dir).fork(name, new)
    output.write(f"{name} copied to {new}\n")


@click.command(
    "rename",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli sessions rename 2026-11-30-1015 holidays

\b
Exit status: 0 done, 2 usage, 1 no such session, it is open, or the new name
is taken.""",
)
@click.argument("name", type=Utf8(), shell_complete=complete_session, metavar="NAME")
@click.argument("new", type=Utf8(), metavar="NEW")
@click.pass_obj
def rename(settings: Settings, name: str, new: str) -> None:
    """Give a conversation another name."""
    Library(settings.sessions_dir).rename(name, new)
    output.write(f"{name} is {new} now\n")


@click.command(
    "rm",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli sessions rm --dry-run holidays
  llmcli sessions rm --yes holidays winter
  llmcli sessions rm --all --yes

\b
Exit status: 0 done, 2 usage or nobody to ask, 1 no such session, or it is
open.""",
)
@click.argument("names", type=Utf8(), shell_complete=complete_session, metavar="NAME...", nargs=-1)
@option("--all", is_flag=True, help="Every saved conversation.")
@option("--json", is_flag=True, help="One JSON object.")
@confirm_options
@verbosity_options
@click.pass_obj
def rm(settings: Settings, /, **values: Any) -> None:
    """Remove conversations. What the prefix store keeps of them stays, and leaves it as it ages."""
    library = Library(settings.sessions_dir)
    plan = _plan(library, values)
    lines = [f"  {printable(info.name)}: {_content(info)}" for info in plan]
    nbytes, removed = sum(info.file_bytes for info in plan), list[SessionInfo]()
    freed = 0
    if plan and confirmed(f"remove {format_count(len(plan), 'conversation')}?", lines, values):
        for info in plan:
            freed += library.remove(info.name)
            removed.append(info)
    if values["json"]:
        output.write_json(
            {
                "dry_run": values["dry_run"],
                "plan": [{"name": info.name, "file_bytes": info.file_bytes} for info in plan],
                "planned_bytes": nbytes,
                "removed": [info.name for info in removed],
                "removed_bytes": freed,
            }
        )
    elif not values["dry_run"]:
        output.write(f"{format_count(len(removed), 'conversation')} removed, {format_bytes(freed)} freed\n")


def _plan(library: Library, values: dict[str, Any]) -> list[SessionInfo]:
    names = list(dict.fromkeys(values["names"]))
    if values["all"] == bool(names):
        raise click.UsageError("name the conversations, or give --all")
    for name in names:
        if not library.exists(name):
            raise LlmcliError(f"there is no session {printable(name)}", hint="llmcli sessions ls")
    return [library.info(name) for name in names] if names else library.infos()


def _content(info: SessionInfo) -> str:
    what = "unreadable" if info.trouble else format_count(info.turns, "turn")
    title = f": {printable(info.title)}" if info.title else ""
    return f"{what}, {format_bytes(info.file_bytes)}{title}"
