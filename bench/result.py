"""What was measured, as one flat row: the fields of llama-bench under its names, then ours.

A row is what every format writes, what history keeps, and what a comparison reads; it is plain JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.base.units import format_count
from llmcli.bench.environment import BUSY_SHARE
from llmcli.bench.sizes import Sizes
from llmcli.bench.stats import WIDE_SPREAD, Summary, drift, is_wide, summarize
from llmcli.bench.trials import Trial
from llmcli.engine.plan import RunPlan
from llmcli.models.facts import ModelFacts

Row = dict[str, Any]
_NS = 1_000_000_000
_FLASH = {"auto": -1, "off": 0, "on": 1}
# Fields of llama-bench for things that cannot be set here; these are its own defaults.
_FIXED: Mapping[str, Any] = {
    "cpu_mask": "0x0",
    "cpu_strict": False,
    "poll": 50,
    "n_cpu_moe": 0,
    "split_mode": "layer",
    "main_gpu": 0,
    "no_kv_offload": False,
    "devices": "auto",
    "tensor_split": "0.00",
    "tensor_buft_overrides": "none",
    "lazy_mode": "auto",
    "embeddings": False,
    "no_op_offload": 0,
    "no_host": False,
    "repack": True,
    "fit_target": 0,
    "fit_min_ctx": 0,
}
# llama-bench's order, from `test::get_fields` in its source.
LLAMA_BENCH_FIELDS = (
    *("build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename", "model_type"),
    *("model_size", "model_n_params", "n_batch", "n_ubatch", "n_threads", "cpu_mask", "cpu_strict", "poll"),
    *("type_k", "type_v", "n_gpu_layers", "n_cpu_moe", "split_mode", "main_gpu", "no_kv_offload", "flash_attn"),
    *("devices", "tensor_split", "tensor_buft_overrides", "load_mode", "lazy_mode", "embeddings", "no_op_offload"),
    *("no_host", "repack", "fit_target", "fit_min_ctx", "n_prompt", "n_gen", "n_depth", "test_time"),
    *("avg_ns", "stddev_ns", "avg_ts", "stddev_ts"),
)
OUR_FIELDS = (
    *("test", "model_name", "model_content_id", "n_ctx", "repetitions", "median_ts", "p25_ts", "p75_ts", "min_ts"),
    *("max_ts", "load_s", "context_s", "peak_bytes", "kv_bytes", "flags", "complete", "samples_ns", "samples_ts"),
    *("environment",),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The model a result is of."""

    name: str
    path: str
    content_id: str
    description: str
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class Result:
    """One test that was run at least once.

    load_s      of the model, which trials in a row share; context_s: of this trial's context
    trouble     what ended it with fewer samples than asked for, None where nothing did
    """

    model: Measured
    sizes: Sizes
    plan: RunPlan
    samples_ns: tuple[int, ...]
    load_s: float
    context_s: float
    peak_bytes: int | None
    test_time: str
    environment: dict[str, Any]
    repetitions: int
    trouble: str | None = None

    @property
    def samples_ts(self) -> tuple[float, ...]:
        """Tokens per second of each sample."""
        return tuple(self.sizes.timed_tokens * _NS / ns for ns in self.samples_ns)

    @property
    def summary(self) -> Summary:
        """Of the rates."""
        return summarize(self.samples_ts)


@dataclass(frozen=True, slots=True)
class Failed:
    """A trial of which there is nothing to show."""

    trial: Trial
    error: LlmcliError


def busy_flag(environment: Mapping[str, Any]) -> str | None:
    """Whether other work took part of the machine when the environment was looked at, which is before a test."""
    machine, now = environment["machine"], environment["conditions"]
    if now["load_1min"] is None or now["load_1min"] <= BUSY_SHARE * machine["cores_physical"]:
        return None
    return f"busy machine: load above {BUSY_SHARE:g} per core before the test"


def flags_of(result: Result) -> tuple[str, ...]:
    """What speaks against believing the figures, one line each."""
    flags, rates = [], result.samples_ts
    machine = result.environment["machine"]
    if is_wide(rates):
        flags.append(f"wide spread: the middle half spans more than {WIDE_SPREAD:.0%} of the median")
    if (moved := drift(rates)) is not None:
        why = "throttling?" if moved < 0 else "was it warm?"
        flags.append(f"drift: {moved:+.0%} from the first samples to the last ({why})")
    if result.plan.n_threads > machine["cores_usable"]:
        flags.append(f"{result.plan.n_threads} threads on {format_count(machine['cores_usable'], 'usable core')}")
    if busy := busy_flag(result.environment):
        flags.append(busy)
    trained = result.model.facts.n_ctx_train
    if trained and result.sizes.total_tokens > trained:
        flags.append(f"past the {format_count(trained, 'token')} the model was trained on")
    if result.trouble is not None:
        done = f"{len(result.samples_ns)} of {format_count(result.repetitions, 'repetition')}"
        flags.append(f"{done}: {result.trouble}")
    return tuple(flags)


def row_of(result: Result) -> Row:
    """The row of a result."""
    return {**_llama_bench_row(result), **_our_row(result)}


def _llama_bench_row(result: Result) -> Row:
    plan, rates = result.plan, result.summary
    times, facts = summarize([float(ns) for ns in result.samples_ns]), result.model.facts
    machine, build = result.environment["machine"], result.environment["build"]
    row = {
        **_FIXED,
        "build_commit": build["engine"],
        "build_number": 0,
        "cpu_info": machine["cpu"],
        "gpu_info": ", ".join(machine["devices"]),
        "backends": ", ".join(name for name in build["backends"] if name != "CPU") or "CPU",
        "model_filename": result.model.path,
        "model_type": result.model.description,
        "model_size": facts.tensor_bytes,
        "model_n_params": facts.n_params,
        "n_batch": plan.n_batch,
        "n_ubatch": plan.n_ubatch,
        "n_threads": plan.n_threads,
        "type_k": plan.type_k,
        "type_v": plan.type_v,
        "n_gpu_layers": plan.n_gpu_layers,
        "flash_attn": _FLASH[plan.flash_attn],
        "load_mode": _load_mode(plan),
        "n_prompt": result.sizes.n_prompt,
        "n_gen": result.sizes.n_gen,
        "n_depth": result.sizes.n_depth,
        "test_time": result.test_time,
        "avg_ns": round(times.mean),
        "stddev_ns": round(times.stdev),
        "avg_ts": rates.mean,
        "stddev_ts": rates.stdev,
    }
    return {name: row[name] for name in LLAMA_BENCH_FIELDS}


def _our_row(result: Result) -> Row:
    rates = result.summary
    row = {
        "test": result.sizes.name,
        "model_name": result.model.name,
        "model_content_id": result.model.content_id,
        "n_ctx": result.plan.n_ctx,
        "repetitions": rates.n,
        "median_ts": rates.median,
        "p25_ts": rates.p25,
        "p75_ts": rates.p75,
        "min_ts": rates.least,
        "max_ts": rates.most,
        "load_s": result.load_s,
        "context_s": result.context_s,
        "peak_bytes": result.peak_bytes,
        "kv_bytes": result.plan.kv_bytes,
        "flags": list(flags_of(result)),
        "complete": result.trouble is None,
        "samples_ns": list(result.samples_ns),
        "samples_ts": list(result.samples_ts),
        "environment": result.environment,
    }
    return {name: row[name] for name in OUR_FIELDS}


def _load_mode(plan: RunPlan) -> str:
    if plan.use_mmap:
        return "mmap+mlock" if plan.use_mlock else "auto"
    return "mlock" if plan.use_mlock else "none"
