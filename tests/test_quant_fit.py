"""Choosing types: errors and sensitivities of a small model, rules that say what was chosen, the plain rival."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmcli.base.errors import UsageError
from llmcli.base.settings import Settings, load
from llmcli.base.units import format_bytes, parse_bytes
from llmcli.engine.plan import Request
from llmcli.models.gguf_header import read_header
from llmcli.models.progress import silent
from llmcli.quant import fit_run
from llmcli.quant.budget import Option
from llmcli.quant.child import Child
from llmcli.quant.fit import (
    CANDIDATES,
    Costs,
    best_plain,
    budget,
    fit,
    free_tensors,
    is_free,
    plain_types,
    require_possible,
    rules_for,
)
from llmcli.quant.fit_run import Goal, Verdict, carry_out_best, choose_types, measure_costs, verdict_lines
from llmcli.quant.place import target_at
from llmcli.quant.request import QuantizeRequest
from llmcli.quant.rules import first_match, parse_rule
from llmcli.quant.run import Source, open_source
from llmcli.quant.sensitivity import Sensitivity, group_of, measure_sensitivity
from llmcli.quant.tensor_errors import TensorErrors
from llmcli.quant.types import parse_target
from tests.fixtures.wide_model import SHAPES, numbers, write_wide
from tests.quantize_case import Quiet, tensor_types, type_of

PLAIN = QuantizeRequest(threads=2)


class Told(Quiet):
    """A listener that can be shown progress, too."""

    @property
    def progress(self) -> Any:
        return silent


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child() as child:
        yield child


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = write_wide(tmp_path_factory.mktemp("wide") / "wide.gguf", dtype=np.float16)
    return open_source(path, "wide")


@pytest.fixture(name="settings")
def a_home(llmcli_home: Path) -> Settings:
    return load({"LLMCLI_HOME": str(llmcli_home)})


def costs_of(source: Source, **sensitivities: float) -> Costs:
    by_group = {f"{name}.weight:0": value for name, value in sensitivities.items()}
    return Costs(TensorErrors(source, None, 2), Sensitivity(by_group, 1, 1.0))


def test_groups() -> None:
    assert [group_of(f"blk.{i}.ffn_up.weight", 30) for i in (0, 9, 10, 19, 20, 29)] == [
        f"ffn_up.weight:{zone}" for zone in (0, 0, 1, 1, 2, 2)
    ]
    assert group_of("output.weight", 30) == "output.weight"
    assert group_of("blk.0.attn_v.weight", 1) == "attn_v.weight:0"


def test_errors_are_those_of_the_rows(source: Source) -> None:
    errors = TensorErrors(source, None, 2)
    errors.measure([(name, ["Q8_0", "Q4_0"]) for name in SHAPES])
    for name in SHAPES:
        assert 1e-5 < errors.error(name, "Q8_0") < 1e-4 < 1e-3 < errors.error(name, "Q4_0") < 1e-2
        assert errors.error(name, "F16") == 0  # its own type


def test_powers_are_those_of_the_weights(source: Source) -> None:
    name = "output.weight"
    values = numbers(source.shapes[name][0] * source.shapes[name][1], 101).reshape(-1, 512).astype(np.float16)
    squares = np.square(values.astype(np.float32))
    errors = TensorErrors(source, None, 1)
    np.testing.assert_allclose(errors.row_power(name), squares.mean(axis=1), rtol=1e-3)
    np.testing.assert_allclose(errors.column_power(name).mean(), squares.mean(), rtol=0.05)


def test_what_is_free(child: Child, source: Source) -> None:
    request = replace(PLAIN, rules=(parse_rule("attn_v=q6_k"),), token_embedding_type="Q4_0")
    free = free_tensors(child, source, request, Quiet())
    assert {t.name for t in free.tensors if is_free(t, request)} == {*SHAPES, "output.weight"} - {"blk.0.attn_v.weight"}


def test_rules_say_exactly_what_was_chosen() -> None:
    chosen = {f"blk.{i}.ffn_up.weight": Option("Q4_K" if i % 2 else "Q8_0", 1, 0.0) for i in range(12)}
    chosen |= {"output.weight": Option("Q6_K", 1, 0.0), "blk.1.ffn_up_exps.weight": Option("Q2_K", 1, 0.0)}
    rules = rules_for(chosen)
    assert len(rules) == 4
    for name, option in chosen.items():
        rule = first_match(rules, name)
        assert rule is not None
        assert rule.tensor_type == option.tensor_type
    assert all(re.fullmatch(r"\^[a-z0-9_.|()\\]+\$", rule.pattern) for rule in rules)
    assert first_match(rules, "blk.12.ffn_up.weight") is None


@pytest.mark.parametrize("bpw", [3.6, 4.6, 6.0])
def test_a_fit_keeps_to_its_size_and_uses_it(child: Child, source: Source, bpw: float) -> None:
    free = free_tensors(child, source, PLAIN, Quiet())
    limit = budget(source, free, file_bytes=None, bpw=bpw)
    fitted = fit(child, source, PLAIN, None, costs_of(source), free, limit, CANDIDATES, Quiet())
    assert 0.97 * limit < fitted.plan.target_bytes <= limit
    assert fitted.plan.bpw <= bpw
    assert not fitted.plan.fallbacks


def test_tender_tensors_get_more_bits(child: Child, source: Source) -> None:
    free = free_tensors(child, source, PLAIN, Quiet())
    limit = budget(source, free, file_bytes=None, bpw=4.6)
    costs = costs_of(source, attn_v=1000.0, ffn_up=0.001)
    plan = fit(child, source, PLAIN, None, costs, free, limit, CANDIDATES, Quiet()).plan
    bits = {t.name.split(".")[-2]: t.target_bytes * 8 / t.elements for t in plan.tensors}
    assert bits["attn_v"] >= 8
    assert bits["ffn_up"] < 4


def test_rules_of_the_user_stay(child: Child, source: Source) -> None:
    request = replace(PLAIN, rules=(parse_rule("ffn_up=q8_0"),))
    free = free_tensors(child, source, request, Quiet())
    limit = budget(source, free, file_bytes=None, bpw=5.0)
    plan = fit(child, source, request, None, costs_of(source), free, limit, CANDIDATES, Quiet()).plan
    assert next(t.target_type for t in plan.tensors if "ffn_up" in t.name) == "Q8_0"


def test_only_what_is_allowed_is_chosen(child: Child, source: Source) -> None:
    free = free_tensors(child, source, PLAIN, Quiet())
    limit = budget(source, free, file_bytes=None, bpw=5.0)
    plan = fit(child, source, PLAIN, None, costs_of(source), free, limit, ["Q8_0", "Q4_0"], Quiet()).plan
    assert {t.target_type for t in plan.tensors} <= {"Q8_0", "Q4_0", "F32"}


def test_too_small_a_size_names_the_smallest(child: Child, source: Source) -> None:
    free = free_tensors(child, source, PLAIN, Quiet())
    with pytest.raises(UsageError, match="these types make no model so small") as caught:
        fit(child, source, PLAIN, None, costs_of(source), free, 1000, CANDIDATES, Quiet())
    size, bits = re.fullmatch(r"the least is --fit (\S+), or --bpw (\S+)", str(caught.value.hint)).groups()  # type: ignore[union-attr]
    for goal in ({"file_bytes": parse_bytes(size), "bpw": None}, {"file_bytes": None, "bpw": float(bits)}):
        limit = budget(source, free, **goal)
        fitted = fit(child, source, PLAIN, None, costs_of(source), free, limit, CANDIDATES, Quiet())
        assert fitted.plan.target_bytes <= limit
    with pytest.raises(UsageError, match="vocabulary and metadata"):
        budget(source, free, file_bytes=100, bpw=None)


@pytest.mark.parametrize("name", ["file_bytes", "bpw"])
def test_the_least_goal_is_known_before_anything_is_measured(child: Child, source: Source, name: str) -> None:
    """What is refused could not have been fitted, and the size that is named can."""
    free = free_tensors(child, source, PLAIN, Quiet())
    low, high = (1000, 10_000_000) if name == "file_bytes" else (50, 3200)  # in bytes, or in hundredths of a bit

    def refusal(value: int) -> UsageError | None:
        goal = {"file_bytes": None, "bpw": None, name: value if name == "file_bytes" else value / 100}
        try:
            require_possible(source, PLAIN, free, **goal)  # type: ignore[arg-type]
        except UsageError as error:
            return error
        return None

    least = bisect.bisect_left(range(high), True, lo=low, key=lambda value: refusal(value) is None)
    assert low < least < high
    says = format_bytes(least) if name == "file_bytes" else f"{least / 100:g} at the least"
    refused = refusal(low)
    assert refused is not None
    assert says in refused.message
    if name == "bpw":
        limit = budget(source, free, file_bytes=None, bpw=(least - 1) / 100)
        with pytest.raises(UsageError, match="these types make no model so small"):
            fit(child, source, PLAIN, None, costs_of(source), free, limit, CANDIDATES, Quiet())


def test_the_plain_rival(child: Child, source: Source) -> None:
    heard = Quiet()
    targets = [parse_target(name) for name in ("Q8_0", "Q6_K", "Q4_0", "IQ2_XXS")]
    found = plain_types(child, source, PLAIN, None, costs_of(source), heard, targets)
    assert [plain.target.name for plain in found] == ["Q8_0", "Q6_K", "Q4_0"]  # the last needs a matrix
    assert [plain.predicted_kld for plain in found] == sorted(plain.predicted_kld for plain in found)
    assert heard.notes == []
    sizes = {plain.target.name: plain.plan.target_bytes for plain in found}
    best = best_plain(found, sizes["Q6_K"])
    assert best is not None
    assert best.target.name == "Q6_K"
    assert best_plain(found, 1000) is None
    near = plain_types(child, source, PLAIN, None, costs_of(source), heard, targets, most_bytes=sizes["Q6_K"])
    assert [plain.target.name for plain in near] == ["Q6_K"]  # Q4_0 is far below


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer and shorter windows, and three rivals."""
    monkeypatch.setattr(fit_run, "_CHECK_WINDOWS", 1)
    monkeypatch.setattr(fit_run, "_CHECK_TOKENS", 64)
    rivals = [parse_target(name) for name in ("Q8_0", "Q4_K_M", "Q4_0")]
    monkeypatch.setattr("llmcli.quant.fit._PLAIN", tuple(rivals))

    def three(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, *, most_bytes: int) -> Any:
        return plain_types(a, b, c, d, e, f, rivals, most_bytes=most_bytes)

    monkeypatch.setattr(fit_run, "plain_types", three)


