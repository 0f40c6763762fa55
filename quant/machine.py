"""`--for-this-machine`: which type to take where size, quality and this CPU's speed all count, and why.

The rule is plain, so that it can be told: no worse than Q4_K_M should be, then the one that answers soonest, and among
those within a twentieth of it the smallest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from llmcli.base.errors import LlmcliError
from llmcli.base.units import format_bytes, format_seconds
from llmcli.quant.fit import Plain
from llmcli.quant.plan import Plan
from llmcli.quant.rates import ANSWER_TOKENS, PROMPT_TOKENS, Estimate, Rates, estimate

_YARDSTICK = "Q4_K_M"
_AS_GOOD, _AS_QUICK = 1.1, 1.05


@dataclass(frozen=True, slots=True)
class Judged:
    """A plain type with what it should cost and gain here."""

    plain: Plain
    speed: Estimate


@dataclass(frozen=True, slots=True)
class Choice:
    """The type to take, and all that were weighed, the quickest first."""

    best: Judged
    judged: tuple[Judged, ...]
    most_kld: float

    def lines(self) -> list[str]:
        """Why, in sentences, below a table of what was weighed."""
        rows = [("type", "size", "predicted divergence", f"{PROMPT_TOKENS} in, {ANSWER_TOKENS} out")]
        rows += [_row(judged) for judged in self.judged]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        table = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        why = (
            f"{self.best.plain.target.name}: of the types that should be no worse than {_YARDSTICK} (divergence up to "
            f"{self.most_kld:.4f}) the quickest on this CPU, or the smallest within 5% of it"
        )
        return [*table, why]


def _row(judged: Judged) -> tuple[str, str, str, str]:
    plain = judged.plain
    size = format_bytes(plain.plan.target_bytes)
    return plain.target.name, size, f"{plain.predicted_kld:.4f}", format_seconds(judged.speed.answer_s)


def weights_by_type(plan: Plan) -> Counter[str]:
    """How many weights of the output each type has."""
    counts: Counter[str] = Counter()
    for tensor in plan.tensors:
        counts[tensor.target_type] += tensor.elements
    return counts


def choose_for_machine(found: Sequence[Plain], rates: Rates) -> Choice:
    """Weigh these types. Raises LlmcliError where none has a rate."""
    judged = []
    for plain in found:
        weights = weights_by_type(plain.plan)
        unknown = sum(count for name, count in weights.items() if name not in rates and name != "F32")
        speed = estimate(weights, rates)
        if speed is not None and unknown == 0:
            judged.append(Judged(plain, speed))
    if not judged:
        raise LlmcliError("no type that this model can have was measured on this CPU")
    yardstick = next((j.plain.predicted_kld for j in judged if j.plain.target.name == _YARDSTICK), None)
    least = min(j.plain.predicted_kld for j in judged)
    most = max(_AS_GOOD * yardstick, least) if yardstick is not None else 2 * least
    good = [j for j in judged if j.plain.predicted_kld <= most]
    quickest = min(j.speed.answer_s for j in good)
    quick = [j for j in good if j.speed.answer_s <= _AS_QUICK * quickest]
    best = min(quick, key=lambda j: (j.plain.plan.target_bytes, j.plain.predicted_kld))
    return Choice(best, tuple(sorted(judged, key=lambda j: j.speed.answer_s)), most)
