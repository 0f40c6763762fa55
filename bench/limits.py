"""Limits on a change, as `tg<-5%`, `load>20%`, `pp512<-3%`: which changes miss one, and whether the samples show it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmcli.base.errors import UsageError
from llmcli.bench.compare import Change

_LIMIT = re.compile(r"\s*([a-z0-9+@ ]+?)\s*([<>])\s*([+-]?\d{1,6}(?:\.\d{1,6})?)\s*%\s*\Z", re.ASCII | re.IGNORECASE)
_KINDS = ("pp", "tg", "pg", "any", "load", "memory")
_TEST = re.compile(r"(pp\d+)?\+?(tg\d+)?(\s*@\s*d\d+)?\Z")


@dataclass(frozen=True, slots=True)
class Limit:
    """`what` is a kind of test (pp, tg, pg, any), the name of one, `load` or `memory`; `share` is 0.05 for 5%."""

    text: str
    what: str
    is_below: bool
    share: float

    def missed_by(self, change: Change) -> bool:
        """Whether a change is past the limit. A rate that the samples do not show to differ is not."""
        found = self.figure(change)
        if found is None or not (found < self.share if self.is_below else found > self.share):
            return False
        return self.what in ("load", "memory") or change.verdict != "same"

    def figure(self, change: Change) -> float | None:
        """What the limit is about; None where the change has no such figure."""
        if self.what == "load":
            return change.load_change
        if self.what == "memory":
            return change.memory_change
        return change.change if self.what in ("any", change.kind, change.test.lower().replace(" ", "")) else None


def parse_limit(text: str) -> Limit:
    """One limit. Raises UsageError for anything else."""
    found = _LIMIT.match(text)
    what = found[1].lower().replace(" ", "") if found else ""
    if not found or not (what in _KINDS or (what and _TEST.match(what))):
        raise UsageError(
            f"{text!r} is not a limit", hint="write it like tg<-5%, pp512<-3%, any<-10%, load>20% or memory>10%"
        )
    return Limit(text.strip(), what, found[2] == "<", float(found[3]) / 100)


def require_figures(limits: Sequence[Limit], changes: Sequence[Change]) -> None:
    """Raise UsageError for a limit on what neither run has: a script would take silence for a pass."""
    for limit in limits:
        if all(limit.figure(change) is None for change in changes):
            raise UsageError(
                f"{limit.text} is about nothing that is in both runs",
                hint="tests in both: " + (", ".join(dict.fromkeys(change.test for change in changes)) or "none"),
            )


def missed(limits: Sequence[Limit], changes: Sequence[Change]) -> list[tuple[Limit, Change]]:
    """Every limit with every change that is past it."""
    return [(limit, change) for limit in limits for change in changes if limit.missed_by(change)]
