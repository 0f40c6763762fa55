"""`llmcli cache rm`, `prune` and `clear`: what removes. Each shows its plan, and asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.cache_store.catalog import RemovalPlan
from llmcli.cache_store.keeper import Keeper
from llmcli.cli import output
from llmcli.cli.cache_options import cache_dir_option, keep_options, model_of_this_call, open_store
from llmcli.cli.cache_view import Models, plan_lines
from llmcli.cli.complete import complete_prefix
from llmcli.cli.confirm import confirm_options, confirmed
from llmcli.cli.options import model_option, option, verbosity_options
from llmcli.cli.params import Duration, Size
from llmcli.cli.reporter import StderrReporter

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.command(
    "rm",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache rm contract
  llmcli cache rm --yes 3fa2b1c0 77d2
  llmcli cache rm --unpin contract

\b
Exit status: 0 done, 2 usage or nobody to ask, 1 no such prefix.""",
)
@click.argument("prefixes", metavar="NAME|KEY...", nargs=-1, required=True, shell_complete=complete_prefix)
@option("--unpin", is_flag=True, help="Take away the names alone; the blocks stay until they are evicted.")
@option("--json", is_flag=True, help="One JSON object.")
@confirm_options
@cache_dir_option
@verbosity_options
@click.pass_obj
def rm(settings: Settings, /, **values: Any) -> None:
    """Remove prefixes, by name or by the first digits of their key.

    Blocks that other prefixes begin with stay.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    with open_store(values, settings, reporter.notify) as store:
        keeper = store.keeper()
        plans = [_plan_of(keeper, prefix, unpin=values["unpin"]) for prefix in values["prefixes"]]
        plan = _together(plans)
        question = f"remove {format_count(len(values['prefixes']), 'stored prefix').replace('prefixs', 'prefixes')}?"
        gone = None
        if confirmed(question, plan_lines(plan), values):
            for prefix, planned in zip(values["prefixes"], plans, strict=True):
                # The first removal can make blocks the second one's own: it is planned anew.
                found = planned if values["unpin"] or len(plans) == 1 else _plan_again(keeper, prefix)
                gone = _sum(gone or (0, 0), keeper.carry_out(found))
        _tell(plan, gone, values)


def _plan_of(keeper: Keeper, prefix: str, *, unpin: bool) -> RemovalPlan:
    plan = keeper.plan_rm(prefix)
    if unpin:
        if not plan.names:
            raise LlmcliError(f"{printable(prefix)!r} has no name", hint="llmcli cache ls")
        return RemovalPlan((), plan.names, plan.kept_bytes + plan.nbytes)
    if not plan.blocks and not plan.names:
        raise LlmcliError(f"{printable(prefix)!r} is the beginning of other prefixes", hint="remove those")
    return plan


def _plan_again(keeper: Keeper, prefix: str) -> RemovalPlan:
    """The plan now; an empty one where a removal before it took the prefix too, as its other name."""
    try:
        return keeper.plan_rm(prefix)
    except LlmcliError:
        return RemovalPlan((), (), 0)


def _together(plans: Sequence[RemovalPlan]) -> RemovalPlan:
    """One plan to show: every block once."""
    blocks = {block.key: block for plan in plans for block in plan.blocks}
    names = dict.fromkeys(name for plan in plans for name in plan.names)
    total = plans[0].kept_bytes + plans[0].nbytes
    return RemovalPlan(tuple(blocks.values()), tuple(names), total - sum(block.nbytes for block in blocks.values()))


@click.command(
    "prune",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache prune --dry-run
  llmcli cache prune --max 4G --yes
  llmcli cache prune --unused 30d
  llmcli cache prune --old-builds

\b
Exit status: 0 done, 2 usage or nobody to ask, 3 no such model,
1 anything else.""",
)
@option("--max", type=Size(), metavar="SIZE", help="Remove until no more than this is left, as 4G.")
@option("--unused", "--ttl", type=Duration(), metavar="DURATION", help="Remove what was not used for so long, as 30d.")
@option("--old-builds", is_flag=True, help="Remove what another build of llama.cpp computed: this one cannot use it.")
@model_option
@option("--json", is_flag=True, help="One JSON object.")
@confirm_options
@keep_options
@verbosity_options
@click.pass_obj
def prune(settings: Settings, /, **values: Any) -> None:
    """Remove ends of chains, the least recently used first; what is pinned stays.

    Without options: what is over the budget (--cache-max) or older than the lifetime (--cache-ttl), and blocks whose
    beginning is gone. With -m: only what belongs to that model, all of it where nothing else is asked.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    with open_store(values, settings, reporter.notify) as store:
        keeper = store.keeper()
        plan = keeper.plan_prune(
            unused_s=values["unused"],
            max_bytes=values["max"],
            fingerprints=_wanted(Models(store), values, settings, reporter),
        )
        gone = None
        if not plan.blocks:
            if not values["json"]:
                output.write("there is nothing to remove\n")
                return
        elif confirmed(f"remove {format_count(len(plan.blocks), 'block')}?", plan_lines(plan), values):
            gone = keeper.carry_out(plan)
        _tell(plan, gone, values)


def _wanted(
    models: Models, values: Mapping[str, Any], settings: Settings, reporter: StderrReporter
) -> frozenset[bytes] | None:
    """The fingerprints that -m and --old-builds mean; None: every one."""
    found: dict[bytes, None] | None = None
    if reference := model_of_this_call(values):
        from llmcli.engine.engine import find_model

        content_id = find_model(reference, settings, reporter)[1].content_id
        found = dict.fromkeys(digest for digest in models.digests if models.content_id(digest) == content_id)
    if values["old_builds"]:
        from llmcli.engine.preflight import check_build

        build = check_build(settings).digest
        among = models.digests if found is None else tuple(found)
        found = dict.fromkeys(digest for digest in among if models.fact(digest, "build") != build)
    return None if found is None else frozenset(found)


@click.command(
    "clear",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache clear --dry-run
  llmcli cache clear --yes

\b
Exit status: 0 done, 2 usage or nobody to ask, 1 anything else.""",
)
@option("--json", is_flag=True, help="One JSON object.")
@confirm_options
@cache_dir_option
@verbosity_options
@click.pass_obj
def clear(settings: Settings, /, **values: Any) -> None:
    """Remove every stored prefix, the pinned ones too, and what was learnt about speed."""
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    with open_store(values, settings, reporter.notify) as store:
        keeper = store.keeper()
        found = keeper.stats()
        counted = f"{format_count(found.blocks, 'block')}, {format_bytes(found.stored_bytes)}"
        gone = None
        if confirmed("remove everything?", [f"  to remove: all {counted}; {found.pinned:,} pinned with them"], values):
            gone = keeper.clear()
    if values["json"]:
        planned = {"planned_blocks": found.blocks, "planned_bytes": found.stored_bytes}
        output.write_json({"dry_run": values["dry_run"], **planned, **_removed_json(gone)})
    elif not values["dry_run"]:
        output.write(_removed(gone))


