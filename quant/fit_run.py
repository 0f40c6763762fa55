"""`--fit` and `--bpw` from end to end: measure, choose, make, and hold the result against the plain type of its size.

The better of the two is what is kept, and the report says which and by how much.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llmcli.base.bounded_file import read_bounded
from llmcli.base.files import atomic_write, make_private_dir
from llmcli.base.settings import Settings
from llmcli.base.units import format_bytes
from llmcli.engine.engine import Reporter, find_model
from llmcli.engine.plan import Request
from llmcli.quant.child import Child
from llmcli.quant.corpus import EVALUATION, shipped
from llmcli.quant.fit import CANDIDATES, Costs, Fitted, Plain, best_plain, budget, fit, free_tensors, plain_types
from llmcli.quant.place import Target, new_file_mode, publish, work_folder
from llmcli.quant.quality_compare import Options, compare
from llmcli.quant.request import QuantizeRequest
from llmcli.quant.run import Listener, Outcome, Source, make
from llmcli.quant.sensitivity import WINDOW_TOKENS, Sensitivity, group_of, measure_sensitivity
from llmcli.quant.tensor_errors import TensorErrors
from llmcli.quant.weights import ChosenWeights

_FOLDER, _VERSION = "sensitivity", 1
_MEMO_BYTES = 1 << 20
_CHECK_WINDOWS, _CHECK_TOKENS = 4, 512


class Told(Listener, Reporter, Protocol):
    """Who hears of the plan, of llama.cpp and of measuring."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What to fit: a size of the file or bits per weight."""

    file_bytes: int | None
    bpw: float | None

    @property
    def words(self) -> str:
        """The goal as the report has it."""
        return f"{self.bpw:g} bits per weight" if self.bpw is not None else format_bytes(self.file_bytes or 0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was chosen, and how it did against the plain type of its size.

    kld, plain_kld   divergence from the source on the package's evaluation text; None where it was not measured
    """

    fitted: Fitted
    plain: Plain | None
    kld: float | None
    plain_kld: float | None

    @property
    def keeps_plain(self) -> bool:
        """Whether the plain type turned out better."""
        return self.kld is not None and self.plain_kld is not None and self.plain_kld < self.kld


def measure_costs(
    source: Source,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    settings: Settings,
    told: Told,
) -> Costs:
    """The errors of types and the sensitivity of tensors; the sensitivity is remembered for the model."""
    errors = TensorErrors(source, weights.values if weights else None, request.threads)
    if not source.facts.has_vocabulary:
        told.notify("the model has no vocabulary, so how sensitive its tensors are cannot be measured: all count alike")
        return Costs(errors, Sensitivity({}, source.facts.n_layer, 1.0))
    names = [name for name, shape in source.shapes.items() if len(shape) > 1]
    memo = _memo(source, settings, told)
    if (known := _recall(memo)) is None:
        told.notify("measuring how sensitive the model's tensors are; it is kept for the next time")
        plan = Request(n_ctx=WINDOW_TOKENS, n_threads=request.threads, n_threads_batch=request.threads)
        known = measure_sensitivity(str(source.path), names, source.facts.n_layer, errors, plan, settings, told)
        _remember(memo, known)
    return Costs(errors, known)


def _memo(source: Source, settings: Settings, told: Told) -> Path:
    _, inspected = find_model(str(source.path), settings, told)
    key = hashlib.sha256(f"{_VERSION}:{inspected.content_id}".encode()).hexdigest()[:32]
    return settings.cache_dir / _FOLDER / f"{key}.json"


def _recall(memo: Path) -> Sensitivity | None:
    try:
        data = json.loads(read_bounded(memo, _MEMO_BYTES))
        groups = {str(name): float(value) for name, value in data["groups"].items()}
        return Sensitivity(groups, int(data["layers"]), float(data["typical"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _remember(memo: Path, known: Sensitivity) -> None:
    data = {"groups": dict(known.by_group), "layers": known.layers, "typical": known.typical}
    with contextlib.suppress(OSError):
        make_private_dir(memo.parent)
        atomic_write(memo, json.dumps(data).encode())


def choose_types(
    child: Child,
    source: Source,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    costs: Costs,
    goal: Goal,
    told: Told,
    allowed: Sequence[str] = CANDIDATES,
) -> tuple[Fitted, Plain | None]:
    """The best types for the goal, and the plain type to beat."""
    free = free_tensors(child, source, request, told)
    limit = budget(source, free, file_bytes=goal.file_bytes, bpw=goal.bpw)
    fitted = fit(child, source, request, weights, costs, free, limit, allowed, told)
    rivals = plain_types(child, source, request, weights, costs, told, most_bytes=limit)
    return fitted, best_plain(rivals, limit)


def carry_out_best(
    child: Child,
    source: Source,
    fitted: Fitted,
    plain: Plain | None,
    target: Target,
    request: QuantizeRequest,
    weights: ChosenWeights | None,
    settings: Settings,
    told: Told,
    *,
    check: bool,
) -> tuple[Outcome, Verdict]:
    """Make the fitted model and the plain one, measure both, keep the better."""
    with work_folder(target) as folder:
        made, seconds = make(child, source, fitted.plan, target, fitted.request, weights, told, folder)
        verdict = Verdict(fitted, plain, None, None)
        plan = fitted.plan
        if plain is not None and check and source.facts.has_vocabulary:
            beside = folder / "plain"
            beside.mkdir()
            rivals, rival_seconds = make(child, source, plain.plan, target, request, weights, told, beside)
            verdict = Verdict(fitted, plain, *_divergences(source, made[0], rivals[0], request, settings, told))
            if verdict.keeps_plain:
                plan, made, seconds = plain.plan, rivals, rival_seconds
        publish(made, target, mode=new_file_mode())
    return Outcome(plan, target, sum(file.stat().st_size for file in target.files), seconds), verdict


def _divergences(
    source: Source, made: Path, plain: Path, request: QuantizeRequest, settings: Settings, told: Told
) -> tuple[float | None, float | None]:
    plan = Request(n_ctx=_CHECK_TOKENS, n_threads=request.threads, n_threads_batch=request.threads)
    options = Options(n_windows=_CHECK_WINDOWS, with_rates=False)
    text = shipped(EVALUATION)
    found = compare(
        str(source.path), [str(made), str(plain)], text, plan=plan, settings=settings, reporter=told, options=options
    )
    klds = [row.against.kld_mean if row.against else None for row in found.rows]
    return klds[0], klds[1]


def verdict_lines(verdict: Verdict, goal: Goal) -> list[str]:
    """The choice and the check in sentences."""
    lines = [f"chosen for {goal.words}; predicted divergence {verdict.fitted.predicted_kld:.4f}"]
    plain = verdict.plain
    if plain is None:
        return [*lines, "no plain type is as small"]
    if verdict.kld is None or verdict.plain_kld is None:
        return [*lines, f"the plain type to beat is {plain.target.name}: predicted {plain.predicted_kld:.4f}"]
    size = format_bytes(plain.plan.target_bytes)
    both = f"measured divergence {verdict.kld:.4f}, plain {plain.target.name} ({size}) {verdict.plain_kld:.4f}"
    better = f"the plain {plain.target.name} is better, and is what was kept" if verdict.keeps_plain else "better"
    return [*lines, f"{both}: {better}"]


def rows_by_group(fitted: Fitted, layers: int) -> list[str]:
    """What the plan gives to each group of tensors, for -v."""
    found: dict[str, dict[str, int]] = {}
    for tensor in fitted.plan.tensors:
        if tensor.changes:
            counts = found.setdefault(group_of(tensor.name, layers), {})
            counts[tensor.target_type] = counts.get(tensor.target_type, 0) + 1
    return [
        f"{group}: " + ", ".join(f"{count} {name}" for name, count in counts.items()) for group, counts in found.items()
    ]
