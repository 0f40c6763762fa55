"""Quantizing from end to end: look at the source, plan every type, check, then do one after the other.

Nothing is written before all plans are made and all checks have passed. Each output is made in a temporary folder,
read back and compared with its plan, and then gets its name in one step.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from llmcli.base.errors import LlmcliError, ModelError, UsageError
from llmcli.base.text import printable
from llmcli.base.units import format_count
from llmcli.models.check import check_model
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_header import GgufHeader, read_header
from llmcli.models.gguf_source import shown
from llmcli.models.gguf_types import GGML_TYPES
from llmcli.models.shards import read_shards
from llmcli.quant.child import Child, Job
from llmcli.quant.place import (
    Target,
    check_space,
    check_target,
    new_file_mode,
    publish,
    why_writing_failed,
    work_folder,
)
from llmcli.quant.plan import Plan, read_plan, shadowed, with_narrow_output, with_rules
from llmcli.quant.request import QuantizeRequest, check_layers, native_settings
from llmcli.quant.rules import CHOSEN, TensorRule
from llmcli.quant.types import TargetType, fits, needs_imatrix, suffers_without_imatrix
from llmcli.quant.weights import ChosenWeights

_PREFIXES = ("llama_model_quantize: ", "failed to quantize: ")
_NO_FALLBACK = "no tensor type fallback is defined for type"
_OUTPUT, _EMBEDDING = "output.weight", "token_embd.weight"
_SEVERAL = "name a folder, or put {type} into the name"


class Listener(Protocol):
    """Who is told what happens."""

    def notify(self, line: str) -> None:
        """One line that the user should read."""

    def native_log(self, level: int, line: str) -> None:
        """One line of llama.cpp's log."""

    def begin(self, plan: Plan) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """Shows a run; what it gives is told how many tensors are done."""


