"""Two runs side by side: how far the medians are apart, and whether the samples show it.

Confidence comes from scipy: the rank test of Mann and Whitney (two-sided; it assumes nothing of the distribution) says
whether the two sets of samples differ, a bootstrap of the ratio of the medians (percentile, 95%) says by how much.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmcli.base.errors import UsageError
from llmcli.bench.result import Row
from llmcli.bench.sizes import Sizes

Aspect = Literal["machine", "build", "model", "settings"]
ASPECTS: tuple[Aspect, ...] = ("machine", "build", "model", "settings")
Verdict = Literal["faster", "slower", "same", "unclear"]
_LEVEL = 0.05
# The rank test cannot fall below the level with fewer: 2 / C(2n, n) is 0.029 for 4 and 0.1 for 3.
LEAST_SAMPLES = 4
_RESAMPLES = 2000
_SEED = 7
_SETTINGS = ("n_batch", "n_ubatch", "n_threads", "type_k", "type_v", "n_gpu_layers", "flash_attn", "load_mode")
_MACHINE = ("cpu", "cores_physical", "cores_usable", "quota", "memory_bytes", "system", "devices")


@dataclass(frozen=True, slots=True)
class Change:
    """One test in both runs. change, low, high: shares, 0.05 is 5% faster; the bounds and p are None for too few."""

    test: str
    kind: str
    before_ts: float
    after_ts: float
    n_before: int
    n_after: int
    change: float
    low: float | None
    high: float | None
    p_value: float | None
    load_change: float | None
    memory_change: float | None

    @property
    def verdict(self) -> Verdict:
        """What the samples show."""
        if self.p_value is None:
            return "unclear"
        if self.p_value >= _LEVEL:
            return "same"
        return "faster" if self.change > 0 else "slower"

    def as_json(self) -> dict[str, Any]:
        """With the names of docs/commands/bench.md."""
        names = (
            *("test", "before_ts", "after_ts", "n_before", "n_after", "change", "low", "high", "p_value", "verdict"),
            *("load_change", "memory_change"),
        )
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is in both, and the tests that one side lacks."""

    changes: tuple[Change, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


def differences(before: Sequence[Row], after: Sequence[Row]) -> dict[Aspect, str]:
    """In what the two were not made alike: aspect -> what it was and is. The load of the machine is none of them."""
    found: dict[Aspect, str] = {}
    ours = _all_ours(before, after)
    for aspect in ASPECTS:
        if aspect != "settings":
            one, other = ({_value(aspect, row, ours=ours) for row in rows} for rows in (before, after))
            if one != other:
                found[aspect] = f"{', '.join(sorted(one))} / {', '.join(sorted(other))}"
    keys = {frozenset(_settings(row) for row in rows) for rows in (before, after)}
    if len(keys) > 1:
        found["settings"] = _first_setting(before, after)
    return found


def _all_ours(*runs: Sequence[Row]) -> bool:
    """Whether every row has what llama-bench's lack; else both sides are compared by what both have."""
    return all(isinstance(row.get("environment"), Mapping) and "model_content_id" in row for run in runs for row in run)


def _value(aspect: Aspect, row: Row, *, ours: bool) -> str:
    if aspect == "model":
        return str(row["model_content_id"])[:12] if ours else f"{row.get('model_type')} ({row.get('model_size')} bytes)"
    if aspect == "build":
        return str(row.get("build_commit"))
    if not ours:
        return str(row.get("cpu_info"))
    machine, now = row["environment"]["machine"], row["environment"]["conditions"]
    return " ".join([*(str(machine.get(name)) for name in _MACHINE), str(now.get("governor"))])


def _settings(row: Row) -> tuple[Any, ...]:
    return tuple(_setting(row, name) for name in _SETTINGS)


def _setting(row: Row, name: str) -> Any:
    # llama-bench writes -1 for "all layers" where no device could take any.
    return 0 if name == "n_gpu_layers" and row.get("backends") == "CPU" else row.get(name)


def _first_setting(before: Sequence[Row], after: Sequence[Row]) -> str:
    for name in _SETTINGS:
        one, other = ({str(_setting(row, name)) for row in rows} for rows in (before, after))
        if one != other:
            return f"{name} {', '.join(sorted(one))} / {', '.join(sorted(other))}"
    return "combinations of settings"


def require_alike(before: Sequence[Row], after: Sequence[Row], across: Iterable[Aspect]) -> None:
    """Raise UsageError where the runs differ in an aspect that is not in `across`."""
    unlike = {aspect: what for aspect, what in differences(before, after).items() if aspect not in set(across)}
    if unlike:
        aspect, what = next(iter(unlike.items()))
        more = f", and also: {', '.join(list(unlike)[1:])}" if len(unlike) > 1 else ""
        raise UsageError(
            f"the two were not made alike, {aspect}: {what}{more}",
            hint=f"if that is meant: --across {','.join(unlike)}",
        )


def compare(before: Sequence[Row], after: Sequence[Row], *, across: Iterable[Aspect] = ()) -> Comparison:
    """Pair the tests by sizes, and by model and settings where these are not `across`. Of a test that one side has
    twice, the last one counts.
    """
    ignored, ours = set(across), _all_ours(before, after)
    one, other = ({_key(row, ignored, ours=ours): row for row in rows} for rows in (before, after))
    return Comparison(
        tuple(_change(one[key], other[key]) for key in one if key in other),
        tuple(_title(one[key]) for key in one if key not in other),
        tuple(_title(other[key]) for key in other if key not in one),
    )


def _key(row: Row, ignored: set[Aspect], *, ours: bool) -> tuple[Any, ...]:
    settings = () if "settings" in ignored else _settings(row)
    model = "" if "model" in ignored else _value("model", row, ours=ours)
    return (row["n_prompt"], row["n_gen"], row["n_depth"], model, *settings)


def _sizes(row: Row) -> Sizes:
    return Sizes(row["n_prompt"], row["n_gen"], row["n_depth"])


def _title(row: Row) -> str:
    return _sizes(row).name


def _change(before: Row, after: Row) -> Change:
    one, other = before["samples_ts"], after["samples_ts"]
    base, now = statistics.median(one), statistics.median(other)
    enough = min(len(one), len(other)) >= LEAST_SAMPLES
    low, high = ratio_interval(one, other) if enough else (None, None)
    return Change(
        test=_title(after),
        kind=_sizes(after).kind,
        before_ts=base,
        after_ts=now,
        n_before=len(one),
        n_after=len(other),
        change=now / base - 1,
        low=low,
        high=high,
        p_value=rank_test(one, other) if enough else None,
        load_change=_share(before.get("load_s"), after.get("load_s")),
        memory_change=_share(before.get("peak_bytes"), after.get("peak_bytes")),
    )


def _share(before: float | None, after: float | None) -> float | None:
    return after / before - 1 if before and after else None


def rank_test(before: Sequence[float], after: Sequence[float]) -> float:
    """The p-value of Mann and Whitney's test: how likely samples lie so far apart by chance alone."""
    from scipy.stats import mannwhitneyu  # half a second to import

    return float(mannwhitneyu(before, after, alternative="two-sided").pvalue)


def ratio_interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of median(after) / median(before) - 1, by resampling both; the same for the same samples."""
    if len(set(before)) == 1 == len(set(after)):  # nothing to resample
        change = after[0] / before[0] - 1
        return change, change
    import numpy as np
    from scipy.stats import bootstrap

    def ratio(one: Any, other: Any, axis: int = -1) -> Any:
        return np.median(other, axis=axis) / np.median(one, axis=axis)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns where all resamples are equal, which is an answer too
        found = bootstrap(
            (np.asarray(before), np.asarray(after)),
            ratio,
            n_resamples=_RESAMPLES,
            method="percentile",
            rng=np.random.default_rng(_SEED),
            vectorized=True,
        ).confidence_interval
    return float(found.low) - 1, float(found.high) - 1
