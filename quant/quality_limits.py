"""Limits that a user sets on a model's quality: `kld>0.1`, `same_top<95`, `ppl_ratio>=1.02`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llmcli.base.errors import UsageError
from llmcli.base.text import printable
from llmcli.base.units import parse_bytes

# What may be limited: name on the command line -> name in the --json account
METRICS: dict[str, str] = {
    "ppl": "ppl",
    "ppl_delta": "ppl_delta",
    "ppl_ratio": "ppl_ratio",
    "kld": "kld_mean",
    "kld_mean": "kld_mean",
    "kld_median": "kld_median",
    "kld_p90": "kld_p90",
    "kld_p99": "kld_p99",
    "kld_p999": "kld_p999",
    "kld_max": "kld_max",
    "rms_dp": "rms_dp_percent",
    "same_top": "same_top_percent",
    "size": "file_bytes",
    "bpw": "bpw",
    "pp": "prefill_tok_s",
    "tg": "decode_tok_s",
}
_ALONE = frozenset({"ppl", "size", "bpw", "pp", "tg"})
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_FORM = re.compile(r"\s*([a-z_0-9]+)\s*(>=|<=|>|<)\s*(\S+?)\s*%?\s*\Z", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,12})?\Z", re.ASCII)
_EXAMPLE = "write it like kld>0.1 or same_top<95"


@dataclass(frozen=True, slots=True)
class Limit:
    """It is missed where `metric relation bound` holds."""

    metric: str
    relation: str
    bound: float

    @property
    def needs_base(self) -> bool:
        """Whether it says something about two models."""
        return self.metric not in _ALONE

    def missed_by(self, figures: Mapping[str, float | None]) -> str | None:
        """Why these figures (by their --json names) miss it, None where they keep it or were not measured."""
        value = figures.get(METRICS[self.metric])
        if value is None or not _COMPARE[self.relation](value, self.bound):
            return None
        return f"{self.metric} is {value:.6g}, and the limit is {self.metric}{self.relation}{self.bound:g}"


def parse_limit(text: str) -> Limit:
    """One limit. Raises UsageError for anything else, naming what can be limited."""
    found = _FORM.match(text)
    metric = found[1].lower() if found else ""
    if not found or metric not in METRICS:
        raise UsageError(
            f"{printable(text)!r} is no limit", hint=f"{_EXAMPLE}; what can be limited: {', '.join(METRICS)}"
        )
    return Limit(metric, found[2], _bound(metric, found[3], text))


def _bound(metric: str, value: str, text: str) -> float:
    if metric == "size":
        return float(parse_bytes(value))
    if not _NUMBER.match(value):
        raise UsageError(f"{printable(text)!r}: {printable(value)} is not a number", hint=_EXAMPLE)
    return float(value)