def _tell(plan: RemovalPlan, gone: tuple[int, int] | None, values: Mapping[str, Any]) -> None:
    if values["json"]:
        blocks = [{"key": b.key.hex(), "file_bytes": b.nbytes, "reason": b.reason} for b in plan.blocks]
        output.write_json(
            {
                "dry_run": values["dry_run"],
                "plan": blocks,
                "names": list(plan.names),
                "planned_bytes": plan.nbytes,
                "kept_bytes": plan.kept_bytes,
                **_removed_json(gone),
            }
        )
    elif not values["dry_run"]:
        output.write(_removed(gone, plan.names))


def _removed_json(gone: tuple[int, int] | None) -> dict[str, int]:
    blocks, nbytes = gone or (0, 0)
    return {"removed_blocks": blocks, "removed_bytes": nbytes}


def _removed(gone: tuple[int, int] | None, names: Sequence[str] = ()) -> str:
    """What was done. gone: blocks and bytes; None: the user said no."""
    if gone is None:
        return "nothing was removed\n"
    done = [f"{format_count(gone[0], 'block')} removed, {format_bytes(gone[1])} freed"] if gone[0] or not names else []
    done += [f"the name {printable(name)} is taken away" for name in names]
    return "; ".join(done) + "\n"


def _sum(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]
