"""Where the limit is: the share of the machine's bandwidth and arithmetic that a test reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmcli.base.settings import Settings
from llmcli.bench.cost import Active, Cost, active_weights, cost_of
from llmcli.bench.environment import machine_id
from llmcli.bench.machine import Machine, measure, remember
from llmcli.bench.result import Result, Row
from llmcli.models.facts import ModelFacts


def shares(cost: Cost, rate_tok_s: float, machine: Machine) -> dict[str, Any]:
    """The `roofline` object of a row. limit: what bounds this test; limit_tok_s: the rate at that bound."""
    by_bytes = machine.bandwidth_bytes_s / cost.bytes_per_token
    by_ops = machine.ops_s / cost.ops_per_token
    return {
        "bytes_per_token": cost.bytes_per_token,
        "ops_per_token": cost.ops_per_token,
        "bandwidth_bytes_s": machine.bandwidth_bytes_s,
        "peak_ops_s": machine.ops_s,
        "bandwidth_share": rate_tok_s / by_bytes,
        "arithmetic_share": rate_tok_s / by_ops,
        "limit": "bandwidth" if by_bytes < by_ops else "arithmetic",
        "limit_tok_s": min(by_bytes, by_ops),
    }


@dataclass(slots=True)
class Roofline:
    """Adds the shares to rows; measures the machine once per number of threads, before the first test that uses it."""

    settings: Settings
    _machines: dict[int, Machine] = field(default_factory=dict)
    _active: dict[str, Active] = field(default_factory=dict)

    def enrich(self, result: Result, row: Row) -> Row:
        """The row with a `roofline` object."""
        plan, facts = result.plan, result.model.facts
        active = self._active_of(result.model.content_id, facts)
        cost = cost_of(result.sizes, facts, active, plan.n_ubatch, plan.type_k, plan.type_v)
        machine = self._machine(result)
        return {**row, "roofline": shares(cost, result.summary.median, machine)}

    def _active_of(self, content_id: str, facts: ModelFacts) -> Active:
        if content_id not in self._active:
            self._active[content_id] = active_weights(facts)
        return self._active[content_id]

    def _machine(self, result: Result) -> Machine:
        threads = result.plan.n_threads
        if threads not in self._machines:
            found = self._machines[threads] = measure(threads)
            usable = result.environment["machine"]["cores_usable"]
            if threads == usable:
                remember(found, machine_id(result.environment), self.settings)
        found, physical = self._machines[threads], result.environment["machine"]["cores_physical"]
        # BLAS took all cores: of its rate, the cores of this test have their part.
        return Machine(threads, found.bandwidth_bytes_s, found.ops_s * min(1.0, threads / physical))
