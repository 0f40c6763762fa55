"""`llmcli doctor --estimate` and `--fit`: what a model takes before it is loaded, for one model and for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.bench.environment import describe
from llmcli.bench.estimate import Estimate, Expected, Rates, estimate
from llmcli.bench.tables import table
from llmcli.cli import output
from llmcli.cli.reporter import StderrReporter
from llmcli.engine import native
from llmcli.engine.engine import find_model
from llmcli.engine.fit import CTX_STEP_TOKENS
from llmcli.engine.plan import Request
from llmcli.engine.preflight import check_build
from llmcli.hardware.memory import read_memory
from llmcli.models.identity import Inspected, inspect_model
from llmcli.models.inventory import take_inventory

DOES_NOT_FIT = 6


def show_estimate(reference: str, n_ctx: int | None, settings: Settings, *, json: bool) -> int:
    """One model: 0 where it fits, 6 where not. Raises ModelError where there is no such model."""
    resolved, inspected = find_model(reference, settings, StderrReporter(settings), need_vocabulary=False)
    found = _estimator(settings)(inspected, n_ctx)
    if json:
        output.write_json({"model": resolved.name, "path": str(resolved.path), **found.as_json()})
    else:
        output.write(_page(resolved.name, inspected, found))
    return 0 if found.fits else DOES_NOT_FIT


def show_fit(n_ctx: int | None, settings: Settings, *, json: bool) -> int:
    """Every model on this machine, one line each."""
    judge, reporter = _estimator(settings), StderrReporter(settings)
    rows: list[tuple[str, Inspected, Estimate]] = []
    for model in take_inventory(settings):
        if not model.is_usable:
            reporter.notify(f"{model.reference} is left out: {model.headline.problem}")
            continue
        try:
            inspected = inspect_model(model.path, settings, need_vocabulary=False)
        except LlmcliError as error:
            reporter.notify(f"{model.reference} is left out: {error.message}")
            continue
        rows.append((model.reference, inspected, judge(inspected, n_ctx)))
    if json:
        output.write_json({"models": [{"model": name, **found.as_json()} for name, _, found in rows]})
    elif rows:
        output.write(_fit_table(rows))
    else:
        reporter.notify("no model on this machine: llmcli pull")
    return 0


def _estimator(settings: Settings) -> Callable[[Inspected, int | None], Estimate]:
    check_build(settings)
    expected = Expected(describe(settings), settings)
    memory, devices = read_memory(), native.devices()
    return lambda inspected, n_ctx: estimate(inspected, Request(n_ctx=n_ctx), memory, devices, settings, expected)


def _page(name: str, inspected: Inspected, found: Estimate) -> str:
    facts, need = inspected.facts, found.need
    parts = {
        "model": f"{printable(name)}: {facts.quant}, {facts.n_params / 1e6:,.0f} M parameters, "
        f"trained on {format_count(facts.n_ctx_train, 'token')}",
        "memory": f"{format_bytes(need.total_bytes)} for a context of {format_count(found.n_ctx, 'token')}: "
        f"weights {format_bytes(need.weights_bytes)}, KV cache {format_bytes(need.kv_bytes)}, "
        f"computing {format_bytes(need.compute_bytes)}, vocabulary {format_bytes(need.vocabulary_bytes)}",
        "fits": f"{'yes' if found.fits else 'no'}: {format_bytes(found.available_bytes)} are free",
        "plan": _plan(found),
        "context": "at most "
        + ", ".join(f"{count:,} with -ctk {kind} -ctv {kind}" if kind != "f16" else f"{count:,}"
                    for kind, count in found.contexts.items())
        + _why_no_more(inspected, found),
        "rates": _rates(found.rates),
    }  # fmt: skip
    notes = "" if found.plan is None else "".join(f"note     {printable(note)}\n" for note in found.plan.notes)
    return "".join(f"{title:<9}{text}\n" for title, text in parts.items()) + notes


def _why_no_more(inspected: Inspected, found: Estimate) -> str:
    trained = inspected.facts.n_ctx_train
    longest = max(found.contexts.values(), default=0)
    if not trained or longest // CTX_STEP_TOKENS < trained // CTX_STEP_TOKENS:
        return "; that is what fits"
    return "; more than it was trained on is not counted"


def _plan(found: Estimate) -> str:
    if found.plan is None:
        return printable(found.problem or "") + (f" ({printable(found.hint)})" if found.hint else "")
    plan = found.plan
    devices = ", ".join(f"{layers} on {printable(name)}" for name, layers in found.devices)
    layers = f"layers {devices}" if devices else "every layer on the CPU"
    return f"-c {plan.n_ctx} -t {plan.n_threads} -b {plan.n_batch} -ub {plan.n_ubatch}, {layers}"


def _rates(rates: Rates | None) -> str:
    if rates is None:
        return "not known: llmcli bench --roofline"
    prefill, decode = (_rate(rate) for rate in (rates.prefill_tok_s, rates.decode_tok_s))
    how = f"measured {rates.of}" if rates.source == "bench" else f"at the very most, by the roofline ({rates.of})"
    return f"prefill {prefill}, decode {decode} tok/s, {how}"


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:,.0f}"


def _fit_table(rows: list[tuple[str, Inspected, Estimate]]) -> str:
    cells: list[tuple[str, ...]] = []
    for name, inspected, found in rows:
        rates: Any = found.rates
        cells.append(
            (
                name,
                inspected.facts.quant,
                format_bytes(found.need.total_bytes),
                "yes" if found.fits else "no",
                f"{found.n_ctx:,}",
                *(f"{count:,}" for count in found.contexts.values()),
                str(sum(layers for _, layers in found.devices)),
                f"{_rate(rates.decode_tok_s)} ({rates.source})" if rates else "?",
            )
        )
    head = ("model", "quant", "memory", "fits", "context", "most f16", "q8_0", "q4_0", "layers on GPU", "decode tok/s")
    unknown = any(found.rates is None for _, _, found in rows)
    note = "?: not measured yet; llmcli bench -m MODEL does, llmcli bench --roofline gives a limit for all\n"
    return table(head, cells, left=2) + (note if unknown else "")
