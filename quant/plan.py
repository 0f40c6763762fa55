"""What becomes of each tensor: read from llama.cpp's log of a dry run, so that it is what llama.cpp will do.

The choice of types is llama.cpp's and is not repeated here; sizes are worked out exactly, since the log rounds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.text import printable
from llmcli.models.gguf_types import TYPE_IDS
from llmcli.quant.rules import TensorRule, first_match
from llmcli.quant.types import TargetType, fits, nbytes

# [   3/ 272] blk.0.attn_k.weight  - [   576,    192,      1,      1], type =   q4_1, size = 0.07 MiB -> 0.07 MiB (q5_0)
_TENSOR = re.compile(
    r"\[ *\d+/ *\d+\] (.*) - \[([\d, ]+)\], type = +(\S+), size = +[\d.]+ MiB(?: -> +[\d.]+ MiB \((\S+)\))?\s*\Z"
)
_FALLBACK = re.compile(
    r"warning: (.*) - ncols +\d+ not divisible by +\d+ \(required for type +(\S+)\) .*-> falling back to +(\S+)\s*\Z"
)
_OUTPUT, _EMBEDDING = "output.weight", "token_embd.weight"
# Of these the output becomes Q5_K, of the others Q6_K (llama_tensor_get_type_impl).
_OUTPUT_Q5_K = frozenset({"IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ1_S", "IQ1_M"})
_ALIGNMENT_BYTES = 32  # llama.cpp writes with this one, whatever the source has
_HEADER_SPARE_BYTES = 64 << 10  # keys that are added: overrides, provenance


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of the output.

    shape        ggml order, rows first: shape[0] is the width
    wanted_type  what the mix or a rule asked for; another than `target_type` where the width does not allow it
    rule         what the user wrote, where a rule of theirs decided
    """

    name: str
    shape: tuple[int, ...]
    source_type: str
    target_type: str
    wanted_type: str
    rule: str | None = None

    @property
    def elements(self) -> int:
        """How many weights it holds."""
        return self.shape[0] * self._rows

    @property
    def _rows(self) -> int:
        rows = 1
        for size in self.shape[1:]:
            rows *= size
        return rows

    @property
    def source_bytes(self) -> int:
        """Its size now."""
        return nbytes(self.source_type, self.shape[0], self._rows)

    @property
    def target_bytes(self) -> int:
        """Its size then."""
        return nbytes(self.target_type, self.shape[0], self._rows)

    @property
    def changes(self) -> bool:
        """False where it is copied."""
        return self.source_type != self.target_type

    @property
    def fell_back(self) -> bool:
        """Whether its shape forced another type than the one that was asked for."""
        return self.wanted_type != self.target_type


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do, in llama.cpp's order."""

    target: TargetType
    tensors: tuple[PlannedTensor, ...]

    @property
    def elements(self) -> int:
        """Weights in all."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def source_bytes(self) -> int:
        """Tensor data before."""
        return sum(tensor.source_bytes for tensor in self.tensors)

    @property
    def target_bytes(self) -> int:
        """Tensor data after."""
        return sum(tensor.target_bytes for tensor in self.tensors)

    @property
    def bpw(self) -> float:
        """Bits per weight after, over all tensors."""
        return self.target_bytes * 8 / self.elements if self.elements else 0.0

    @property
    def fallbacks(self) -> tuple[PlannedTensor, ...]:
        """The tensors whose shape forced another type."""
        return tuple(tensor for tensor in self.tensors if tensor.fell_back)

    @property
    def fallback_share(self) -> float:
        """The share of all weights in those."""
        return sum(tensor.elements for tensor in self.fallbacks) / self.elements if self.elements else 0.0

    @property
    def requantized(self) -> tuple[PlannedTensor, ...]:
        """The tensors that lose twice: quantized already, and to be quantized to another type."""
        floats = ("F32", "F16", "BF16")
        return tuple(t for t in self.tensors if t.changes and t.source_type not in floats)

    def file_bytes(self, header_bytes: int) -> int:
        """At most this many bytes of output, given the size of the source's header."""
        padded = sum(-(-tensor.target_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for tensor in self.tensors)
        return padded + header_bytes + _HEADER_SPARE_BYTES


def read_plan(lines: Iterable[str], target: TargetType) -> Plan:
    """The plan that the log lines of a dry run tell. Raises LlmcliError where they tell none."""
    tensors: list[PlannedTensor] = []
    wanted: dict[str, str] = {}
    for line in lines:
        if found := _TENSOR.match(line):
            tensors.append(_tensor(found))
        elif found := _FALLBACK.match(line):
            wanted[found[1].rstrip()] = found[2].upper()
    if not tensors:
        raise LlmcliError("llama.cpp told no plan for this model", hint="-v shows its log")
    return Plan(target, tuple(replace(t, wanted_type=wanted.get(t.name, t.wanted_type)) for t in tensors))


def _tensor(found: re.Match[str]) -> PlannedTensor:
    shape = tuple(int(size) for size in found[2].split(","))
    source, target = found[3].upper(), (found[4] or found[3]).upper()
    if source not in TYPE_IDS or target not in TYPE_IDS:
        raise LlmcliError(f"llama.cpp names a type that is not known here: {printable(found[0])}")
    return PlannedTensor(found[1].rstrip(), shape, source, target, target)


def with_narrow_output(plan: Plan, *, pure: bool, output_type: str | None) -> Plan:
    """The plan with one more fallback told, which llama.cpp makes without a word.

    The output matrix (or the embeddings, where they are the output too) becomes Q6_K or Q5_K, and Q8_0 where its rows
    do not fit the type of the others.
    """
    names = {tensor.name for tensor in plan.tensors}
    name = _OUTPUT if _OUTPUT in names else _EMBEDDING
    target = plan.target
    if pure or output_type or not target.quantizes or target.tensor_type in {"Q8_0", "MXFP4"}:
        return plan
    wanted = "Q5_K" if target.name in _OUTPUT_Q5_K else "Q6_K"
    return replace(plan, tensors=tuple(_narrow(t, wanted, target) if t.name == name else t for t in plan.tensors))


def _narrow(tensor: PlannedTensor, wanted: str, target: TargetType) -> PlannedTensor:
    """Only where the type is not a rule's doing: then Q8_0 was asked for."""
    silent = tensor.target_type == tensor.wanted_type == "Q8_0" and tensor.rule is None
    return replace(tensor, wanted_type=wanted) if silent and not fits(target.tensor_type, tensor.shape[0]) else tensor


def with_rules(plan: Plan, rules: Sequence[TensorRule], *, outranked: frozenset[str]) -> Plan:
    """The plan with the rule that decided each tensor.

    outranked  tensors whose type another option gives
    Raises UsageError for a rule that decides nothing (it would change nothing, and nobody would notice), LlmcliError
    where llama.cpp reads a pattern in another way than it is read here.
    """
    used: set[str] = set()
    tensors = []
    for tensor in plan.tensors:
        rule = first_match(rules, tensor.name)
        if rule and tensor.name not in outranked and _may_change(tensor):
            if tensor.wanted_type == rule.tensor_type:
                used.add(rule.source)
                tensors.append(replace(tensor, rule=rule.source))
                continue
            if tensor.changes:
                raise LlmcliError(
                    f"llama.cpp reads the pattern of {printable(rule.source)!r} in another way: {tensor.name} would "
                    f"become {tensor.wanted_type}",
                    hint="write it without classes such as [[:alpha:]]",
                )
        tensors.append(tensor)
    _require_used(rules, used, plan)
    return replace(plan, tensors=tuple(tensors))


def _may_change(tensor: PlannedTensor) -> bool:
    return sum(size > 1 for size in tensor.shape) > 1 and tensor.name.endswith("weight")


def _require_used(rules: Sequence[TensorRule], used: set[str], plan: Plan) -> None:
    for rule in rules:
        if rule.source in used:
            continue
        found = [tensor.name for tensor in plan.tensors if rule.matches(tensor.name)]
        if found and _is_shadowed(rule, rules, found):
            continue
        if not found:
            why = "fits no tensor of this model"
        else:
            why = f"fits only tensors that are not quantized or have a type by another option, such as {found[0]}"
        raise UsageError(
            f"--tensor-type {printable(rule.source)!r} {printable(why)}",
            hint="llmcli quantize --dry-run -v lists the tensors",
        )


def _is_shadowed(rule: TensorRule, rules: Sequence[TensorRule], names: Iterable[str]) -> bool:
    return all(first_match(rules, name) is not rule for name in names)


def shadowed(plan: Plan, rules: Sequence[TensorRule]) -> tuple[TensorRule, ...]:
    """The rules that decide nothing, because rules before them fit the same tensors."""
    names = [tensor.name for tensor in plan.tensors]
    return tuple(rule for rule in rules if _is_shadowed(rule, rules, [name for name in names if rule.matches(name)]))
