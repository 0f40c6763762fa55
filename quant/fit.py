"""Chooses a type for every tensor under a size, best answers first, and finds the plain type to beat.

The cost of a choice is the divergence it should bring: for each tensor its sensitivity times the error of its type,
both measured on this model. What comes out is a list of rules, as if the user had written --tensor-type for each.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.units import format_bytes, size_to_type
from llmcli.quant.budget import Option, choose
from llmcli.quant.child import Child
from llmcli.quant.plan import Plan, PlannedTensor
from llmcli.quant.request import QuantizeRequest
from llmcli.quant.rules import CHOSEN, TensorRule
from llmcli.quant.run import Listener, Source, make_plan
from llmcli.quant.sensitivity import Sensitivity
from llmcli.quant.tensor_errors import TensorErrors
from llmcli.quant.types import (
    FLOAT_TYPES,
    NEED_IMATRIX,
    TARGET_TYPES,
    USUAL_TYPES,
    TargetType,
    bits_per_weight,
    fits,
    nbytes,
    parse_target,
)
from llmcli.quant.weights import ChosenWeights

# What a tensor may become, from the largest down.
CANDIDATES = (*USUAL_TYPES, "IQ2_S", "IQ2_XS", "IQ2_XXS")
_SELDOM_IN_A_MATRIX = frozenset({"token_embd.weight", "output.weight"})
_WIDEST, _HEADER_SPARE_BYTES, _NEAR = 4.5, 8 << 10, 0.8
_PLAIN = tuple(t for t in TARGET_TYPES if t.quantizes and t.name not in {"Q1_0", "Q2_0", "TQ1_0", "TQ2_0", "MXFP4_MOE"})
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


class Unheard:
    """A listener whose user does not hear of plans that are only tried."""

    def __init__(self, listener: Listener) -> None:
        self.native_log, self.begin = listener.native_log, listener.begin

    def notify(self, line: str) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What any plan should cost: its predicted divergence from the source."""

    errors: TensorErrors
    sensitivity: Sensitivity

    def tensor(self, name: str, tensor_type: str) -> float:
        """The share of one tensor."""
        return self.sensitivity.of(name) * self.errors.error(name, tensor_type)

    def plan(self, plan: Plan) -> float:
        """The sum over the tensors that change."""
        changed = [t for t in plan.tensors if t.changes]
        self.errors.measure((t.name, [t.target_type]) for t in changed)
        return sum(self.tensor(t.name, t.target_type) for t in changed)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A choice: the request with its rules, the plan that llama.cpp makes of it, its predicted divergence."""

    request: QuantizeRequest
    plan: Plan
    predicted_kld: float


def free_tensors(child: Child, source: Source, request: QuantizeRequest, listener: Listener) -> Plan:
    """What may be chosen: the plan of Q8_0 for all, whose tensors of that type without a rule are free."""
    quiet = replace(request, allow_requantize=True, no_fallback=False, imatrix=None)
    return make_plan(child, source, parse_target("Q8_0"), replace(quiet, pure=True), None, Unheard(listener))


def is_free(tensor: PlannedTensor, request: QuantizeRequest) -> bool:
    """Whether no option or rule of the user's has settled the tensor, and it is quantized at all."""
    settled = (tensor.name == "output.weight" and request.output_tensor_type) or (
        tensor.name == "token_embd.weight" and request.token_embedding_type
    )
    return not settled and tensor.rule is None and (tensor.wanted_type == "Q8_0" or tensor.target_type == "Q8_0")


def options_of(tensor: PlannedTensor, costs: Costs, names: Sequence[str]) -> list[Option]:
    """These types for a tensor, with sizes and costs."""
    width, rows = tensor.shape[0], tensor.elements // tensor.shape[0]
    return [Option(name, nbytes(name, width, rows), costs.tensor(tensor.name, name)) for name in names]


