"""How stored prefixes and what the store did are put into words and objects; the same in every command."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.cache_store.catalog import Entry, RemovalPlan
from llmcli.cache_store.keys import Fingerprint
from llmcli.cache_store.store import PrefixStore
from llmcli.engine.prefix_report import MODEL_NAME_NOTE, CacheReport

KEY_DIGITS = 12
_CONTENT_DIGITS = 12
_AGES = ((86400 * 2, 86400, "d"), (3600 * 2, 3600, "h"), (60 * 2, 60, "min"))


class Models:
    """What the fingerprints of a store stand for."""

    def __init__(self, store: PrefixStore) -> None:
        known = store.keeper().fingerprints()
        self._known: dict[bytes, Fingerprint] = {fingerprint.digest: fingerprint for fingerprint in known}
        self._names = {digest: store.notes(known).get(MODEL_NAME_NOTE) for digest, known in self._known.items()}

    @property
    def digests(self) -> tuple[bytes, ...]:
        """Every known one."""
        return tuple(self._known)

    def content_id(self, digest: bytes) -> str | None:
        """The model's content id."""
        found = self.fact(digest, "model")
        return None if found is None else str(found)

    def fact(self, digest: bytes, name: str) -> Any:
        """One of the facts, None where it or the description is missing."""
        known = self._known.get(digest)
        return known.description.get(name) if known else None

    def as_json(self, digest: bytes) -> dict[str, Any]:
        """The model with the names of docs/commands/run.md, and the KV types."""
        return {
            "model": {"name": self._names.get(digest), "content_id": self.content_id(digest)},
            "type_k": self.fact(digest, "type_k"),
            "type_v": self.fact(digest, "type_v"),
        }

    def title(self, digest: bytes) -> str:
        """One line: name, content id, KV types."""
        content_id = self.content_id(digest)
        if content_id is None:
            return "unknown model"
        name = self._names.get(digest)
        types = f"KV {self.fact(digest, 'type_k')}/{self.fact(digest, 'type_v')}"
        return printable(f"{name or 'model'} ({content_id[:_CONTENT_DIGITS]}), {types}")


def entry_json(entry: Entry, models: Models, now_s: float) -> dict[str, Any]:
    """An entry as an object."""
    return {
        "key": entry.key.hex(),
        "names": list(entry.names),
        "pinned": entry.pinned,
        **models.as_json(entry.fingerprint),
        "tokens": entry.tokens,
        "blocks": entry.blocks,
        "chain_bytes": entry.chain_bytes,
        "private_bytes": entry.private_bytes,
        "age_s": max(0.0, now_s - entry.created_s),
        "unused_s": max(0.0, now_s - entry.used_s),
        "hits": entry.hits,
        "preview": entry.preview,
        "private_preview": entry.private_preview,
    }


def entry_lines(entries: Sequence[Entry], columns: int | None) -> list[str]:
    """A table of entries; text is cut at `columns`, where there is such an edge."""
    now_s = time.time()
    rows = [("KEY", "TOKENS", "BYTES", "OWN", "AGE", "USED", "HITS", "NAME OR TEXT")]
    rows += [
        (
            entry.key.hex()[:KEY_DIGITS],
            f"{entry.tokens:,}",
            format_bytes(entry.chain_bytes),
            format_bytes(entry.private_bytes),
            age(now_s - entry.created_s),
            age(now_s - entry.used_s),
            f"{entry.hits:,}",
            _label(entry),
        )
        for entry in entries
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=True))
        line = f"  {row[0]:<{widths[0]}}  {numbers}  {row[-1]}"
        lines.append(line if columns is None or len(line) <= columns else line[: columns - 1] + "…")
    return lines


def _label(entry: Entry) -> str:
    names = ", ".join(printable(name) for name in entry.names)
    pin = " (pinned)" if entry.pinned else ""
    text = printable(entry.preview)
    if entry.private_preview != entry.preview:
        text = f"{text[:40]} … {printable(entry.private_preview)}"
    return f"{names}{pin}: {text}" if names or pin else text


def age(seconds: float) -> str:
    """A time span in one number, rounded down: 3 d, 5 h, 12 min, 40 s."""
    for least, unit, word in _AGES:
        if seconds >= least:
            return f"{int(seconds // unit)} {word}"
    return f"{max(0, int(seconds))} s"


def plan_lines(plan: RemovalPlan) -> list[str]:
    """What would go, by reason, and what stays."""
    reasons: dict[str, list[int]] = {}
    for block in plan.blocks:
        reasons.setdefault(block.reason, []).append(block.nbytes)
    lines = [
        f"  {format_count(len(sizes), 'block')}, {format_bytes(sum(sizes))}: {reason}"
        for reason, sizes in reasons.items()
    ]
    lines += [f"  name: {printable(name)}" for name in plan.names]
    lines.append(f"  {format_bytes(plan.nbytes)} in all; {format_bytes(plan.kept_bytes)} stay")
    return lines


def report_lines(report: CacheReport) -> list[str]:
    """What -v tells about the store beyond the line of --stats: one line each."""
    lines = []
    if report.miss_reason:
        detail = f" ({report.miss_detail})" if report.miss_detail else ""
        lines.append(f"cache: miss reason: {report.miss_reason}{detail}")
    lines.append(f"cache: {format_bytes(report.read_bytes)} read, {format_bytes(report.written_bytes)} written")
    if report.first_difference:
        lines.append(f"cache: {difference_line(report.first_difference, 'stored', 'this prompt')}")
    return lines


def difference_line(difference: Mapping[str, Any], one: str, other: str) -> str:
    """Where two prompts part, with the text around it; JSON strings, so that spaces and newlines can be seen."""
    stored, prompt = (json.dumps(difference[name], ensure_ascii=False) for name in ("stored", "prompt"))
    return printable(f"first difference at token {difference['position_tokens']:,}: {one} {stored}, {other} {prompt}")
