"""Adds up what the weights of a running model are multiplied with: an importance matrix in the making.

As llama-imatrix does: weights of the blocks (and the output's on request), of experts one row each, products of fewer
than 16 tokens left out. The squares of an input are summed once however many weights share it (Q, K and V do), and what
comes behind the last wanted product is not computed at all: without the output's weight that is the output itself, a
fifth of the work with a small model.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llmcli.base.errors import ModelError
from llmcli.base.text import printable
from llmcli.engine.eval_callback import Operand, Product, Watcher
from llmcli.quant.imatrix import Entry, Floats

_OUTPUT = "output.weight"
_Number = TypeVar("_Number", np.float32, np.int32)


class Collector:
    """Sums by weight, of one window at a time. `watcher` goes into the evaluator; `begin` is called before each decode.

    process_output   look at the output's weight too
    """

    def __init__(self, *, process_output: bool = False) -> None:
        self._output = process_output
        self._entries: dict[str, Entry] = {}
        self._shared: dict[tuple[int, ...], Entry] = {}
        self._seen, self._last = 0, 0
        self.watcher = Watcher(self._wants, self._add)

    def begin(self) -> None:
        """A decode starts. The first one of all is the longest, so that no later one has more products."""
        self._last = max(self._last, self._seen)
        self._seen = 0
        self._shared.clear()

    def take(self) -> dict[str, Entry]:
        """The sums of this window, which ends here."""
        found, self._entries = self._entries, {}
        return found

    def _wants(self, weight: str) -> bool:
        return weight.startswith("blk.") or (self._output and weight == _OUTPUT)

    def _add(self, product: Product) -> bool:
        """Add one product; False where nothing wanted comes behind it."""
        found, name = self._summed(product), product.weight
        if not np.isfinite(found.sums).all():
            raise ModelError(f"the model computes values that are no finite numbers, in front of {printable(name)}")
        kept = self._entries.get(name)
        self._entries[name] = found if kept is None else kept.plus(found, name)
        self._seen += 1
        return self._output or self._seen != self._last

    def _summed(self, product: Product) -> Entry:
        """The sums over this product's tokens, of its experts one after the other."""
        ids = product.ids
        key = (product.input.address, ids.address if ids else 0, *product.weight_shape[2:])
        if key not in self._shared:
            self._shared[key] = _of_experts(product, ids) if ids else _of_tokens(product)
        return self._shared[key]


def _of_tokens(product: Product) -> Entry:
    """Of an ordinary product; where the weight is a stack of matrices, each has its own columns."""
    source = _floats(product.input)  # [batches, matrices, tokens, columns]
    outer, inner = product.weight_shape[3], product.weight_shape[2]
    per_matrix = np.einsum("abtc,abtc->abc", source, source, optimize=False)
    sums = np.zeros((outer, inner, source.shape[-1]), np.float32)
    for i, batch in enumerate(per_matrix):
        for j, row in enumerate(batch):
            sums[i % outer, j % inner] += row
    n_tokens = source.shape[0] * source.shape[1] * source.shape[2] // (outer * inner)
    return Entry(sums.reshape(-1), np.array([n_tokens], np.int64))


def _of_experts(product: Product, ids: Operand) -> Entry:
    """Of a product in which each token uses some of the experts."""
    source = _floats(product.input)[0]  # [tokens, experts used or 1, columns]
    chosen = _whole_numbers(ids)[0, 0]  # [tokens, experts used]
    n_experts, n_used = product.weight_shape[2], chosen.shape[1]
    experts = chosen.reshape(-1)
    if len(experts) and (experts.min() < 0 or experts.max() >= n_experts):
        raise ModelError(f"the model chooses an expert that {printable(product.weight)} does not have")
    counts = np.bincount(experts, minlength=n_experts).astype(np.int64)
    # Rows in the order of their experts, so that each expert's are one slice.
    order = np.argsort(experts, kind="stable")
    tokens, slots = np.divmod(order, n_used)
    squares = np.square(source[tokens, slots % source.shape[1]])
    sums = np.zeros((n_experts, source.shape[-1]), np.float32)
    used = np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[used]
    sums[used] = np.add.reduceat(squares, starts, axis=0)
    return Entry(sums.reshape(-1), counts)


def _floats(operand: Operand) -> Floats:
    return _array(operand, np.float32)


def _whole_numbers(operand: Operand) -> NDArray[np.int32]:
    return _array(operand, np.int32)


def _array(operand: Operand, kind: type[_Number]) -> NDArray[_Number]:
    """The operand's elements where they lie; the slowest dimension first, as numpy counts."""
    return np.ndarray(operand.shape[::-1], kind, operand.memory(), 0, operand.strides_bytes[::-1])
