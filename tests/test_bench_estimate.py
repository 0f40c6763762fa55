"""The run plan ahead of time: what fits, how long a context, how the layers are shared out, which rates."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.settings import load
from llmcli.bench.estimate import Estimate, Expected, estimate, layers_by_device, longest_context
from llmcli.bench.machine import Machine
from llmcli.bench.machine import remember as remember_machine
from llmcli.bench.runs import remember
from llmcli.bench.sizes import Sizes
from llmcli.engine.fit import run_need
from llmcli.engine.plan import Device, Request
from llmcli.hardware.memory import Memory
from llmcli.models.check import check_model
from llmcli.models.estimate import memory_need
from llmcli.models.identity import Inspected
from tests.bench_case import ENVIRONMENT, MODEL, PLAN, row
from tests.test_engine_plan import LLAMA

GIB = 1 << 30
ID = "ab" * 32
TG = Sizes(n_gen=128)


def of(available: int, request: Request | None = None) -> Estimate:
    memory = Memory(64 * GIB, available, None, None, 0, 0, None)
    model = Inspected(Path("/m.gguf"), LLAMA, ID)
    return estimate(model, request or Request(n_ctx=4096), memory, (), load(), lambda *_: None)


def test_a_window_is_counted_as_a_run_keeps_it() -> None:
    facts = replace(LLAMA, sliding_window=512, window_layers=(True,) * LLAMA.n_layer)
    memory = Memory(64 * GIB, 32 * GIB, None, None, 0, 0, None)
    model = Inspected(Path("/m.gguf"), facts, ID)
    found = estimate(model, Request(n_ctx=4096), memory, (), load(), lambda *_: None)
    assert found.need == run_need(facts, 4096) == memory_need(facts, 4096, n_parallel=3, swa_full=True)


def test_what_it_takes() -> None:
    found = of(32 * GIB)
    assert found.need == run_need(LLAMA, 4096)
    assert (found.fits, found.n_ctx, found.problem) == (True, 4096, None)
    assert not of(found.need.total_bytes - 1).fits
    assert of(found.need.total_bytes).fits
    assert json.loads(json.dumps(found.as_json()))["need"]["total_bytes"] == found.need.total_bytes


def test_a_plan_that_cannot_be_made_is_told() -> None:
    found = of(32 * GIB, Request(n_ctx=4096, type_v="q8_0", flash_attn="off"))
    assert (found.plan, found.fits) == (None, False)
    assert "needs flash attention" in (found.problem or "")


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_the_longest_context_is_the_last_that_fits(kind: str) -> None:
    available = 8 * GIB
    longest = longest_context(LLAMA, Request(), kind, available)
    assert 0 < longest < LLAMA.n_ctx_train
    assert longest % 256 == 0

    def need(n_ctx: int) -> int:
        return memory_need(LLAMA, n_ctx, kind, kind, n_parallel=2).total_bytes

    assert need(longest) <= available < need(longest + 256)


def test_context_ends_at_what_was_trained_and_at_nothing() -> None:
    assert longest_context(LLAMA, Request(), "f16", 999 * GIB) == LLAMA.n_ctx_train
    assert longest_context(LLAMA, Request(), "f16", GIB) == 0
    odd = replace(LLAMA, n_embd_head_k=80, n_embd_head_v=80, n_head_kv=(1,) * 32)
    assert longest_context(odd, Request(), "q8_0", 999 * GIB) == 0  # rows that q8_0 cannot have


def device(name: str, free: int) -> Device:
    return Device(name, "", free, free)


def test_layers_are_shared_out_by_free_memory() -> None:
    assert layers_by_device(33, (device("CUDA0", 30 * GIB), device("CUDA1", 10 * GIB))) == (("CUDA0", 25), ("CUDA1", 8))
    assert layers_by_device(33, (device("Metal", 0),)) == (("Metal", 33),)
    assert layers_by_device(0, (device("CUDA0", GIB),)) == ()
    assert layers_by_device(33, ()) == ()


def expected(**changes: Any) -> Any:
    plan = replace(PLAN, **changes)
    return Expected(ENVIRONMENT, load())(Inspected(Path("/m.gguf"), LLAMA, ID), plan)


def test_rates_of_the_last_bench() -> None:
    assert expected() is None
    remember([row(100, 110, 105), row(20, 21, 22, sizes=TG)], "", load())
    remember([row(200, 210, 220), row(5, 5, 5, sizes=Sizes(n_gen=8, n_depth=64))], "", load())
    found = expected()
    assert (found.prefill_tok_s, found.decode_tok_s) == (pytest.approx(210), pytest.approx(21))
    assert (found.source, found.of) == ("bench", "2026-01-02")
    four = replace(PLAN, n_threads=4)
    remember([row(50, plan=four), row(10, sizes=TG, plan=four)], "", load())
    assert expected().prefill_tok_s == pytest.approx(210)
    assert expected(n_threads=4).prefill_tok_s == pytest.approx(50)


def test_rates_of_another_model_or_machine_are_none() -> None:
    other = {**ENVIRONMENT, "machine": {**ENVIRONMENT["machine"], "cpu": "Xeon"}}
    remember([row(1, environment=other), row(2, model=replace(MODEL, content_id="cd" * 32))], "", load())
    assert expected() is None


def test_a_history_that_cannot_be_read_costs_the_rates_alone(llmcli_home: Path) -> None:
    (llmcli_home / "state").mkdir()
    (llmcli_home / "state" / "bench").write_text("in the way")
    assert Expected(ENVIRONMENT, load())(Inspected(Path("/m.gguf"), LLAMA, ID), PLAN) is None


def test_rates_of_the_roofline(scripted_model: Callable[..., Path]) -> None:
    settings = load()
    remember_machine(Machine(8, 40e9, 800e9), "EPYC, 8 of 8 cores", settings)
    path = scripted_model(["hi"])
    inspected = Inspected(path, check_model(path), ID)
    found = Expected(ENVIRONMENT, settings)(inspected, PLAN)
    assert found
    assert (found.source, found.of) == ("roofline", "40 GB/s")
    assert found.prefill_tok_s
    assert found.decode_tok_s
    assert found.prefill_tok_s > found.decode_tok_s > 0
