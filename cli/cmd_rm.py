"""`llmcli rm`: removes models. Shows its plan with bytes, asks, and takes their stored prefixes along."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.cli import output
from llmcli.cli.cache_options import cache_dir_option, cache_from
from llmcli.cli.complete import complete_model
from llmcli.cli.confirm import confirm_options, confirmed
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.reporter import StderrReporter
from llmcli.models.identity import forget, known_content_ids
from llmcli.models.inventory import take_inventory
from llmcli.models.removal import RemovalPlan, carry_out, place_of, plan_removal

if TYPE_CHECKING:
    from llmcli.cache_store.catalog import RemovalPlan as PrefixPlan
    from llmcli.engine.prefix_report import CacheOptions

_EPILOG = """\b
Examples:
  llmcli rm owner/repo:Q4_K_M
  llmcli rm --dry-run tiny big
  llmcli rm --yes --keep-cache model.gguf

\b
Exit status: 0 done, 2 usage or nobody to ask, 3 no such model,
1 anything else."""


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """The stored prefixes that go along: content ids, and what that frees. `shared` counts models of which another
    copy is here, whose prefixes stay.
    """

    content_ids: frozenset[str]
    plan: PrefixPlan | None
    shared: int

    @property
    def nbytes(self) -> int:
        """What removing them frees."""
        return self.plan.nbytes if self.plan else 0


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete_model)
@option("--keep-cache", is_flag=True, help="Keep what the prefix store has of them.")
@option("--json", is_flag=True, help="One JSON object.")
@confirm_options
@cache_dir_option
@verbosity_options
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> None:
    """Remove models: names as in `llmcli ls`, or files; half and damaged ones too.

    Files that another name in the cache still needs stay. A file outside the Hugging Face cache and the folders of
    llmcli is removed only where it is named by its path.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    cache = cache_from(values, settings)
    plan = plan_removal(values["models"], settings)
    prefixes = _Prefixes(frozenset(), None, 0) if values["keep_cache"] else _prefixes(plan, settings, reporter, cache)
    gone = dropped = (0, 0)
    if confirmed(_question(plan), list(_plan_lines(plan, prefixes)), values):
        for model in plan.models:
            forget(model, settings)
        gone = carry_out(plan)
        if prefixes.plan:
            from llmcli.engine.kept_prefixes import remove

            dropped = remove(prefixes.content_ids, settings, reporter.notify, cache=cache)
        for alias in _left_over(values["models"], settings):
            reporter.notify(f"the alias {alias} stood for it (llmcli alias rm {alias})")
    if values["json"]:
        output.write_json(_as_json(plan, prefixes, gone, dropped, dry_run=values["dry_run"]))
    elif not values["dry_run"]:
        files = format_count(gone[0], "file") + (f" and {format_count(dropped[0], 'block')}" if dropped[0] else "")
        output.write(f"{files} removed, {format_bytes(gone[1] + dropped[1])} freed\n")


def _prefixes(plan: RemovalPlan, settings: Settings, reporter: StderrReporter, cache: CacheOptions) -> _Prefixes:
    from llmcli.engine.kept_prefixes import plan_removal as plan_prefixes

    going = {content_id for model in plan.models for content_id in known_content_ids(model, settings)}
    doomed = {place_of(file.path) for file in plan.files}
    others = (entry.path for entry in take_inventory(settings) if place_of(entry.path) not in doomed) if going else ()
    staying = {content_id for path in others for content_id in known_content_ids(path, settings)}
    wanted = frozenset(going - staying)
    found = plan_prefixes(wanted, settings, reporter.notify, cache=cache) if wanted else None
    return _Prefixes(wanted, found, len(going & staying))


def _question(plan: RemovalPlan) -> str:
    what = format_count(len(plan.models), "model")
    if not plan.outside:
        return f"remove {what}?"
    return f"remove {what}, with {format_count(len(plan.outside), 'file')} that llmcli did not put there?"


def _plan_lines(plan: RemovalPlan, prefixes: _Prefixes) -> Iterator[str]:
    outside = set(plan.outside)
    for file in plan.files:
        size = "link" if file.is_link else format_bytes(file.nbytes)
        where = ": OUTSIDE the folders of llmcli and the Hugging Face cache" if file.path in outside else ""
        yield f"  {size:>10}  {printable(str(file.path))}{where}"
    for kept in plan.kept:
        yield f"  {format_bytes(kept.nbytes)} stay: {printable(kept.reason)}"
    if prefixes.plan:
        names = f", {', '.join(map(printable, prefixes.plan.names))}" if prefixes.plan.names else ""
        blocks = format_count(len(prefixes.plan.blocks), "block")
        yield f"  {format_bytes(prefixes.nbytes):>10}  stored prefixes: {blocks}{names} (--keep-cache keeps them)"
    if prefixes.shared:
        yield "  stored prefixes stay: another copy of the model is here"
    yield f"  {format_bytes(plan.nbytes + prefixes.nbytes)} in all"


def _left_over(references: Sequence[str], settings: Settings) -> list[str]:
    return sorted(name for name, meant in settings.aliases.items() if meant in references or name in references)


def _as_json(
    plan: RemovalPlan, prefixes: _Prefixes, gone: tuple[int, int], dropped: tuple[int, int], *, dry_run: bool
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "models": [str(path) for path in plan.models],
        "plan": [_file_json(file.path, file.nbytes, link=file.is_link) for file in plan.files],
        "kept": [{"path": str(kept.path), "bytes": kept.nbytes, "reason": kept.reason} for kept in plan.kept],
        "outside": [str(path) for path in plan.outside],
        "planned_bytes": plan.nbytes,
        "planned_prefix_bytes": prefixes.nbytes,
        "removed_files": gone[0],
        "removed_bytes": gone[1],
        "removed_prefix_blocks": dropped[0],
        "removed_prefix_bytes": dropped[1],
    }


def _file_json(path: Path, nbytes: int, *, link: bool) -> dict[str, Any]:
    return {"path": str(path), "bytes": nbytes, "link": link}
