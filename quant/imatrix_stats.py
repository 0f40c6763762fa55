"""What an importance matrix says about each weight, with llama-imatrix's definitions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llmcli.quant.imatrix import Entry, Floats, Imatrix

_BLOCK = re.compile(r"blk\.(\d+)\.")
_ACTIVE_ABOVE = 1e-5


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """Of one weight; an activation is the mean square of one input column, experts without data left out.

    layer     None outside the blocks
    active    share of columns above 1e-5
    entropy   of the activations as a distribution, in bits; `evenness` is its share of the largest possible
    outliers  share of columns more than one standard deviation above the mean (llama-imatrix: ZD)
    cosine    likeness to the same weight of the layer before, None for the first
    """

    weight: str
    layer: int | None
    total: float
    least: float
    most: float
    mean: float
    deviation: float
    active: float
    n_columns: int
    entropy_bits: float
    evenness: float
    outliers: float
    cosine: float | None
    n_unused_experts: int

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """Of one layer: means over its weights, by their number of columns."""

    layer: int
    total: float
    outliers: float
    cosine: float

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


def tensor_statistics(imatrix: Imatrix) -> list[TensorStatistics]:
    """Of every weight that has data, those with the largest activations first within each kind of weight."""
    found = [_of(name, entry, imatrix) for name, entry in imatrix.entries.items() if entry.counts.any()]
    return sorted(found, key=lambda s: (kind_of(s.weight), -s.total))


def layer_statistics(tensors: Sequence[TensorStatistics]) -> list[LayerStatistics]:
    """Of every layer, in order."""
    found = []
    for layer in sorted({s.layer for s in tensors if s.layer is not None}):
        mine = [s for s in tensors if s.layer == layer]
        weights = [s.n_columns for s in mine]
        found.append(
            LayerStatistics(
                layer,
                float(np.average([s.total for s in mine], weights=weights)),
                float(np.average([s.outliers for s in mine], weights=weights)),
                float(np.average([s.cosine or 0.0 for s in mine], weights=weights)),
            )
        )
    return found


def kind_of(weight: str) -> str:
    """`blk.3.attn_q.weight` is an `attn_q`."""
    parts = weight.split(".")
    return parts[parts.index("weight") - 1] if "weight" in parts[1:] else weight


def _of(name: str, entry: Entry, imatrix: Imatrix) -> TensorStatistics:
    activations = _activations(entry)
    total, mean = float(activations.sum(dtype=np.float64)), float(activations.mean(dtype=np.float64))
    deviation = float(activations.std(dtype=np.float64))
    entropy = _entropy_bits(activations, total)
    block = _BLOCK.match(name)
    return TensorStatistics(
        weight=name,
        layer=int(block[1]) if block else None,
        total=total,
        least=float(activations.min()),
        most=float(activations.max()),
        mean=mean,
        deviation=deviation,
        active=float(np.count_nonzero(activations > _ACTIVE_ABOVE)) / len(activations),
        n_columns=len(activations),
        entropy_bits=entropy,
        evenness=entropy / float(np.log2(len(activations))) if len(activations) > 1 else 0.0,
        outliers=float(np.count_nonzero(activations > mean + deviation)) / len(activations) if deviation else 0.0,
        cosine=_cosine(name, entry, imatrix),
        n_unused_experts=entry.n_unused if len(entry.counts) > 1 else 0,
    )


def _activations(entry: Entry) -> Floats:
    rows = entry.sums.reshape(len(entry.counts), -1)
    used = entry.counts > 0
    counts = entry.counts[used].astype(np.float32)
    means: Floats = rows[used] / counts[:, np.newaxis]
    return means.reshape(-1)


def _entropy_bits(activations: Floats, total: float) -> float:
    if total <= 0:
        return 0.0
    shares = activations[activations > 0].astype(np.float64) / total
    return float(-(shares * np.log2(shares)).sum())


def _cosine(name: str, entry: Entry, imatrix: Imatrix) -> float | None:
    block = _BLOCK.match(name)
    before = imatrix.entries.get(f"blk.{int(block[1]) - 1}.{name[block.end() :]}") if block else None
    if before is None or len(before.sums) != len(entry.sums):
        return None
    a, b = entry.sums.astype(np.float64), before.sums.astype(np.float64)
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else None
