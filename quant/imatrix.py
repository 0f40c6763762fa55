"""An importance matrix: for each weight, the sum of squares of what it was multiplied with, and how often.

What the numbers are and how they add up; the file format is imatrix_file's, the measuring imatrix_collect's. Sums are
32-bit floats, as the file keeps them: what was written, read and gone on with gives the bits of a run without a pause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llmcli.base.errors import UsageError
from llmcli.base.text import printable

Floats = NDArray[np.float32]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entry:
    """One weight.

    sums     sum of squares for each input column, one row after the other where there are experts
    counts   tokens that were summed up: one number, or one for each expert
    """

    sums: Floats
    counts: Counts

    def means(self) -> Floats:
        """What llama.cpp quantizes with: the mean square of each column; 1 for an expert that no token has used."""
        rows = self.sums.reshape(len(self.counts), -1)
        divisors = self.counts.astype(np.float32)[:, None]
        used = divisors > 0
        return np.divide(rows, divisors, out=np.ones_like(rows), where=used).reshape(-1)

    @property
    def n_unused(self) -> int:
        """Experts that no token has used."""
        return int(np.count_nonzero(self.counts == 0))

    def times(self, factor: int) -> Entry:
        """As if every token had been there `factor` times."""
        return self if factor == 1 else Entry(self.sums * np.float32(factor), self.counts * factor)

    def plus(self, other: Entry, name: str) -> Entry:
        """Both together. Raises UsageError where they are of different sizes."""
        if len(self.sums) != len(other.sums):
            raise UsageError(
                f"importance matrices of different models: {printable(name)} has {len(self.sums):,} values in one and "
                f"{len(other.sums):,} in the other"
            )
        counts, others = self.counts, other.counts
        if len(counts) == 1 or len(others) == 1:  # one count for all experts: files of older llama.cpp
            counts, others = np.broadcast_arrays(counts, others)
        if len(counts) != len(others):
            raise UsageError(
                f"importance matrices of different models: {printable(name)} has {len(counts)} experts in one and "
                f"{len(others)} in the other"
            )
        return Entry(self.sums + other.sums, counts + others)


@dataclass(frozen=True, slots=True)
class Imatrix:
    """A whole matrix.

    entries       by the weight's name
    datasets      names of the texts it was measured on
    n_chunks      windows of text; chunk_tokens is their length, 0 where the file does not tell (the old format)
    notes         further metadata of ours: which model and text, how far a run came that is not done
    """

    entries: Mapping[str, Entry]
    datasets: tuple[str, ...] = ()
    n_chunks: int = 0
    chunk_tokens: int = 0
    notes: Mapping[str, str | int] = field(default_factory=dict)

    def weights(self) -> dict[str, Floats]:
        """Weight -> mean squares, as `llama_model_quantize` takes them."""
        return {name: entry.means() for name, entry in self.entries.items()}

    @property
    def n_unused_experts(self) -> int:
        """Experts without any data, over all weights."""
        return sum(entry.n_unused for entry in self.entries.values() if len(entry.counts) > 1)


def merge(parts: Sequence[Imatrix]) -> Imatrix:
    """Several matrices of one model as if their texts had been one.

    Raises UsageError where there are none, or sizes differ: they are of different models.
    """
    if not parts:
        raise UsageError("there is no importance matrix to merge")
    chunk_tokens = next((part.chunk_tokens for part in parts if part.chunk_tokens), 0)
    entries: dict[str, Entry] = {}
    for part in parts:
        factor = 1 if part.chunk_tokens else chunk_tokens or 1  # old files count windows, the others tokens
        for name, entry in part.entries.items():
            mine = entry.times(factor)
            entries[name] = entries[name].plus(mine, name) if name in entries else mine
    datasets = tuple(name for part in parts for name in part.datasets)
    return Imatrix(entries, datasets, _chunks(entries, chunk_tokens, parts), chunk_tokens)


def _chunks(entries: Mapping[str, Entry], chunk_tokens: int, parts: Sequence[Imatrix]) -> int:
    """Chunks of the length in `chunk_tokens` that the largest count makes, as llama-imatrix counts them."""
    if not chunk_tokens:
        return sum(part.n_chunks for part in parts)
    return max((int(entry.counts.max()) for entry in entries.values()), default=0) // chunk_tokens


def mismatch(imatrix: Imatrix, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Why `imatrix` is not of the model with these weights, as words for a message; None where it is.

    shapes   weight -> shape in ggml order (the row first), of every tensor of the model
    Names that the model lacks are fine while most are there: layers may have been pruned.
    """
    known = [name for name in imatrix.entries if name in shapes]
    if not known:
        example = next(iter(imatrix.entries), "none")
        return f"none of its {len(imatrix.entries):,} weights is in the model (one is {printable(example)})"
    for name in known:
        shape, found = shapes[name], len(imatrix.entries[name].sums)
        wanted = shape[0] * (shape[2] if len(shape) > 2 else 1) * (shape[3] if len(shape) > 3 else 1)
        if found != wanted:
            return f"{printable(name)} has {found:,} values in it, and the model's needs {wanted:,}"
    missing = len(imatrix.entries) - len(known)
    if missing > len(known):
        return f"{missing:,} of its {len(imatrix.entries):,} weights are not in the model"
    return None
