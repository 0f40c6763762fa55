"""`llmcli quantize --fit` and `--bpw`: the types are chosen here, and what was chosen is told before it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes
from llmcli.cli.cmd_quantize import AUTO, target_for, tell_tensors, with_weights
from llmcli.cli.quantize_view import QuantizeView
from llmcli.hardware.cores import read_cores
from llmcli.quant.child import Child
from llmcli.quant.fit import CANDIDATES, free_tensors, lasting_types, plain_types, require_possible
from llmcli.quant.fit_run import (
    Goal,
    Verdict,
    carry_out_best,
    choose_types,
    measure_costs,
    rows_by_group,
    verdict_lines,
)
from llmcli.quant.machine import Choice, choose_for_machine
from llmcli.quant.rates import quick_types, type_rates
from llmcli.quant.report import table_lines
from llmcli.quant.request import QuantizeRequest
from llmcli.quant.run import Outcome, Source, carry_out, check_room, check_targets


@dataclass(frozen=True, slots=True)
class FitAccount:
    """What the report says of the choice."""

    goal: Goal
    verdict: Verdict

    def lines(self) -> list[str]:
        """In sentences."""
        return verdict_lines(self.verdict, self.goal)

    def as_json(self) -> dict[str, Any]:
        """With stable names."""
        verdict = self.verdict
        plain = verdict.plain
        return {
            "file_bytes": self.goal.file_bytes,
            "bpw": self.goal.bpw,
            "predicted_kld": verdict.fitted.predicted_kld,
            "kld_mean": verdict.kld,
            "plain": plain
            and {
                "type": plain.target.name,
                "tensor_bytes": plain.plan.target_bytes,
                "predicted_kld": plain.predicted_kld,
                "kld_mean": verdict.plain_kld,
            },
            "kept": "plain" if verdict.keeps_plain else "fit",
        }


def quantize_fitted(
    source: Source,
    out: str | None,
    request: QuantizeRequest,
    values: Mapping[str, Any],
    settings: Settings,
    view: QuantizeView,
) -> tuple[Outcome, FitAccount | MachineAccount]:
    """Choose, tell, do, check."""
    if values["fit"] is None and values["bpw"] is None:
        return _for_this_machine(source, out, request, values, settings, view)
    goal = Goal(values["fit"], values["bpw"])
    label = f"{goal.bpw:g}bpw" if goal.bpw is not None else "fit-" + format_bytes(values["fit"]).replace(" ", "")
    target = target_for(source, out, label, values, settings)
    if not values["dry_run"]:
        check_targets([target], source, [request.imatrix] if request.imatrix else [])
    with Child() as child:
        free = free_tensors(child, source, request, view)
    require_possible(source, request, free, file_bytes=goal.file_bytes, bpw=goal.bpw)
    # Without a matrix the small types would be out of reach, and the errors of all would be guessed at.
    measured = {**values, "imatrix": values["imatrix"] or (AUTO if source.facts.has_vocabulary else None)}
    request, weights = with_weights(request, measured, source, settings, view)
    costs = measure_costs(source, request, weights, settings, view)
    with Child() as child:
        fitted, plain = choose_types(
            child, source, request, weights, costs, goal, view, _allowed(values, settings, view)
        )
        tell_tensors(fitted.plan, view)
        for line in rows_by_group(fitted, source.facts.n_layer):
            view.detail(line)
        account = FitAccount(goal, Verdict(fitted, plain, None, None))
        if values["dry_run"]:
            return Outcome(fitted.plan, target, fitted.plan.file_bytes(source.header_bytes), None), account
        view.notify(f"the plan for {printable(source.named)}, {goal.words}:")
        for line in table_lines(fitted.plan):
            view.notify(line)
        check_room([(fitted.plan, target), *([(plain.plan, target)] if plain else [])], source)
        outcome, verdict = carry_out_best(
            child,
            source,
            fitted,
            plain,
            target,
            request,
            weights,
            settings,
            view,
            check=not values["no_check"],
        )
    return outcome, FitAccount(goal, verdict)


def _allowed(values: Mapping[str, Any], settings: Settings, view: QuantizeView) -> Sequence[str]:
    """The types to choose from; with --for-this-machine without those that are slow here."""
    if not values["for_this_machine"]:
        return CANDIDATES
    rates = type_rates(settings, values["threads"] or read_cores().usable, view.notify)
    quick = quick_types(CANDIDATES, rates)
    if slow := [name for name in CANDIDATES if name not in quick]:
        view.notify(f"left out, because others of their size are much quicker on this CPU: {', '.join(slow)}")
    return quick


@dataclass(frozen=True, slots=True)
class MachineAccount:
    """What the report says of the choice for this machine."""

    choice: Choice

    def lines(self) -> list[str]:
        """Why, with what was weighed."""
        return self.choice.lines()

    def as_json(self) -> dict[str, Any]:
        """With stable names."""
        return {
            "chosen": self.choice.best.plain.target.name,
            "most_kld": self.choice.most_kld,
            "weighed": [
                {
                    "type": judged.plain.target.name,
                    "tensor_bytes": judged.plain.plan.target_bytes,
                    "predicted_kld": judged.plain.predicted_kld,
                    "prefill_tok_s": judged.speed.read_tok_s,
                    "decode_tok_s": judged.speed.write_tok_s,
                    "answer_s": judged.speed.answer_s,
                }
                for judged in self.choice.judged
            ],
        }


def _for_this_machine(
    source: Source,
    out: str | None,
    request: QuantizeRequest,
    values: Mapping[str, Any],
    settings: Settings,
    view: QuantizeView,
) -> tuple[Outcome, MachineAccount]:
    """One of the plain types."""
    measured = {**values, "imatrix": values["imatrix"] or (AUTO if source.facts.has_vocabulary else None)}
    given = [request.imatrix] if request.imatrix else []
    request, weights = with_weights(request, measured, source, settings, view)
    rates = type_rates(settings, request.threads, view.notify)
    costs = measure_costs(source, request, weights, settings, view)
    with Child() as child:
        found = plain_types(child, source, request, weights, costs, view, lasting_types())
        choice = choose_for_machine(found, rates)
        plan = choice.best.plain.plan
        target = target_for(source, out, plan.target.name, values, settings)
        if values["dry_run"]:
            return Outcome(plan, target, plan.file_bytes(source.header_bytes), None), MachineAccount(choice)
        check_targets([target], source, given)
        check_room([(plan, target)], source)
        outcome = carry_out(child, source, plan, target, request, weights, view)
    return outcome, MachineAccount(choice)