def usable_types(tensor: PlannedTensor, bpw: float, allowed: Sequence[str], *, matrix: bool) -> list[str]:
    """The candidates that fit the rows, are not far from the size that is wanted, and do not need a matrix in vain.

    The tensor's own type is one of them: it costs nothing.
    matrix   the tensor has an entry in an importance matrix
    """
    found = [
        name
        for name in allowed
        if fits(name, tensor.shape[0])
        and (matrix or name not in NEED_IMATRIX)
        and bpw - 2.5 <= bits_per_weight(name)
        and (bits_per_weight(name) <= bpw + _WIDEST or name == "Q8_0")
        and bits_per_weight(name) <= bits_per_weight(tensor.source_type)
    ]
    return list(dict.fromkeys([*found, tensor.source_type]))


def fit(
    child: Child,
    source: Source,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    costs: Costs,
    free: Plan,
    budget_bytes: int,
    allowed: Sequence[str],
    listener: Listener,
) -> Fitted:
    """The best types within `budget_bytes` of tensor data. Raises UsageError where nothing is small enough."""
    chosen = [tensor for tensor in free.tensors if is_free(tensor, request)]
    fixed = sum(tensor.target_bytes for tensor in free.tensors if not is_free(tensor, request))
    entries = weights.values if weights else {}

    def usable_within(budget_bytes: int) -> dict[str, list[str]]:
        elements = sum(tensor.elements for tensor in chosen)
        bpw = (budget_bytes - fixed) * 8 / elements if elements else 0.0
        return {t.name: usable_types(t, bpw, allowed, matrix=t.name in entries) for t in chosen}

    least = _least_budget(chosen, fixed, usable_within, budget_bytes)
    if least > budget_bytes:
        whole, bits = least + _beside_tensors(source, free), math.ceil(least * 800 / free.elements) / 100
        raise UsageError(
            "these types make no model so small",
            hint=f"the least is --fit {size_to_type(whole)}, or --bpw {bits:g}",
        )
    usable = usable_within(budget_bytes)
    costs.errors.measure(usable.items())
    options = {tensor.name: options_of(tensor, costs, usable[tensor.name]) for tensor in chosen}
    found = choose(options, budget_bytes - fixed)
    if found is None:
        raise AssertionError("the least budget was found to be within this one")
    fitted = replace(request, rules=(*request.rules, *rules_for(found)), pure=False)
    plan = make_plan(child, source, _base(chosen, found), fitted, weights, Unheard(listener))
    return Fitted(fitted, plan, costs.plan(plan))