def test_sensitivity_is_measured_and_remembered(source: Source, settings: Settings) -> None:
    told = Told()
    first = measure_costs(source, PLAIN, None, settings, told)
    assert len(told.notes) == 1
    by_group = first.sensitivity.by_group
    assert {f"{name.split('.', 2)[2]}:0" for name in SHAPES} | {"output.weight"} <= set(by_group)
    assert all(value > 0 for value in by_group.values())
    assert first.sensitivity.of("token_embd.weight") == first.sensitivity.typical
    again = measure_costs(source, PLAIN, None, settings, told)
    assert again.sensitivity == first.sensitivity
    assert len(told.notes) == 1


def test_sensitivity_is_the_same_every_time(source: Source, settings: Settings) -> None:
    names = ["blk.0.ffn_down.weight"]
    request = Request(n_ctx=160, n_threads=1, n_threads_batch=1)
    errors = TensorErrors(source, None, 1)
    found = [measure_sensitivity(str(source.path), names, 1, errors, request, settings, Told()) for _ in range(2)]
    assert found[0] == found[1]


def test_from_end_to_end(child: Child, source: Source, settings: Settings, tmp_path: Path, quick: None) -> None:
    costs, told = costs_of(source), Told()
    goal = Goal(None, 5.0)
    fitted, plain = choose_types(child, source, PLAIN, None, costs, goal, told)
    assert plain is not None
    target = target_at(tmp_path / "out.gguf", parts=1, forced=False)
    outcome, verdict = carry_out_best(child, source, fitted, plain, target, PLAIN, None, settings, told, check=True)
    assert verdict.kld is not None
    assert verdict.plain_kld is not None
    kept = plain.plan if verdict.keeps_plain else fitted.plan
    header = read_header(outcome.target.first)
    assert {t.name: type_of(header, t.name) for t in kept.tensors} == {t.name: t.target_type for t in kept.tensors}
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    assert "measured divergence" in verdict_lines(verdict, goal)[1]


