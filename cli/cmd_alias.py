"""`llmcli alias`: short names for models, kept in config.toml."""

from __future__ import annotations

from typing import Any

import click

from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cli import output
from llmcli.cli.complete import complete_alias, complete_model
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.reporter import StderrReporter
from llmcli.cli.table import table_lines

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.group(
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli alias set big unsloth/Qwen3-8B-GGUF:Q5_K_M
  llmcli run -m big "Hello"
  llmcli alias ls
  llmcli alias rm big""",
)
def group() -> None:
    """Short names for models: [alias] in config.toml, where comments and order stay as they are."""


@group.command(
    "set",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli alias set big unsloth/Qwen3-8B-GGUF:Q5_K_M
  llmcli alias set mine ~/models/mine.gguf

\b
Exit status: 0 done, 2 usage, 1 config.toml cannot be changed.""",
)
@click.argument("name", metavar="NAME", shell_complete=complete_alias)
@click.argument("reference", metavar="MODEL", shell_complete=complete_model)
@verbosity_options
@click.pass_obj
def set_(settings: Settings, /, **values: Any) -> None:
    """Let NAME stand for MODEL: a file, owner/repo:QUANT, or another alias. One that is there is replaced."""
    from llmcli.base.errors import ModelError
    from llmcli.models.aliases import set_alias
    from llmcli.models.resolve import resolve_here

    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    name, reference = values["name"], _absolute(values["reference"])
    if name in settings.aliases and settings.aliases[name] != reference:
        reporter.notify(f"{name} stood for {settings.aliases[name]}")
    set_alias(name, reference, settings)
    try:
        resolve_here(reference, settings)
    except ModelError as error:
        reporter.notify(
            f"note: {error.message}" + (f" ({error.hint})" if error.hint and "\n" not in error.hint else "")
        )


def _absolute(reference: str) -> str:
    """A file is named from anywhere, so a path that depends on the current folder is made a whole one."""
    import os

    from llmcli.models.reference import looks_like_path

    expanded = os.path.expanduser(reference)
    if os.path.exists(expanded) and (looks_like_path(reference) or os.path.isfile(expanded)):
        return os.path.abspath(expanded)
    return reference


@group.command(
    "ls",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli alias ls
  llmcli alias ls --all

\b
Exit status: 0 done, 2 usage.""",
)
@option("--all", is_flag=True, help="The names that llmcli knows by itself too.")
@option("--json", is_flag=True, help="An array of objects.")
@click.pass_obj
def ls(settings: Settings, /, **values: Any) -> None:
    """List the aliases and what they stand for."""
    rows = [(name, reference, "config") for name, reference in sorted(settings.aliases.items())]
    if values["all"]:
        rows += [row for row in _known() if row[0] not in settings.aliases]
    if values["json"]:
        output.write_json(
            [{"name": name, "reference": reference, "source": source} for name, reference, source in rows]
        )
    elif rows:
        shown = [(*map(printable, row), _where(row[1], settings)) for row in rows]
        output.write("".join(f"{line}\n" for line in table_lines([("ALIAS", "MODEL", "FROM", ""), *shown], right=())))
    else:
        output.write("there are no aliases; llmcli alias set NAME MODEL makes one\n")


def _where(reference: str, settings: Settings) -> str:
    """A word on an alias that leads to no model here: to nothing, or to one that has to be fetched."""
    from llmcli.base.errors import LlmcliError
    from llmcli.models.reference import looks_like_path, parse_hub
    from llmcli.models.resolve import resolve_here, without_aliases

    try:
        resolve_here(reference, settings)
    except LlmcliError:
        try:
            meant = without_aliases(reference, settings)
        except LlmcliError:
            return "leads back to itself"
        is_remote = not looks_like_path(meant) and parse_hub(_fetched_as(meant))
        return "not fetched yet" if is_remote else "leads nowhere"
    return ""


def _fetched_as(meant: str) -> str:
    from llmcli.models.catalogue import well_known
    from llmcli.models.default_model import BUILT_IN

    return BUILT_IN[meant].repo_id if meant in BUILT_IN else well_known(meant) or meant


def _known() -> list[tuple[str, str, str]]:
    from llmcli.models.catalogue import CATALOGUE
    from llmcli.models.default_model import BUILT_IN

    built_in = [(name, f"{model.repo_id}:{model.file}", "built in") for name, model in BUILT_IN.items()]
    return built_in + [(name, reference, "catalogue") for name, reference in CATALOGUE.items()]


@group.command(
    "rm",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli alias rm big

\b
Exit status: 0 done, 2 usage, 1 no such alias.""",
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_alias)
@click.pass_obj
def rm(settings: Settings, /, **values: Any) -> None:
    """Forget aliases; the models stay."""
    from llmcli.base.settings import load
    from llmcli.models.aliases import remove_alias

    for name in values["names"]:
        remove_alias(name, settings)
        settings = load(settings.environment)
