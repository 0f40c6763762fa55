"""Whether what a file holds is a row: everything that is read of a row later has its type checked here, once.

A row comes from a file that anyone may have written. The figures that follow from the samples (median, quartiles, the
name of the test) are made anew, so that a row says the same everywhere whoever wrote it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from llmcli.bench.result import Row
from llmcli.bench.sizes import Sizes
from llmcli.bench.stats import summarize

_SIZES = ("n_prompt", "n_gen", "n_depth")
_MOST_TOKENS = 1 << 31
_TEXTS = ("model_name", "model_type", "model_content_id", "model_filename", "build_commit", "cpu_info", "gpu_info",
          "backends", "type_k", "type_v", "load_mode", "test_time")  # fmt: skip
_COUNTS = ("n_batch", "n_ubatch", "n_threads", "n_gpu_layers")
_FIGURES = ("load_s", "peak_bytes", "model_size")


def checked_row(row: Any) -> Row:
    """The row, with what ours have and llama-bench's lack. Raises ValueError, in words, for what is no row."""
    if not isinstance(row, Mapping):
        raise ValueError("a row is no object")
    found = dict(row)
    sizes = Sizes(*(_count(found, name) for name in _SIZES))
    if not sizes.timed_tokens:
        raise ValueError("n_prompt and n_gen are both 0")
    samples = _samples(found)
    rates = summarize(samples)
    for name in (*_TEXTS, *_COUNTS, "flash_attn"):
        _require_scalar(found, name)
    for name in _FIGURES:
        _require_figure(found, name)
    _require_environment(found)
    if "test_time" not in found:
        raise ValueError("test_time is missing")
    return {
        **found,
        "n_threads": found.get("n_threads"),
        "test": sizes.name,
        "repetitions": rates.n,
        "median_ts": rates.median,
        "p25_ts": rates.p25,
        "p75_ts": rates.p75,
        "samples_ts": samples,
    }


def parse_json(text: str) -> Any:
    """JSON without the NaN and Infinity that Python would let pass. Raises ValueError, also for what is too deep."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("too deep") from None


def parse_cell(name: str, text: str) -> Any:
    """The value of a cell of a csv file: None for an empty one, a number, a list, an object, or else the text.

    Names stay text in any case: a commit may read 1234567 or 12e4567.
    """
    if name in _TEXTS:
        return text
    try:
        return parse_json(text) if text else None
    except ValueError:
        return text


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    return found if math.isfinite(found := float(text)) else _no_number(text)


def _count(row: Row, name: str) -> int:
    found = row.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < _MOST_TOKENS:
        raise ValueError(f"{name} is no number of tokens" if name in row else f"{name} is missing")
    return found


def _samples(row: Row) -> list[float]:
    samples = row.get("samples_ts") or [row.get("avg_ts")]
    if not isinstance(samples, list) or not all(_is_figure(rate) and rate > 0 for rate in samples):
        raise ValueError("samples_ts, or avg_ts, are no rates")
    return [float(rate) for rate in samples]


def _is_figure(value: Any) -> bool:
    """Whether it is a number that a float can hold, which an int of JSON need not be."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -1e300 < value < 1e300


def _require_scalar(row: Row, name: str) -> None:
    if isinstance(row.get(name), (list, dict)):
        raise ValueError(f"{name} has parts")


def _require_figure(row: Row, name: str) -> None:
    if row.get(name) is not None and not (_is_figure(row[name]) and row[name] >= 0):
        raise ValueError(f"{name} is no figure")


def _require_environment(row: Row) -> None:
    """llama-bench has none; where there is one it has its parts."""
    if "environment" not in row:
        return
    found = row["environment"]
    if not isinstance(found, Mapping) or not all(
        isinstance(found.get(part), Mapping) for part in ("machine", "conditions")
    ):
        raise ValueError("environment lacks its parts")
