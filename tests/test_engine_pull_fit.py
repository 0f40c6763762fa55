"""Which quantization fits, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmcli.base.errors import ResourceError
from llmcli.engine.fit import run_need
from llmcli.engine.pull_fit import choose, fit_of
from llmcli.hardware.memory import Memory
from llmcli.models.hub_listing import RemoteFile
from llmcli.models.pull_plan import Candidates
from llmcli.models.remote_models import RemoteModel
from tests.test_engine_plan import LLAMA

GIB = 1 << 30


def memory(total: int, limit: int | None = None) -> Memory:
    return Memory(total, total // 2, limit, "/sys/x" if limit else None, 0, 0)


def candidates(**sizes: int) -> Candidates:
    models = [RemoteModel((RemoteFile(f"m-{quant}.gguf", size * GIB, None),)) for quant, size in sizes.items()]
    return Candidates("o/m", tuple(sorted(models, key=lambda m: m.size_bytes)), None, "  the table")


ALL = {"Q2_K": 3, "Q4_K_M": 5, "Q6_K": 7, "Q8_0": 9, "F16": 16}


@pytest.mark.parametrize(
    ("gib", "quant", "words"),
    [
        (64, "Q8_0", "Q8_0 is the largest of 4 quantizations, and it fits"),
        (10, "Q6_K", "Q6_K is the largest of 4 quantizations that fits (Q8_0 does not)"),
        (7, "Q4_K_M", "that fits (Q6_K does not)"),
        (5, "Q2_K", "that fits (Q4_K_M does not)"),
    ],
)
def test_the_largest_that_fits(gib: int, quant: str, words: str) -> None:
    model, reason = choose(candidates(**ALL), memory(gib * GIB))
    assert model.quant == quant
    assert words in reason
    assert reason.endswith("; another one with --quant")


def test_the_limit_of_a_container_counts() -> None:
    assert choose(candidates(**ALL), memory(64 * GIB, limit=7 * GIB))[0].quant == "Q4_K_M"


def test_whole_numbers_only_where_there_is_nothing_else() -> None:
    model, reason = choose(candidates(F16=16), memory(64 * GIB))
    assert model.quant == "F16"
    assert reason.startswith("F16 is the only quantization: ")


def test_none_fits() -> None:
    with pytest.raises(ResourceError) as caught:
        choose(candidates(**ALL), memory(2 * GIB))
    assert caught.value.exit_code == 6
    assert "no quantization of o/m fits this machine: Q2_K needs roughly 3.5 GiB" in caught.value.message
    assert str(caught.value.hint).endswith("\n  the table")


def test_the_figures() -> None:
    fit = fit_of(GIB, None, memory(8 * GIB))
    assert fit.need is None
    assert fit.needed_bytes == GIB + GIB // 10 + (256 << 20)
    assert fit.usable_bytes == 8 * GIB - int(8 * GIB * 0.15)
    assert fit.as_json()["fits"] is True
    assert fit_of(GIB, None, memory(GIB)).usable_bytes == GIB // 2


@pytest.mark.parametrize("window", [None, 512])
def test_the_same_estimate_as_a_run_is_judged_by(window: int | None) -> None:
    """The file holds more than tensors; a model of the same kind and another quantization differs in these alone."""
    facts = replace(LLAMA, sliding_window=window, window_layers=(bool(window),) * LLAMA.n_layer)
    fit = fit_of(facts.file_bytes, facts, memory(64 * GIB))
    assert fit.need == run_need(facts, fit.n_ctx)
    other = fit_of(facts.file_bytes + GIB, facts, memory(64 * GIB))
    assert other.needed_bytes == fit.needed_bytes + GIB
    parts = ("weights_bytes", "kv_bytes", "compute_bytes", "vocabulary_bytes")
    assert fit.as_json()["needed_bytes"] == sum(fit.as_json()[part] for part in parts)