def _least_budget(
    chosen: Sequence[PlannedTensor], fixed: int, usable_within: Callable[[int], dict[str, list[str]]], start: int
) -> int:
    """The least budget from `start` on that the smallest usable types fit: with a larger one some may go."""
    while True:
        usable = usable_within(start)
        least = fixed + sum(
            min(nbytes(name, t.shape[0], t.elements // t.shape[0]) for name in usable[t.name]) for t in chosen
        )
        if least <= start:
            return start
        start = least


def require_possible(
    source: Source, request: QuantizeRequest, free: Plan, *, file_bytes: int | None, bpw: float | None
) -> None:
    """Raise UsageError for a goal below the least size there is, which the header tells before anything is measured."""
    least, sure = (
        sum(_least_bytes(t, without_entry) if is_free(t, request) else t.target_bytes for t in free.tensors)
        for without_entry in (frozenset[str](), _SELDOM_IN_A_MATRIX)
    )
    if bpw is not None and least > budget(source, free, file_bytes=None, bpw=bpw):
        bits = math.ceil(least * 800 / free.elements) / 100
        raise UsageError(
            f"{bpw:g} bits per weight are too few: this model takes {bits:g} at the least",
            hint=f"--bpw {math.ceil(sure * 800 / free.elements) / 100:g}",
        )
    whole = least + _beside_tensors(source, free)
    if file_bytes is not None and whole > file_bytes:
        raise UsageError(
            f"{format_bytes(file_bytes)} is too small: the least that this model takes is {format_bytes(whole)}",
            hint=f"--fit {size_to_type(sure + _beside_tensors(source, free))}",
        )


def _least_bytes(tensor: PlannedTensor, without_entry: Collection[str]) -> int:
    """The size of a free tensor in the smallest type it can have; some have no entry in an importance matrix."""
    width, rows = tensor.shape[0], tensor.elements // tensor.shape[0]
    usable = (name for name in CANDIDATES if tensor.name not in without_entry or name not in NEED_IMATRIX)
    names = [*(name for name in usable if fits(name, width)), tensor.source_type]
    return min(nbytes(name, width, rows) for name in names)


def _base(tensors: Sequence[PlannedTensor], found: Mapping[str, Option]) -> TargetType:
    """The type that the file is labelled with: the mix of the type that most weights have."""
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[found[tensor.name].tensor_type] += tensor.elements
    common = [name for name, _ in counts.most_common() if name not in FLOAT_TYPES]
    mixes = {target.tensor_type: target for target in reversed(_PLAIN)}
    return next((mixes[name] for name in common if name in mixes), parse_target("Q8_0"))


def rules_for(found: Mapping[str, Option]) -> list[TensorRule]:
    """Rules that give exactly these tensors these types: one for each kind of tensor and type."""
    layers: dict[tuple[str, str], list[str]] = {}
    rules: list[TensorRule] = []
    for name, option in found.items():
        if layer := _LAYER.fullmatch(name):
            layers.setdefault((layer[2], option.tensor_type), []).append(layer[1])
        else:
            rules.append(_rule(f"^{re.escape(name)}$", option.tensor_type))
    for (rest, tensor_type), numbers in layers.items():
        rules.append(_rule(rf"^blk\.({'|'.join(numbers)})\.{re.escape(rest)}$", tensor_type))
    return rules


def _rule(pattern: str, tensor_type: str) -> TensorRule:
    return TensorRule(pattern, tensor_type, f"{CHOSEN}{pattern}={tensor_type.lower()}")


@dataclass(frozen=True, slots=True)
class Plain:
    """A type that everybody could take: its plan and predicted divergence."""

    target: TargetType
    plan: Plan
    predicted_kld: float


def plain_types(
    child: Child,
    source: Source,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    costs: Costs,
    listener: Listener,
    targets: Sequence[TargetType] = _PLAIN,
    *,
    most_bytes: int | None = None,
) -> list[Plain]:
    """The plain types that this model can be quantized to, with what they should cost.

    most_bytes   of tensor data: only types that stay within it and come near it, of which the error is worth measuring
    """
    found, unheard = [], Unheard(listener)
    for target in targets:
        try:
            plan = make_plan(child, source, target, replace(request, no_fallback=False), weights, unheard)
        except LlmcliError:
            continue  # needs a matrix, or has no type for these rows
        found.append((target, plan))
    if most_bytes is not None:
        within = [(target, plan) for target, plan in found if plan.target_bytes <= most_bytes]
        near = _NEAR * max((plan.target_bytes for _, plan in within), default=0)
        found = [(target, plan) for target, plan in within if plan.target_bytes >= near]
    costs.errors.measure((t.name, [t.target_type]) for _, plan in found for t in plan.tensors if t.changes)
    return [Plain(target, plan, costs.plan(plan)) for target, plan in found]


def lasting_types() -> tuple[TargetType, ...]:
    """The plain types that a model is still itself in: from 3 bits up."""
    return tuple(target for target in _PLAIN if target.bits >= 3)


def best_plain(found: Sequence[Plain], budget_bytes: int) -> Plain | None:
    """The one to beat: of those within the size the one that should be best."""
    within = [plain for plain in found if plain.plan.target_bytes <= budget_bytes]
    return min(within, key=lambda plain: plain.predicted_kld) if within else None


def budget(source: Source, free: Plan, *, file_bytes: int | None, bpw: float | None) -> int:
    """The bytes of tensor data that a size of the file, or bits per weight, leave. Raises UsageError for too few."""
    if bpw is not None:
        return int(bpw * free.elements / 8)
    left = (file_bytes or 0) - _beside_tensors(source, free)
    if left <= 0:
        raise UsageError(
            f"{format_bytes(file_bytes or 0)} is less than the vocabulary and metadata of this model take",
            hint="a larger --fit",
        )
    return left


def _beside_tensors(source: Source, free: Plan) -> int:
    """What a file holds besides tensor data, padding included."""
    return source.header_bytes + 32 * len(free.tensors) + _HEADER_SPARE_BYTES
