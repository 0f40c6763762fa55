"""`llmcli cache ls` and `path`: what is stored, and where. No model is opened."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from llmcli.base.settings import Settings
from llmcli.cache_store.catalog import Entry
from llmcli.cli import output
from llmcli.cli.cache_options import cache_dir_option, cache_from, model_of_this_call, open_store
from llmcli.cli.cache_view import Models, entry_json, entry_lines
from llmcli.cli.options import model_option, option, verbosity_options
from llmcli.cli.reporter import StderrReporter
from llmcli.engine.engine import find_model
from llmcli.engine.prefix_report import store_folder

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_WHAT_STORES = "llmcli run keeps prompts of 64 tokens and more; llmcli cache save NAME -f FILE keeps one by name"
_SORTS = {
    "used": lambda entry: -entry.used_s,
    "tokens": lambda entry: -entry.tokens,
    "bytes": lambda entry: -entry.chain_bytes,
    "hits": lambda entry: -entry.hits,
}


@click.command(
    "ls",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache ls
  llmcli cache ls --sort bytes
  llmcli cache ls --json | jq -r '.[] | select(.pinned) | .key'

\b
Exit status: 0 done, 2 usage, 3 no such model (-m), 1 anything else.""",
)
@model_option
@option("--sort", type=click.Choice(list(_SORTS)), default="used", show_default=True, help="Order, the greatest first.")
@option("--json", is_flag=True, help="An array of objects.")
@cache_dir_option
@verbosity_options
@click.pass_obj
def ls(settings: Settings, /, **values: Any) -> None:
    """List the stored prefixes by model; with -m those of one model.

    An entry is the end of a chain of blocks, or a named block in it. OWN are the bytes that no other entry shares:
    what removing it would free. HITS counts prompts that restored some of it, and not more of another one; USED is
    the time since the last. TEXT is where its text parts from that of others.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    with open_store(values, settings, reporter.notify) as store:
        models, entries = Models(store), store.keeper().entries()
        if wanted := model_of_this_call(values):
            content_id = find_model(wanted, settings, reporter)[1].content_id
            entries = [entry for entry in entries if models.content_id(entry.fingerprint) == content_id]
        entries.sort(key=_SORTS[values["sort"]])
        if values["json"]:
            now_s = time.time()
            output.write_json([entry_json(entry, models, now_s) for entry in entries])
        elif entries:
            output.write(_listed(entries, models))
        else:
            reporter.notify(f"nothing is stored{' for this model' if wanted else ''} yet: {_WHAT_STORES}")


def _listed(entries: Sequence[Entry], models: Models) -> str:
    columns = output.terminal_columns() or 200
    by_model: dict[bytes, list[Entry]] = {}
    for entry in entries:
        by_model.setdefault(entry.fingerprint, []).append(entry)
    blocks = ["\n".join([models.title(digest), *entry_lines(some, columns)]) for digest, some in by_model.items()]
    return "\n\n".join(blocks) + ("\n" if blocks else "")


@click.command(
    "path",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache path
  du -sh "$(llmcli cache path)"

\b
Exit status: 0 done, 2 usage.""",
)
@cache_dir_option
@click.pass_obj
def path(settings: Settings, /, **values: Any) -> None:
    """Print the folder of the store, whether it is there or not."""
    output.write_names([str(store_folder(cache_from(values, settings), settings))])