@dataclass(frozen=True, slots=True)
class Source:
    """The model to quantize: `named` is what the user wrote, `path` its file or first part."""

    path: Path
    named: str
    facts: ModelFacts
    headers: tuple[GgufHeader, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """All its files."""
        return tuple(header.path for header in self.headers)

    @property
    def header_bytes(self) -> int:
        """What is not tensor data, in all files."""
        return sum(header.data_offset for header in self.headers)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {tensor.name: tensor.shape for header in self.headers for tensor in header.tensors}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One output. `seconds` is the time in llama.cpp; None where nothing was written (a dry run)."""

    plan: Plan
    target: Target
    file_bytes: int
    seconds: float | None


def open_source(path: Path, named: str) -> Source:
    """Check the model, all its parts. Raises ModelError for what is no language model, cut off, or hostile."""
    facts = check_model(path, need_vocabulary=False)
    return Source(path, named, facts, read_shards(read_header(path)))


def make_plan(
    child: Child,
    source: Source,
    target: TargetType,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    listener: Listener,
) -> Plan:
    """What quantizing to `target` would do. Raises LlmcliError where it may not be done."""
    _check_request(source, target, request)
    lines: list[str] = []

    def keep(level: int, line: str) -> None:
        lines.append(line)
        listener.native_log(level, line)

    try:
        child.run(_job(source, source.path, target, request, weights, dry_run=True), keep)
    except LlmcliError as error:
        if rule := _refused_rule(child, source, target, request, weights, error):
            raise UsageError(
                f"llama.cpp cannot read the expression of --tensor-type {printable(rule.source)}: "
                f"{printable(_without_prefix(error.message))}"
            ) from None
        raise _in_words(error) from None
    plan = read_plan(lines, target)
    plan = with_rules(plan, request.rules, outranked=_outranked(request))
    for rule in shadowed(plan, request.rules):
        listener.notify(f"--tensor-type {printable(rule.source)} decides nothing: rules before it fit its tensors")
    plan = with_narrow_output(plan, pure=request.pure, output_type=request.output_tensor_type)
    _check_plan(plan, source, request, weights, listener)
    return plan


def _refused_rule(
    child: Child,
    source: Source,
    target: TargetType,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    error: LlmcliError,
) -> TensorRule | None:
    """The user's rule whose expression Python reads and llama.cpp does not: what it says names none."""

    def fails(count: int) -> bool:
        some = replace(request, rules=request.rules[:count])
        try:
            child.run(_job(source, source.path, target, some, weights, dry_run=True), lambda _level, _line: None)
        except LlmcliError:
            return True
        return False

    if not request.rules or _NO_FALLBACK in error.message or fails(0):
        return None
    # All rules are read before any is used, so the first bad one is the last of the shortest list that fails.
    count = bisect.bisect_left(range(len(request.rules)), True, lo=1, key=fails)
    rule = request.rules[count - 1]
    return None if rule.source.startswith(CHOSEN) else rule


def _job(
    source: Source,
    target: Path,
    kind: TargetType,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    *,
    dry_run: bool,
    folder: Path | None = None,
) -> Job:
    return Job(
        source=source.path,
        target=target,
        settings=native_settings(request, kind, weights.provenance() if weights else (), dry_run=dry_run),
        imatrix=weights.path if weights and weights.values else None,
        include=request.include,
        exclude=request.exclude,
        folder=folder,
    )


def _outranked(request: QuantizeRequest) -> frozenset[str]:
    names = {_EMBEDDING: request.token_embedding_type, _OUTPUT: request.output_tensor_type}
    return frozenset(name for name, chosen in names.items() if chosen)


def _check_request(source: Source, target: TargetType, request: QuantizeRequest) -> None:
    """What llama.cpp would answer with silence or an abort."""
    if request.prune_layers:
        check_layers(request.prune_layers, source.facts.n_layer)
    if target.copies and (request.rules or request.output_tensor_type or request.token_embedding_type):
        raise UsageError("COPY leaves every tensor as it is, so no type can be given for one")
    chosen = {_EMBEDDING: request.token_embedding_type, _OUTPUT: request.output_tensor_type}
    for name, tensor_type in chosen.items():
        shape = source.shapes.get(name)
        if tensor_type and shape and not fits(tensor_type, shape[0]):
            raise UsageError(f"{tensor_type} does not fit {name}: its rows have {shape[0]} weights")


def _check_plan(
    plan: Plan, source: Source, request: QuantizeRequest, weights: ChosenWeights | None, listener: Listener
) -> None:
    if plan.requantized and not request.allow_requantize:
        pairs = Counter((tensor.source_type, tensor.target_type) for tensor in plan.requantized)
        (before, after), _ = pairs.most_common(1)[0]
        raise LlmcliError(
            f"{printable(source.named)} is quantized already: {before} to {after} would lose twice "
            f"({len(plan.requantized)} of {format_count(len(plan.tensors), 'tensor')})",
            hint="start from an F16 or BF16 file of the model, or --allow-requantize",
        )
    if plan.fallbacks and request.no_fallback:
        first = plan.fallbacks[0]
        raise LlmcliError(
            f"{format_count(len(plan.fallbacks), 'tensor')} ({plan.fallback_share:.0%} of the weights) cannot be "
            f"{first.wanted_type}: {printable(first.name)} has rows of {first.shape[0]} and would become "
            f"{first.target_type}",
            hint="another type, or leave out --no-fallback",
        )
    _check_weights(plan, request, weights, listener)


def _check_weights(plan: Plan, request: QuantizeRequest, weights: ChosenWeights | None, listener: Listener) -> None:
    """A type that needs an importance matrix has one, for every tensor."""
    if plan.target.copies:
        return
    have = None if weights is None or not weights.values else weights.values
    renamed = bool(request.prune_layers)  # the names in the plan are then not those in the matrix
    for tensor in plan.tensors:
        if not needs_imatrix(tensor.name, tensor.target_type, plan.target):
            continue
        if have is None or (not renamed and tensor.changes and tensor.name not in have):
            where = "without an importance matrix" if have is None else "without an entry in the importance matrix"
            raise LlmcliError(
                f"{plan.target.name} makes noise of {printable(tensor.name)} ({tensor.target_type}) {where}",
                hint="--imatrix auto, or --imatrix FILE from llmcli imatrix",
            )
    if have is None and suffers_without_imatrix(plan.target):
        listener.notify(f"{plan.target.name} is clearly better with an importance matrix: --imatrix auto")
    elif have is not None and not renamed:
        lacking = [t for t in plan.tensors if t.changes and t.name not in have and t.name not in (_EMBEDDING, _OUTPUT)]
        if lacking:
            listener.notify(
                f"{len(lacking)} of {format_count(len(plan.tensors), 'tensor')} have no entry in the importance "
                f"matrix, such as {printable(lacking[0].name)}"
            )


def check_room(plans: Sequence[tuple[Plan, Target]], source: Source) -> None:
    """Raise ResourceError where a disk has no room for all that goes there."""
    needed: dict[Path, int] = {}
    for plan, target in plans:
        needed[target.folder] = needed.get(target.folder, 0) + plan.file_bytes(source.header_bytes)
    for folder, nbytes in needed.items():
        check_space(folder, nbytes)


def check_targets(targets: Sequence[Target], source: Source, others: Sequence[Path] = ()) -> None:
    """Refuse outputs that are inputs, twice the same, there already, or nowhere. Raises LlmcliError."""
    seen: set[Path] = set()
    for target in targets:
        check_target(target, (*source.files, *others))
        if seen.intersection(target.files):
            raise UsageError(
                f"{printable(str(target.first))} would be written twice",
                hint="name a folder, or put {type} into the name",
            )
        seen.update(target.files)


def carry_out(
    child: Child,
    source: Source,
    plan: Plan,
    target: Target,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    listener: Listener,
) -> Outcome:
    """Quantize one type. Raises LlmcliError; then there is no file that was not there before."""
    with work_folder(target) as folder:
        made, seconds = make(child, source, plan, target, request, weights, listener, folder)
        publish(made, target, mode=new_file_mode())
    return Outcome(plan, target, sum(file.stat().st_size for file in target.files), seconds)


def make(
    child: Child,
    source: Source,
    plan: Plan,
    target: Target,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    listener: Listener,
    folder: Path,
) -> tuple[tuple[Path, ...], float]:
    """The finished files of one type, in `folder`, and the seconds it took in llama.cpp."""
    seconds = _quantize(child, source, plan, target, request, weights, listener, folder)
    made = tuple(folder / file.name for file in target.files)
    _read_back(made, plan)
    return made, seconds


def _quantize(
    child: Child,
    source: Source,
    plan: Plan,
    target: Target,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    listener: Listener,
    folder: Path,
) -> float:
    job = _job(source, folder / target.stem, plan.target, request, weights, dry_run=False, folder=folder)
    with listener.begin(plan) as tell:
        done = 0

        def on_log(level: int, line: str) -> None:
            nonlocal done
            listener.native_log(level, line)
            if "size = " in line and " MiB" in line and done < len(plan.tensors):
                done += 1
                tell(done)

        try:
            return child.run(job, on_log)
        except LlmcliError as error:
            child.close()
            if "iostream" in error.message or "ios_base" in error.message:
                raise why_writing_failed(folder, target.first.name) from None
            raise _in_words(error) from None
        except BaseException:
            child.close()  # before its folder is removed
            raise


def _in_words(error: LlmcliError) -> LlmcliError:
    """llama.cpp's reason, without the names of its functions."""
    text = _without_prefix(error.message)
    if _NO_FALLBACK in text:
        name = text.rsplit(" ", 1)[1].upper()
        return LlmcliError(
            f"a tensor of this model has rows that do not fit {name}, and there is no type in its place",
            hint="--tensor-type REGEX=TYPE gives such tensors another type",
        )
    if "validation failed" in text:
        return LlmcliError("the weights of the model hold values that are no numbers, or too large for the type")
    if text == error.message:
        return error
    return LlmcliError(f"llama.cpp cannot quantize this: {printable(text)}", hint="-v shows its log")


def _without_prefix(text: str) -> str:
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    return text


def _read_back(made: Sequence[Path], plan: Plan) -> None:
    """The output is whole, is what was planned, and can be given to llama.cpp. Raises LlmcliError."""
    try:
        headers = tuple(read_header(path) for path in made)
        found = [(t.name, GGML_TYPES[t.type_id].name, t.elements) for header in headers for t in header.tensors]
        expected = [(t.name, t.target_type, t.elements) for t in plan.tensors]
        if sorted(found) != sorted(expected):
            odd = next(iter(set(found) ^ set(expected)))
            raise LlmcliError(f"the result is not what was planned: see {printable(odd[0])}; nothing was kept")
        check_model(made[0], need_vocabulary=False)
    except ModelError as error:
        message = error.message.replace(shown(made[0].parent) + os.sep, "")
        raise LlmcliError(f"the result is no usable model, nothing was kept: {message}") from None
