"""How stored prefixes and what the store did are put into words and objects; the same in every command."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any

from llmcli.base.text import printable
from llmcli.base.units import format_age, format_bytes, format_count
from llmcli.cache_store.catalog import ASKED, Entry, RemovalPlan
from llmcli.cache_store.keys import Fingerprint
from llmcli.cache_store.store import PrefixStore
from llmcli.cli.table import table_lines
from llmcli.engine.prefix_report import MODEL_NAME_NOTE, CacheReport

KEY_DIGITS = 12
_INDENT = "  "
_HEAD = ("KEY", "TOKENS", "BYTES", "OWN", "AGE", "USED", "HITS", "NAME", "TEXT")
_TEXTS = ("NAME", "TEXT")
_LESS_NEEDED = ("AGE", "BYTES", "USED", "OWN")  # the first goes first
# How templates mark turns: <|im_start|>user, <start_of_turn>model, [INST], <s>, and a header's words of both kinds.
_MARK = r"(?:<[|｜][^<>\n]{1,40}[|｜]>|</?(?:s|bos|eos|start_of_turn|end_of_turn)>|\[/?INST\]|<</?SYS>>)"
_MARKUP = re.compile(rf"{_MARK}+(?:(?:system|user|assistant|model|tool|developer)(?=\s*(?:\n|{_MARK}|$)))?")
_CONTENT_DIGITS = 12


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

    def name_of(self, content_id: str) -> str | None:
        """What this model is called here; None where no run has told."""
        found = (self._names[digest] for digest in self._known if self.content_id(digest) == content_id)
        return next((name for name in found if isinstance(name, str)), None)

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
    """A table of entries that fits `columns`, where there is such an edge: whole columns go, the less needed first."""
    now_s = time.time()
    rows = [_HEAD]
    rows += [
        (
            entry.key.hex()[:KEY_DIGITS],
            f"{entry.tokens:,}",
            format_bytes(entry.chain_bytes),
            format_bytes(entry.private_bytes),
            format_age(now_s - entry.created_s),
            format_age(now_s - entry.used_s),
            f"{entry.hits:,}",
            _names(entry),
            _text(entry),
        )
        for entry in entries
    ]
    kept = [at for at in range(len(_HEAD)) if _HEAD[at] != "NAME" or any(entry.names for entry in entries)]
    lines = table_lines(
        [[row[at] for at in kept] for row in rows],
        right=[place for place, at in enumerate(kept) if _HEAD[at] not in _TEXTS],
        columns=None if columns is None else columns - len(_INDENT),
        less_needed=[_HEAD.index(name) for name in _LESS_NEEDED],
    )
    return [_INDENT + line for line in lines]


def _names(entry: Entry) -> str:
    """Its names; a name pins, so only where none does that is said."""
    names = ", ".join(printable(name) for name in entry.names)
    return names + " (not pinned)" if names and not entry.pinned else names


def _text(entry: Entry) -> str:
    """What tells the entry from its neighbours: its text from where it parts from theirs, without markup, on a line."""
    before = entry.preview[: -len(entry.apart) or None] if entry.preview.endswith(entry.apart) else "…"
    return printable(("… " if _without_markup(before) else "") + _without_markup(entry.apart))


def _without_markup(text: str) -> str:
    return " ".join(_MARKUP.sub(" ", text).split())


def plan_lines(plan: RemovalPlan) -> list[str]:
    """What would go, by reason, and what would stay: nothing of it is done yet."""
    reasons: dict[str, list[int]] = {}
    for block in plan.blocks:
        reasons.setdefault(block.reason, []).append(block.nbytes)
    lines = []
    for reason, sizes in reasons.items():
        why = "" if reason == ASKED else f" ({reason})"
        lines.append(f"  to remove: {format_count(len(sizes), 'block')}, {format_bytes(sum(sizes))}{why}")
    lines += [f"  to remove: the name {printable(name)}" for name in plan.names]
    lines.append(f"  {format_bytes(plan.nbytes)} would be freed, {format_bytes(plan.kept_bytes)} would stay")
    return lines


def report_lines(report: CacheReport) -> list[str]:
    """What -v tells about the store beyond the line of --stats: one line each."""
    lines = []
    if report.miss_reason:
        detail = f" ({report.miss_detail})" if report.miss_detail else ""
        lines.append(f"cache: miss reason: {report.miss_reason}{detail}")
    lines.append(f"cache: {format_bytes(report.read_bytes)} read, {format_bytes(report.written_bytes)} written")
    if report.first_difference:
        found = report.first_difference
        texts = (("stored", found["stored"]), ("this prompt", found["prompt"]))
        lines += [f"cache: {line}" for line in difference_lines(found["position_tokens"], texts)]
    return lines


def difference_lines(position_tokens: int, texts: Sequence[tuple[str, str]]) -> list[str]:
    """Where prompts part, and the text around it below: the name of each prompt, and its text.

    As JSON strings, so that spaces and newlines can be seen.
    """
    rows = [(printable(name), printable(json.dumps(text, ensure_ascii=False))) for name, text in texts]
    width = max(len(name) for name, _ in rows)
    return [f"first difference at token {position_tokens:,}:", *(f"  {name:<{width}}  {text}" for name, text in rows)]
