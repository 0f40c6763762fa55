"""How fast each type is on this CPU: measured on a small model of that type alone, and remembered.

Types differ in speed by far more than in size, and differently on every CPU: whether llama.cpp has a fast path for a
type decides. So a model of one type is made (its weights mean nothing) and run as any model is run. The figures are
seconds for a token and a thousand million weights, apart for reading (many tokens at once) and writing (one at a time).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llmcli.base.bounded_file import read_bounded
from llmcli.base.files import atomic_write, make_private_dir
from llmcli.base.settings import Settings
from llmcli.engine.engine import plan_for
from llmcli.engine.evaluator import Evaluator
from llmcli.engine.model import Model
from llmcli.engine.plan import Request
from llmcli.engine.preflight import check_build
from llmcli.hardware.cpu import read_cpu
from llmcli.models.check import check_model
from llmcli.quant.rate_model import WEIGHTS, write_rate_model
from llmcli.quant.types import USUAL_TYPES, bits_per_weight

MEASURED = ("BF16", *USUAL_TYPES)
_FOLDER, _VERSION = "quantize", 1
_MEMO_BYTES = 1 << 20
# Short rounds, of which the best counts: other work on the machine spoils some of them, seldom all.
_READ_TOKENS, _READ_ROUNDS, _WRITE_TOKENS, _WRITE_ROUNDS = 64, 4, 3, 8
# What a rate is judged by where one number is needed: an answer to a prompt of medium length.
PROMPT_TOKENS, ANSWER_TOKENS = 256, 64
_SLOW = 1.5
_NEAR_BITS = 1.0
_BUSY_LOAD = 1.25  # per core


@dataclass(frozen=True, slots=True)
class TypeRate:
    """Seconds for one token and 10^9 weights."""

    read_s: float
    write_s: float

    @property
    def answer_s(self) -> float:
        """A prompt read and an answer written, for 10^9 weights."""
        return PROMPT_TOKENS * self.read_s + ANSWER_TOKENS * self.write_s


Rates = Mapping[str, TypeRate]


def recall_rates(settings: Settings, threads: int) -> dict[str, TypeRate]:
    """What is remembered for this CPU, build and number of threads; empty where nothing was measured."""
    try:
        data = json.loads(read_bounded(_memo(settings, threads), _MEMO_BYTES))
        return {str(name): TypeRate(float(row["read_s"]), float(row["write_s"])) for name, row in data.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def type_rates(
    settings: Settings, threads: int, notify: Callable[[str], None], names: Sequence[str] = MEASURED
) -> dict[str, TypeRate]:
    """The rates of these types: recalled, and measured where they are not known yet."""
    known = recall_rates(settings, threads)
    missing = [name for name in names if name not in known]
    if missing:
        busy = _is_busy()
        kept = "other work is going on, so it is not kept" if busy else "it is kept for the next time"
        notify(f"measuring how fast {len(missing)} types are on this CPU; {kept}")
        with tempfile.TemporaryDirectory(prefix="llmcli-rates-") as folder:
            for name in missing:
                known[name] = _measure(Path(folder) / f"{name}.gguf", name, threads)
        if not busy:
            _remember(_memo(settings, threads), known)
    return known


def _is_busy() -> bool:
    """Whether more than our own threads wanted the cores in the last minute."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > _BUSY_LOAD * (os.cpu_count() or 1)


def _memo(settings: Settings, threads: int) -> Path:
    cpu = read_cpu()
    row = (_VERSION, check_build(settings).digest, cpu.model_name, sorted(cpu.features), threads)
    key = hashlib.sha256(repr(row).encode()).hexdigest()[:32]
    return settings.state_dir / _FOLDER / f"rates-{key}.json"


def _remember(memo: Path, known: Rates) -> None:
    with contextlib.suppress(OSError):
        make_private_dir(memo.parent)
        atomic_write(memo, json.dumps({name: asdict(rate) for name, rate in known.items()}).encode())


