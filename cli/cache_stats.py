"""`llmcli cache stats`: the store in numbers, and what it was good for."""

from __future__ import annotations

from typing import Any

import click

from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count, format_seconds
from llmcli.cache_store.keeper import Stats
from llmcli.cache_store.store import PrefixStore
from llmcli.cli import output
from llmcli.cli.cache_options import cache_dir_option, cache_max_option, open_store
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.reporter import StderrReporter

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.command(
    "stats",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache stats
  llmcli cache stats --json | jq .billing

\b
Exit status: 0 done, 2 usage, 1 anything else.""",
)
@option("--json", is_flag=True, help="One JSON object.")
@cache_dir_option
@cache_max_option
@verbosity_options
@click.pass_obj
def stats(settings: Settings, /, **values: Any) -> None:
    """Sum up what the store holds, and what it was good for.

    Hit and miss tokens are counted as prompt caching is billed: tokens of prompts that were restored, and those that
    had to be computed.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    with open_store(values, settings, reporter.notify) as store:
        found = store.keeper().stats()
        output.write_json(_stats_json(found, store)) if values["json"] else output.write(_stats_text(found, store))


def _stats_json(found: Stats, store: PrefixStore) -> dict[str, Any]:
    usage = found.usage
    return {
        "path": str(store.root),
        "entries": found.entries,
        "blocks": found.blocks,
        "pinned": found.pinned,
        "stored_bytes": found.stored_bytes,
        "overhead_bytes": found.overhead_bytes,
        "budget_bytes": found.budget_bytes,
        "free_bytes": found.free_bytes,
        "dedupe_ratio": found.dedupe_ratio,
        "prompts": usage.lookups,
        "prompts_with_hits": usage.hits,
        "saved_s": usage.saved_s,
        "read_bytes": usage.read_bytes,
        "written_bytes": usage.written_bytes,
        "evicted_bytes": usage.evicted_bytes,
        "expired_bytes": usage.expired_bytes,
        "removed_bytes": usage.removed_bytes,
        "damaged_blocks": usage.damaged_blocks,
        "billing": {"hit_tokens": usage.hit_tokens, "miss_tokens": usage.miss_tokens, "hit_rate": usage.hit_rate},
    }


def _stats_text(found: Stats, store: PrefixStore) -> str:
    usage = found.usage
    prefixes = f"{found.entries:,} {'prefix' if found.entries == 1 else 'prefixes'}"
    used = f"{format_bytes(found.stored_bytes)} + {format_bytes(found.overhead_bytes)} overhead"
    lost = ", ".join(
        f"{format_bytes(nbytes)} {how}"
        for nbytes, how in (
            (usage.evicted_bytes, "evicted"),
            (usage.expired_bytes, "expired"),
            (usage.removed_bytes, "removed"),
        )
    )
    rows = {
        "folder": printable(str(store.root)),
        "stored": f"{prefixes} in {format_count(found.blocks, 'block')}, {found.pinned:,} pinned",
        "bytes": f"{used}, of {format_bytes(found.budget_bytes)} allowed; {format_bytes(found.free_bytes)} free",
        "sharing": f"{found.dedupe_ratio:.2f} times as large without shared blocks",
        "prompts": f"{usage.lookups:,}, {usage.hits:,} of them with something restored",
        "tokens": f"{usage.hit_tokens:,} hit, {usage.miss_tokens:,} missed: {usage.hit_rate:.1%} were not computed",
        "saved": format_seconds(usage.saved_s),
        "moved": f"{format_bytes(usage.read_bytes)} read, {format_bytes(usage.written_bytes)} written",
        "lost": f"{lost}, {format_count(usage.damaged_blocks, 'damaged block')}",
    }
    return "".join(f"{name:<9}{text}\n" for name, text in rows.items())