@pytest.mark.parametrize("better", ["plain", "fit"])
def test_the_better_one_is_kept_and_told(
    child: Child, source: Source, settings: Settings, tmp_path: Path, monkeypatch: Any, quick: None, better: str
) -> None:
    fitted, plain = choose_types(child, source, PLAIN, None, costs_of(source), Goal(None, 5.0), Told())
    klds = (0.2, 0.1) if better == "plain" else (0.1, 0.2)
    monkeypatch.setattr(fit_run, "_divergences", lambda *_args: klds)
    target = target_at(tmp_path / "out.gguf", parts=1, forced=False)
    outcome, verdict = carry_out_best(child, source, fitted, plain, target, PLAIN, None, settings, Told(), check=True)
    assert plain is not None
    expected = plain.plan if better == "plain" else fitted.plan
    assert outcome.plan is expected
    assert sum(tensor_types([target.first]).values()) == 12
    assert ("is what was kept" in verdict_lines(verdict, Goal(None, 5.0))[1]) == (better == "plain")


def test_without_a_check_nothing_is_measured(
    child: Child, source: Source, settings: Settings, tmp_path: Path, quick: None
) -> None:
    fitted, plain = choose_types(child, source, PLAIN, None, costs_of(source), Goal(None, 5.0), Told())
    target = target_at(tmp_path / "out.gguf", parts=1, forced=False)
    _, verdict = carry_out_best(child, source, fitted, plain, target, PLAIN, None, settings, Told(), check=False)
    assert (verdict.kld, verdict.keeps_plain) == (None, False)
    assert "the plain type to beat" in verdict_lines(verdict, Goal(None, 5.0))[1]


def test_a_size_of_the_file_is_kept(
    child: Child, source: Source, settings: Settings, tmp_path: Path, quick: None
) -> None:
    size = 900 << 10
    fitted, plain = choose_types(child, source, PLAIN, None, costs_of(source), Goal(size, None), Told())
    target = target_at(tmp_path / "out.gguf", parts=1, forced=False)
    outcome, _ = carry_out_best(child, source, fitted, plain, target, PLAIN, None, settings, Told(), check=False)
    assert 0.95 * size < outcome.file_bytes <= size


def test_words_without_a_rival(child: Child, source: Source) -> None:
    free = free_tensors(child, source, PLAIN, Quiet())
    fitted = fit(child, source, PLAIN, None, costs_of(source), free, 1 << 20, CANDIDATES, Quiet())
    lines = verdict_lines(Verdict(fitted, None, None, None), Goal(1 << 20, None))
    assert lines[0].startswith("chosen for 1.0 MiB")
    assert lines[1] == "no plain type is as small"
