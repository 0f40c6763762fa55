"""Rates of types: measured on small models, remembered, and what follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings, load
from llmcli.models.check import check_model
from llmcli.quant import rates
from llmcli.quant.fit import Plain
from llmcli.quant.machine import choose_for_machine
from llmcli.quant.plan import Plan, PlannedTensor
from llmcli.quant.rate_model import WEIGHTS, write_rate_model
from llmcli.quant.rates import (
    TypeRate,
    estimate,
    quick_types,
    quicker,
    rate_lines,
    recall_rates,
    slow_advice,
    type_rates,
)
from llmcli.quant.types import parse_target

SOME = {
    "Q8_0": TypeRate(0.010, 0.020),
    "Q5_0": TypeRate(0.040, 0.090),
    "Q4_1": TypeRate(0.030, 0.060),
    "Q4_0": TypeRate(0.010, 0.012),
    "Q4_K": TypeRate(0.011, 0.013),
}


@pytest.fixture(name="settings")
def a_home(llmcli_home: Path) -> Settings:
    return load({"LLMCLI_HOME": str(llmcli_home)})


@pytest.mark.parametrize("name", ["F16", "Q4_0", "Q4_K", "IQ4_NL"])
def test_the_model_is_one_that_llama_cpp_takes(tmp_path: Path, name: str) -> None:
    write_rate_model(tmp_path / "m.gguf", name)
    facts = check_model(tmp_path / "m.gguf", need_vocabulary=False)
    assert facts.quant == name
    assert WEIGHTS < facts.n_params < 1.01 * WEIGHTS


def test_figures_of_a_busy_machine_are_not_kept(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    notes: list[str] = []
    assert type_rates(settings, 1, notes.append, ["Q4_0"])["Q4_0"].read_s > 0
    assert "not kept" in notes[0]
    assert recall_rates(settings, 1) == {}


def test_measured_once_and_remembered(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    notes: list[str] = []
    first = type_rates(settings, 1, notes.append, ["Q4_0"])
    assert len(notes) == 1
    assert first["Q4_0"].read_s > 0
    assert first["Q4_0"].write_s > 0
    assert recall_rates(settings, 1) == first
    assert type_rates(settings, 1, notes.append, ["Q4_0"]) == first
    assert len(notes) == 1
    assert recall_rates(settings, 2) == {}


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"Q4_0": 5}', b'{"Q4_0": {"read_s": 1}}'])
def test_a_damaged_memo_is_none(settings: Settings, damage: bytes) -> None:
    memo = rates._memo(settings, 1)
    memo.parent.mkdir(parents=True)
    memo.write_bytes(damage)
    assert recall_rates(settings, 1) == {}


def test_an_estimate_adds_up() -> None:
    found = estimate({"Q8_0": 500_000_000, "Q4_0": 250_000_000, "F32": 1000}, SOME)
    assert found is not None
    assert found.read_tok_s == pytest.approx(1 / 0.0075)
    assert found.write_tok_s == pytest.approx(1 / 0.013)
    assert found.answer_s == pytest.approx(256 * 0.0075 + 64 * 0.013)
    assert estimate({"F32": 5}, SOME) is None


def test_slow_types() -> None:
    assert quicker("Q4_1", SOME) == "Q4_0"
    assert quicker("Q5_0", SOME) == "Q4_0"
    assert quicker("Q4_K", SOME) is None
    assert quicker("Q8_0", SOME) is None
    assert quicker("IQ1_S", SOME) is None
    assert quick_types(["Q8_0", "Q4_1", "Q4_K", "IQ1_S"], SOME) == ["Q8_0", "Q4_K", "IQ1_S"]


def test_advice(settings: Settings) -> None:
    assert slow_advice({"Q4_1": 10}, settings, 1) is None  # nothing is known
    rates._remember(rates._memo(settings, 1), SOME)
    advice = slow_advice({"Q4_1": 75, "Q8_0": 25}, settings, 1)
    assert advice is not None
    assert "75% of the weights" in advice
    assert "Q4_1 takes" in advice
    assert "Q4_0" in advice
    assert slow_advice({"Q4_1": 10, "Q8_0": 90}, settings, 1) is None
    assert slow_advice({}, settings, 1) is None


def test_lines_are_quickest_first() -> None:
    assert [line.split()[0] for line in rate_lines(SOME)] == ["type", "Q4_0", "Q4_K", "Q8_0", "Q4_1", "Q5_0"]


def plain(name: str, tensor_type: str, kld: float) -> Plain:
    tensor = PlannedTensor("a.weight", (256, 1 << 16), "F16", tensor_type, tensor_type)
    return Plain(parse_target(name), Plan(parse_target(name), (tensor,)), kld)


def test_the_choice_for_a_machine() -> None:
    found = [
        plain("Q8_0", "Q8_0", 0.001),
        plain("Q4_K_M", "Q4_K", 0.02),
        plain("Q4_1", "Q4_1", 0.02),
        plain("Q4_0", "Q4_0", 0.05),
    ]
    choice = choose_for_machine(found, SOME)
    assert choice.best.plain.target.name == "Q4_K_M"  # Q4_0 is quicker, and worse
    assert [judged.plain.target.name for judged in choice.judged] == ["Q4_0", "Q4_K_M", "Q8_0", "Q4_1"]
    assert "Q4_K_M: of the types" in choice.lines()[-1]


def test_of_equally_quick_ones_the_smallest() -> None:
    alike = {"Q8_0": TypeRate(0.01, 0.01), "Q4_K": TypeRate(0.0102, 0.0102)}
    found = [plain("Q8_0", "Q8_0", 0.001), plain("Q4_K_M", "Q4_K", 0.02)]
    assert choose_for_machine(found, alike).best.plain.target.name == "Q4_K_M"


def test_types_without_a_rate_are_not_chosen() -> None:
    with pytest.raises(LlmcliError, match="no type"):
        choose_for_machine([plain("IQ4_XS", "IQ4_XS", 0.1)], SOME)
