"""What the tests of measuring share: results and rows that are made up, without a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmcli.bench.result import Measured, Result, Row, row_of
from llmcli.bench.sizes import Sizes
from llmcli.engine.plan import RunPlan
from tests.test_engine_plan import LLAMA

NS = 1_000_000_000
PLAN = RunPlan(
    n_ctx=512,
    n_threads=8,
    n_threads_batch=8,
    n_batch=2048,
    n_ubatch=256,
    n_gpu_layers=0,
    flash_attn="auto",
    type_k="f16",
    type_v="f16",
    use_mmap=True,
    use_mlock=False,
    swa_full=False,
    weights_bytes=LLAMA.tensor_bytes,
    kv_bytes=64 << 20,
)
ENVIRONMENT: dict[str, Any] = {
    "machine": {
        "cpu": "EPYC",
        "architecture": "x86_64",
        "cores_physical": 8,
        "cores_usable": 8,
        "quota": None,
        "memory_bytes": 32 << 30,
        "system": "Linux x86_64",
        "devices": [],
    },
    "build": {
        "engine": "llama-cpp-python 1 (llama.cpp 2)",
        "backends": ["CPU"],
        "features": ["AVX2"],
        "environment": "",
    },
    "versions": {"llmcli": "0.1.0", "python": "3.11.7"},
    "conditions": {"load_1min": 0.5, "governor": "performance", "temperature_c": None, "turbo": None},
}
MODEL = Measured("llama", "/models/llama.gguf", "ab" * 32, "llama 8B Q4_K - Medium", LLAMA)


def result(*rates: float, sizes: Sizes | None = None, **changes: Any) -> Result:
    """A result whose samples have these rates, in tokens per second."""
    what = sizes or Sizes(n_prompt=512)
    samples = tuple(round(what.timed_tokens * NS / rate) for rate in rates)
    made = Result(
        model=MODEL,
        sizes=what,
        plan=PLAN,
        samples_ns=samples,
        load_s=0.25,
        context_s=0.01,
        peak_bytes=5 << 30,
        test_time="2026-01-02T03:04:05Z",
        environment=ENVIRONMENT,
        repetitions=len(rates),
    )
    return replace(made, **changes)


def row(*rates: float, **changes: Any) -> Row:
    """The row of such a result."""
    return row_of(result(*rates, **changes))