def _measure(path: Path, name: str, threads: int) -> TypeRate:
    write_rate_model(path, name)
    request = Request(n_ctx=256, n_threads=threads, n_threads_batch=threads, n_ubatch=_READ_TOKENS, n_gpu_layers=0)
    plan = plan_for(request, check_model(path, need_vocabulary=False))
    tokens = [3 + i % 50 for i in range(_READ_TOKENS)]
    with Model.load(path, plan) as model, Evaluator(model, plan) as evaluator:
        evaluator.decode(tokens, 0, wanted=1)  # the first one also allocates
        read_s = min(_timed(evaluator, tokens, 1) for _ in range(_READ_ROUNDS))
        write_s = min(_timed(evaluator, tokens[:1], _WRITE_TOKENS) for _ in range(_WRITE_ROUNDS))
    path.unlink()
    return TypeRate(read_s / len(tokens) / WEIGHTS * 1e9, write_s / _WRITE_TOKENS / WEIGHTS * 1e9)


def _timed(evaluator: Evaluator, tokens: Sequence[int], times: int) -> float:
    evaluator.clear()
    begun = time.perf_counter()
    for turn in range(times):
        evaluator.decode(tokens, turn * len(tokens), wanted=1)
    evaluator.settle()
    return time.perf_counter() - begun


# ---- what follows from the rates -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens a second that a model should reach, by the weights of each type alone."""

    read_tok_s: float
    write_tok_s: float
    answer_s: float


def estimate(weights: Mapping[str, int], rates: Rates) -> Estimate | None:
    """For a model with so many weights of each type; types without a rate are left out. None where none has one."""
    known = {name: count / 1e9 for name, count in weights.items() if name in rates}
    read_s = sum(count * rates[name].read_s for name, count in known.items())
    write_s = sum(count * rates[name].write_s for name, count in known.items())
    if not read_s or not write_s:
        return None
    return Estimate(1 / read_s, 1 / write_s, PROMPT_TOKENS * read_s + ANSWER_TOKENS * write_s)


def quicker(name: str, rates: Rates) -> str | None:
    """A type of about the same size that answers in much less time here; None where there is none."""
    if name not in rates:
        return None
    bits, slow = bits_per_weight(name), rates[name].answer_s
    near = [other for other in rates if abs(bits_per_weight(other) - bits) <= _NEAR_BITS]
    best = min(near, key=lambda other: rates[other].answer_s)
    return best if rates[best].answer_s * _SLOW < slow else None


def quick_types(names: Sequence[str], rates: Rates) -> list[str]:
    """Those of `names` that are not slow here for their size."""
    return [name for name in names if quicker(name, rates) is None]


def slow_advice(weights: Mapping[str, int], settings: Settings, threads: int) -> str | None:
    """For `show` and `doctor`: what is slow about a model with so many weights of each type, and what to do.

    Only what was measured here before is told of: nothing is measured now. None where all is well or nothing known.
    """
    rates, total = recall_rates(settings, threads), sum(weights.values())
    slow = {name: other for name in weights if (other := quicker(name, rates))}
    share = sum(weights[name] for name in slow) / total if total else 0.0
    if share < 0.25:  # less than a quarter of the weights is not felt
        return None
    worst = max(slow, key=lambda name: weights[name])
    factor = rates[worst].answer_s / rates[slow[worst]].answer_s
    return (
        f"{share:.0%} of the weights are of types that are slow on this CPU: {worst} takes {factor:.1f} times as long "
        f"as {slow[worst]}; quantize the original to that"
    )


def rate_lines(rates: Rates) -> list[str]:
    """The rates as a table, the quickest first: for a model of 10^9 weights of the type."""
    rows = [("type", "bpw", "reads, tok/s", "writes, tok/s")]
    for name, rate in sorted(rates.items(), key=lambda item: item[1].answer_s):
        rows.append((name, f"{bits_per_weight(name):.2f}", f"{1 / rate.read_s:.1f}", f"{1 / rate.write_s:.1f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
