"""What a plan comes to, as rows, sentences and JSON: sizes by type, and what the shapes of tensors forced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmcli.base.units import format_bytes, format_count
from llmcli.quant.plan import Plan, PlannedTensor
from llmcli.quant.rules import CHOSEN
from llmcli.quant.run import Outcome


@dataclass(frozen=True, slots=True)
class Group:
    """All tensors that have one type in the output."""

    tensor_type: str
    tensors: int
    elements: int
    source_bytes: int
    target_bytes: int

    @property
    def bpw(self) -> float:
        """Bits per weight after."""
        return self.target_bytes * 8 / self.elements


def groups(plan: Plan) -> tuple[Group, ...]:
    """The types of the output, the one with the most weights first."""
    by_type: dict[str, list[PlannedTensor]] = {}
    for tensor in plan.tensors:
        by_type.setdefault(tensor.target_type, []).append(tensor)
    found = (_group(name, tensors) for name, tensors in by_type.items())
    return tuple(sorted(found, key=lambda group: -group.elements))


def _group(name: str, tensors: Sequence[PlannedTensor]) -> Group:
    return Group(
        name,
        len(tensors),
        sum(tensor.elements for tensor in tensors),
        sum(tensor.source_bytes for tensor in tensors),
        sum(tensor.target_bytes for tensor in tensors),
    )


def table_lines(plan: Plan) -> list[str]:
    """The groups and their sum, in columns."""
    rows: list[tuple[str, ...]] = [("type", "tensors", "weights", "before", "after", "bpw")]
    rows += [_cells(g.tensor_type, g.tensors, g.elements, g.source_bytes, g.target_bytes, g.bpw) for g in groups(plan)]
    rows.append(_cells("all", len(plan.tensors), plan.elements, plan.source_bytes, plan.target_bytes, plan.bpw))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _cells(name: str, tensors: int, elements: int, before: int, after: int, bpw: float) -> tuple[str, ...]:
    return name, f"{tensors:,}", f"{elements:,}", format_bytes(before), format_bytes(after), f"{bpw:.2f}"


def fallback_line(plan: Plan, *, done: bool) -> str | None:
    """What became, or would become, another type because of its shape, in one sentence; None where nothing does."""
    if not plan.fallbacks:
        return None
    pairs = Counter((t.wanted_type, t.target_type) for t in plan.fallbacks).most_common()
    shown = ", ".join(f"{wanted} -> {got} ({count})" for (wanted, got), count in pairs)
    its = "its" if len(plan.fallbacks) == 1 else "their"
    return (
        f"{format_count(len(plan.fallbacks), 'tensor')} ({plan.fallback_share:.0%} of the weights) "
        f"{'became' if done else 'would become'} another type because of {its} shape: {shown}"
    )


def rule_lines(plan: Plan) -> list[str]:
    """What each --tensor-type of the user did."""
    rules = ((t.rule, t.target_type) for t in plan.tensors if t.rule is not None)
    counts = Counter(rule for rule in rules if not rule[0].startswith(CHOSEN))
    return [
        f"--tensor-type {rule}: {format_count(count, 'tensor')} as {name}" for (rule, name), count in counts.items()
    ]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """One output, with stable names."""
    plan = outcome.plan
    return {
        "type": plan.target.name,
        "path": str(outcome.target.first),
        "paths": [str(file) for file in outcome.target.files],
        "written": outcome.seconds is not None,
        "file_bytes": outcome.file_bytes,
        "tensor_bytes_before": plan.source_bytes,
        "tensor_bytes": plan.target_bytes,
        "weights": plan.elements,
        "bpw": plan.bpw,
        "quantize_s": outcome.seconds,
        "groups": [
            {
                "type": g.tensor_type,
                "tensors": g.tensors,
                "weights": g.elements,
                "bytes_before": g.source_bytes,
                "bytes": g.target_bytes,
                "bpw": g.bpw,
            }
            for g in groups(plan)
        ],
        "fallback": {
            "tensors": len(plan.fallbacks),
            "weights_share": plan.fallback_share,
            "list": [{"name": t.name, "wanted": t.wanted_type, "type": t.target_type} for t in plan.fallbacks],
        },
        "rules": [{"name": t.name, "rule": t.rule, "type": t.target_type} for t in plan.tensors if t.rule is not None],
    }
