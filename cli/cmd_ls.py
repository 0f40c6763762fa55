"""`llmcli ls`: the models that are on this machine. Headers are read, no model is opened."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_age, format_bytes
from llmcli.cli import output
from llmcli.cli.cache_options import cache_dir_option, cache_from
from llmcli.cli.options import option
from llmcli.cli.reporter import StderrReporter
from llmcli.cli.table import table_lines
from llmcli.models.inventory import Listed, take_inventory

_EPILOG = """\b
Examples:
  llmcli ls
  llmcli ls --sort size
  llmcli ls -q | head -1
  llmcli ls --json | jq -r '.[] | select(.status != "ok") | .path'

\b
Exit status: 0 done, 2 usage, 1 anything else."""
# Sizes and times the greatest first, the rest as in a dictionary; what is not known comes last.
_SORTS: dict[str, Callable[[Listed], Any]] = {
    "name": lambda entry: entry.name.casefold(),
    "size": lambda entry: -entry.size_bytes,
    "modified": lambda entry: -entry.modified_s,
    "context": lambda entry: -(entry.headline.n_ctx_train or 0),
    "bpw": lambda entry: -(entry.headline.bpw or 0),
    "arch": lambda entry: entry.headline.architecture or "\U0010ffff",
    "quant": lambda entry: entry.headline.quant or "\U0010ffff",
}
_HEADINGS = ("MODEL", "QUANT", "BPW", "SIZE", "CONTEXT", "ARCH", "MODIFIED", "PREFIXES")
_RIGHT = (2, 3, 4, 6, 7)
_LESS_NEEDED = (5, 6, 2, 7, 4, 1)


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@option("--sort", type=click.Choice([*_SORTS, "prefixes"]), default="name", show_default=True, help="The order.")
@option("--json", is_flag=True, help="An array of objects.")
@option("-q", "--names", is_flag=True, help="Only what to type for each model that can be run, one on a line.")
@cache_dir_option
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> None:
    """List the models that are here: in the Hugging Face cache, in the folders of the config, and in llmcli's own.

    BPW are bits per weight over all tensors, CONTEXT what the model was trained for, PREFIXES what the prefix store
    keeps of it. Files that are half, damaged, or no model stand below the others with what is wrong.
    """
    found = take_inventory(settings)
    kept = {} if values["names"] else _kept(found, settings, values)
    entries = _sorted(found, values["sort"], kept)
    if values["json"]:
        output.write_json([_as_json(entry, kept) for entry in entries])
    elif values["names"]:
        names = (entry.reference for entry in entries if entry.is_usable)
        # A newline in one would make two names of it, and the second may be another model's.
        output.write_names(printable(name) if "\n" in name else name for name in names)
    else:
        output.write("".join(f"{line}\n" for line in _lines(entries, kept)))


def _sorted(entries: Sequence[Listed], sort: str, kept: Mapping[str, int]) -> list[Listed]:
    def key(entry: Listed) -> Any:
        return _SORTS[sort](entry) if sort in _SORTS else -kept.get(str(entry.path), 0)

    return sorted(entries, key=lambda entry: (not entry.is_usable, key(entry)))


def _kept(entries: Sequence[Listed], settings: Settings, values: Mapping[str, Any]) -> dict[str, int]:
    """Bytes in the prefix store, by path. Only a model that was run has a content id that is known."""
    from llmcli.engine.kept_prefixes import kept_bytes
    from llmcli.models.identity import known_content_ids

    by_content = kept_bytes(settings, StderrReporter(settings).notify, cache=cache_from(values, settings))
    found: dict[str, int] = {}
    for entry in entries if by_content else ():
        if total := sum(by_content.get(content_id, 0) for content_id in known_content_ids(entry.path, settings)):
            found[str(entry.path)] = total
    return found


def _as_json(entry: Listed, kept: Mapping[str, int]) -> dict[str, Any]:
    headline = entry.headline
    return {
        "name": entry.name,
        "reference": entry.reference,
        "path": str(entry.path),
        "files": len(entry.files),
        "source": entry.source,
        "repo_id": entry.repo_id,
        "status": headline.status,
        "problem": headline.problem,
        "architecture": headline.architecture,
        "quant": headline.quant,
        "bpw": headline.bpw,
        "n_params": headline.n_params,
        "n_ctx_train": headline.n_ctx_train,
        "size_bytes": entry.size_bytes,
        "modified_s": entry.modified_s,
        "prefix_bytes": kept.get(str(entry.path), 0),
    }


def _lines(entries: Sequence[Listed], kept: Mapping[str, int]) -> list[str]:
    columns = output.terminal_columns()
    now_s = time.time()
    usable = [entry for entry in entries if entry.is_usable]
    rows = [_HEADINGS, *(_row(entry, kept, now_s) for entry in usable)]
    lines = table_lines(rows, right=_RIGHT, columns=columns, less_needed=_LESS_NEEDED) if usable else []
    others = [entry for entry in entries if not entry.is_usable]
    if others:
        problems = [("NOT USABLE", "SIZE", "WHY"), *(_problem(entry) for entry in others)]
        lines += [""] * bool(lines) + table_lines(problems, right=(1,), columns=columns)
    return lines or ["there are no models here; llmcli run fetches a small one, llmcli pull others"]


def _row(entry: Listed, kept: Mapping[str, int], now_s: float) -> tuple[str, ...]:
    headline, stored = entry.headline, kept.get(str(entry.path))
    return (
        printable(entry.reference),
        printable(headline.quant or "-"),
        f"{headline.bpw:.2f}" if headline.bpw else "-",
        format_bytes(entry.size_bytes),
        f"{headline.n_ctx_train:,}" if headline.n_ctx_train else "-",
        printable(headline.architecture or "-"),
        format_age(now_s - entry.modified_s),
        format_bytes(stored) if stored else "-",
    )


def _problem(entry: Listed) -> tuple[str, str, str]:
    why = f"{entry.headline.status}: {entry.headline.problem}"
    return printable(entry.reference), format_bytes(entry.size_bytes), printable(why)
