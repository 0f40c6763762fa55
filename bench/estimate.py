"""The run plan of a model before it is loaded: what it takes, what fits, how long a context may be, how fast it may be.

Rates come from the last `llmcli bench` of this very model on this machine, else from the roofline: the bandwidth and
arithmetic measured by `llmcli bench --roofline`, by what a token costs. Nothing is loaded and nothing measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.bench.cost import active_weights, cost_of
from llmcli.bench.environment import machine_id
from llmcli.bench.machine import Machine, recall
from llmcli.bench.result import Row
from llmcli.bench.runs import read_history
from llmcli.bench.sizes import Sizes
from llmcli.engine.engine import plan_for
from llmcli.engine.fit import run_need
from llmcli.engine.plan import Device, Request, RunPlan
from llmcli.engine.tuning import tuned
from llmcli.hardware.memory import Memory
from llmcli.models.estimate import DEFAULT_UBATCH_TOKENS, MemoryNeed
from llmcli.models.facts import ModelFacts
from llmcli.models.identity import Inspected

KV_CHOICES = ("f16", "q8_0", "q4_0")
_STEP_TOKENS = 256
_PREFILL, _DECODE = Sizes(n_prompt=512), Sizes(n_gen=128)


@dataclass(frozen=True, slots=True)
class Rates:
    """Expected tokens per second. source: `bench` (measured) or `roofline` (not to be exceeded, rarely reached)."""

    prefill_tok_s: float | None
    decode_tok_s: float | None
    source: str
    of: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """plan is None where it cannot run as asked, for `problem`. contexts: KV type -> the most tokens that fit."""

    n_ctx: int
    need: MemoryNeed
    available_bytes: int
    plan: RunPlan | None
    problem: str | None
    hint: str | None
    contexts: dict[str, int]
    devices: tuple[tuple[str, int], ...]
    rates: Rates | None

    @property
    def fits(self) -> bool:
        """Whether everything fits the memory that is free now, weights included."""
        return self.plan is not None and self.need.total_bytes <= self.available_bytes

    def as_json(self) -> dict[str, Any]:
        """With the names of docs/commands/doctor.md."""
        plan = self.plan
        names = ("n_ctx", "n_threads", "n_threads_batch", "n_batch", "n_ubatch", "n_gpu_layers", "flash_attn")
        return {
            "fits": self.fits,
            "n_ctx": self.n_ctx,
            "need": {**asdict(self.need), "total_bytes": self.need.total_bytes},
            "available_bytes": self.available_bytes,
            "plan": None if plan is None else {name: getattr(plan, name) for name in names},
            "notes": [] if plan is None else list(plan.notes),
            "problem": self.problem,
            "hint": self.hint,
            "contexts": self.contexts,
            "devices": [{"name": name, "layers": layers} for name, layers in self.devices],
            "rates": None if self.rates is None else asdict(self.rates),
        }


def estimate(
    inspected: Inspected,
    request: Request,
    memory: Memory,
    devices: Sequence[Device],
    settings: Settings,
    expected: Callable[[Inspected, RunPlan | None], Rates | None],
) -> Estimate:
    """The run plan for one model. Never raises for a plan that cannot be made: that is what it tells."""
    facts, plan, problem, hint = inspected.facts, None, None, None
    try:
        plan = plan_for(tuned(request, settings, inspected.content_id), facts)
    except LlmcliError as error:
        problem, hint = error.message, error.hint
    n_ctx = plan.n_ctx if plan else request.n_ctx or min(4096, facts.n_ctx_train or 4096)
    return Estimate(
        n_ctx=n_ctx,
        need=_need(facts, request, n_ctx),
        available_bytes=memory.available_bytes,
        plan=plan,
        problem=problem,
        hint=hint,
        contexts={kind: longest_context(facts, request, kind, memory.available_bytes) for kind in KV_CHOICES},
        devices=layers_by_device(plan.n_gpu_layers if plan else 0, devices),
        rates=expected(inspected, plan),
    )


def _need(facts: ModelFacts, request: Request, n_ctx: int) -> MemoryNeed:
    return run_need(
        facts,
        n_ctx,
        request.type_k,
        request.type_v,
        n_ubatch=request.n_ubatch or DEFAULT_UBATCH_TOKENS,
        flash_attn=request.flash_attn != "off",
    )


def longest_context(facts: ModelFacts, request: Request, kind: str, available_bytes: int) -> int:
    """The most tokens, in steps of 256 up to the trained context, with which everything fits; 0 for none at all, and
    where this model cannot have such a cache.
    """
    asked = replace(request, type_k=kind, type_v=kind)
    most = (facts.n_ctx_train or 1 << 20) // _STEP_TOKENS

    def fits(steps: int) -> bool:
        return _need(facts, asked, steps * _STEP_TOKENS).total_bytes <= available_bytes

    try:
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
    except LlmcliError:
        return 0
    return low * _STEP_TOKENS


def layers_by_device(n_gpu_layers: int, devices: Sequence[Device]) -> tuple[tuple[str, int], ...]:
    """How llama.cpp shares layers out: by the memory that is free on each device."""
    free = sum(device.free_bytes for device in devices)
    if not n_gpu_layers or not devices:
        return ()
    if not free:
        return ((devices[0].name, n_gpu_layers),)
    shares, given, sofar = [], 0, 0
    for device in devices:
        sofar += device.free_bytes
        upto = round(n_gpu_layers * sofar / free)
        shares.append((device.name, upto - given))
        given = upto
    return tuple(shares)


class Expected:
    """Looks rates up: read once, for any number of models."""

    def __init__(self, environment: dict[str, Any], settings: Settings) -> None:
        self._id = machine_id(environment)
        try:
            runs, _ = read_history(settings)
        except OSError:  # then there are no rates of before: the rest of the page does without
            runs = []
        self._rows: list[Row] = [row for run in reversed(runs) for row in run.rows if self._is_here(row)]
        self._machine: Machine | None = recall(self._id, settings)

    def _is_here(self, row: Row) -> bool:
        try:
            return machine_id(row["environment"]) == self._id
        except (KeyError, TypeError):
            return False

    def __call__(self, inspected: Inspected, plan: RunPlan | None) -> Rates | None:
        """The last measured rates, else those of the roofline, else None."""
        rows = [row for row in self._rows if row.get("model_content_id") == inspected.content_id and not row["n_depth"]]
        if plan:  # a rate of other threads is another rate; where there is none of these, it is better than a guess
            rows.sort(key=lambda row: row["n_threads"] != plan.n_threads)
        pp = next((row for row in rows if row["n_prompt"] and not row["n_gen"]), None)
        tg = next((row for row in rows if row["n_gen"] and not row["n_prompt"]), None)
        if pp or tg:
            return Rates(
                pp["median_ts"] if pp else None,
                tg["median_ts"] if tg else None,
                "bench",
                str((tg or pp or {})["test_time"])[:10],
            )
        return None if self._machine is None else _by_roofline(inspected.facts, plan, self._machine)


def _by_roofline(facts: ModelFacts, plan: RunPlan | None, machine: Machine) -> Rates:
    active, n_ubatch = active_weights(facts), plan.n_ubatch if plan else DEFAULT_UBATCH_TOKENS

    def limit(sizes: Sizes) -> float:
        cost = cost_of(sizes, facts, active, n_ubatch, "f16", "f16")
        return min(machine.bandwidth_bytes_s / cost.bytes_per_token, machine.ops_s / cost.ops_per_token)

    return Rates(limit(_PREFILL), limit(_DECODE), "roofline", f"{machine.bandwidth_bytes_s / 1e9:.0f} GB/s")
