"""`llmcli cache verify`: every stored byte against its checksum, and on request against the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.cache_store.catalog import Entry
from llmcli.cache_store.maintain import Verified
from llmcli.cache_store.store import PrefixStore
from llmcli.cli import output
from llmcli.cli.cache_options import bench_request, cache_dir_option, context_for, open_store
from llmcli.cli.cache_view import KEY_DIGITS, Models
from llmcli.cli.engine_options import engine_options
from llmcli.cli.options import model_option, option, verbosity_options
from llmcli.cli.params import Whole
from llmcli.cli.reporter import StderrReporter
from llmcli.engine import native

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.command(
    "verify",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache verify
  llmcli cache verify --repair
  llmcli cache verify --logits --sample 5 -m smollm2

\b
Exit status: 0 everything is as it should be, or was repaired, 2 usage,
3 no such model, 1 something is not.""",
)
@option("--repair", is_flag=True, help="Remove what is damaged, and bring the index in line.")
@option("--logits", is_flag=True, help="Compute a sample of the prefixes again, and compare the logits behind them.")
@option("--sample", type=Whole(1), default=3, show_default=True, metavar="N", help="Prefixes to compute for --logits.")
@model_option
@option("--json", is_flag=True, help="One JSON object.")
@engine_options
@cache_dir_option
@verbosity_options
@click.pass_obj
def verify(settings: Settings, /, **values: Any) -> int:
    """Read every block and check it: name, header, key, checksums, and that its beginning is there.

    With --logits the model is opened too: prefixes are restored, some tokens are computed behind them, and the logits
    must be those of a run that computes everything.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    with open_store(values, settings, reporter.notify) as store:
        keeper = store.keeper()
        total = keeper.stats().stored_bytes
        with reporter.progress("checking the prefix store", total) as task:
            found = keeper.verify(repair=values["repair"], on_bytes=task.update)
        compared = _compare(store, values, settings, reporter) if values["logits"] else None
    if values["json"]:
        output.write_json(_as_json(found, compared))
    else:
        output.write(_as_text(found, compared))
    left = [problem for problem in found.problems if not problem.removed]
    wrong = [one for one in compared or () if not one["equal"]]
    return 1 if left or wrong else 0


def _compare(
    store: PrefixStore, values: dict[str, Any], settings: Settings, reporter: StderrReporter
) -> list[dict[str, Any]]:
    """One object for each prefix of the sample."""
    from llmcli.engine.engine import find_model
    from llmcli.engine.prefix_admin import MORE_TOKENS, open_bench

    models, keeper = Models(store), store.keeper()
    content_id = find_model(values["model"], settings, reporter)[1].content_id
    entries = [entry for entry in keeper.entries() if models.content_id(entry.fingerprint) == content_id]
    longest = max((entry.tokens for entry in entries), default=0)
    values["ctx_size"] = context_for(longest + MORE_TOKENS, values)
    results = []
    with open_bench(bench_request(values, settings), settings, reporter) as bench:
        digest = bench.fingerprint().digest
        for entry in _spread([entry for entry in entries if entry.fingerprint == digest], values["sample"]):
            reporter.notify(f"computing {entry.key.hex()[:KEY_DIGITS]} again, {format_count(entry.tokens, 'token')}")
            done = bench.compare(keeper.chain(entry.key.hex()))
            if done is not None:
                fields = {"tokens": done.tokens, "largest_logit_difference": done.largest_logit_difference}
                results.append({"key": entry.key.hex(), "equal": done.is_equal, **fields, "trouble": done.trouble})
    if not results:
        reporter.notify("no prefix of this model, with these settings, can be compared")
    return results


def _spread(entries: Sequence[Entry], count: int) -> Sequence[Entry]:
    """`count` of them, spread evenly in the order of their keys, which is no order of age or size."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    if len(ordered) <= count:
        return ordered
    return [ordered[at * len(ordered) // count] for at in range(count)]


def _as_json(found: Verified, compared: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {
        "blocks": found.blocks,
        "stored_bytes": found.nbytes,
        "problems": [{"path": str(p.path), "what": p.what, "removed": p.removed} for p in found.problems],
        "index_added": found.index_added,
        "index_dropped": found.index_dropped,
        "logits": compared,
    }


def _as_text(found: Verified, compared: list[dict[str, Any]] | None) -> str:
    lines = [f"{format_count(found.blocks, 'block')}, {format_bytes(found.nbytes)}: sound"]
    for problem in found.problems:
        then = ": removed" if problem.removed else ""
        lines.append(f"{printable(str(problem.path))}: {printable(problem.what)}{then}")
    if found.index_added or found.index_dropped:
        lines.append(f"index: {found.index_added:,} rows added, {found.index_dropped:,} dropped")
    lines += [_compared_line(one) for one in compared or ()]
    return "".join(line + "\n" for line in lines)


def _compared_line(one: Mapping[str, Any]) -> str:
    about = f"{one['key'][:KEY_DIGITS]}: {format_count(one['tokens'], 'token')}"
    if one["trouble"] is not None:
        return f"{about}: {printable(one['trouble'])}"
    if one["equal"]:
        return f"{about}: the logits are equal"
    return f"{about}: the logits DIFFER, by up to {one['largest_logit_difference']:g}"
