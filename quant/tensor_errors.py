"""What each type would do to each tensor: measured on some rows of it, with ggml's own quantizing.

The error is relative: the mean square of what is lost in a product with the tensor over that of the product. Where
there is an importance matrix, each column counts by the mean square of what it is multiplied with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from llmcli.engine.type_error import relative_error, restored
from llmcli.models.gguf_header import GgufHeader
from llmcli.models.gguf_types import GGML_TYPES, TYPE_IDS
from llmcli.models.tensor_list import GgufTensor
from llmcli.quant.run import Source

Floats = NDArray[np.float32]
_SAMPLE_WEIGHTS = 48 << 10  # of each tensor
_LEAST_ROWS, _MOST_EXPERTS = 8, 4
_ROWS_AT_ONCE = 4096


@dataclass(slots=True)
class TensorErrors:
    """The errors by tensor and type; each pair is measured once, when it is first asked for.

    importance   columns' mean squares by tensor, one row after the other for each expert
    """

    source: Source
    importance: Mapping[str, Floats] | None
    threads: int
    _known: dict[tuple[str, str], float] = field(default_factory=dict)

    def measure(self, wanted: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Measure what is wanted, tensor and types, on all threads."""
        places = {t.name: (header, t) for header in self.source.headers for t in header.tensors}
        missing = [(name, [t for t in types if (name, t) not in self._known]) for name, types in wanted]
        with ThreadPoolExecutor(self.threads) as pool:
            found = pool.map(lambda item: self._of(*places[item[0]], item[1]), [m for m in missing if m[1]])
            for errors in found:
                self._known.update(errors)

    def error(self, name: str, tensor_type: str) -> float:
        """The error of one tensor in one type."""
        if (name, tensor_type) not in self._known:
            self.measure([(name, [tensor_type])])
        return self._known[name, tensor_type]

    def column_power(self, name: str) -> Floats:
        """The mean square of each column of a tensor: times that of what it is multiplied with, the product's."""
        header, tensor = self._place(name)
        powers = [np.square(rows).mean(axis=0) for rows, _ in _samples(header, tensor, None)]
        mean: Floats = np.mean(powers, axis=0, dtype=np.float32)
        return mean

    def row_power(self, name: str) -> Floats:
        """The mean square of each row of a tensor, all of it read."""
        header, tensor = self._place(name)
        size = GGML_TYPES[tensor.type_id].row_bytes(tensor.shape[0])
        found = []
        with open(header.path, "rb") as source:
            source.seek(header.data_offset + tensor.offset)
            for start in range(0, tensor.shape[1], _ROWS_AT_ONCE):
                data = source.read(size * min(_ROWS_AT_ONCE, tensor.shape[1] - start))
                found.append(np.square(restored(data, tensor.type_id, tensor.shape[0])).mean(axis=1))
        return np.concatenate(found)

    def _place(self, name: str) -> tuple[GgufHeader, GgufTensor]:
        return next((h, t) for h in self.source.headers for t in h.tensors if t.name == name)

    def _of(self, header: GgufHeader, tensor: GgufTensor, types: Sequence[str]) -> dict[tuple[str, str], float]:
        own = GGML_TYPES[tensor.type_id].name
        found = {(tensor.name, own): 0.0}
        samples = list(_samples(header, tensor, (self.importance or {}).get(tensor.name)))
        for kind in types:
            if kind != own:
                errors = [relative_error(rows, TYPE_IDS[kind], weights) for rows, weights in samples]
                found[tensor.name, kind] = sum(errors) / len(errors)
        return found


def _samples(
    header: GgufHeader, tensor: GgufTensor, importance: Floats | None
) -> Iterable[tuple[Floats, Floats | None]]:
    """Rows of the tensor, evenly spread, with the importance of their columns; of several experts one after another."""
    width, rows = tensor.shape[0], tensor.shape[1] if len(tensor.shape) > 1 else 1
    experts = tensor.elements // (width * rows)
    chosen = _spread(experts, _MOST_EXPERTS)
    per_expert = max(_LEAST_ROWS, _SAMPLE_WEIGHTS // width // len(chosen))
    weights = None if importance is None or len(importance) not in (width, width * experts) else importance
    with open(header.path, "rb") as source:
        for expert in chosen:
            picked = [expert * rows + row for row in _spread(rows, per_expert)]
            values = np.concatenate([_row(source, header, tensor, index) for index in picked])
            yield values, None if weights is None else weights.reshape(-1, width)[expert % (len(weights) // width)]


def _spread(count: int, most: int) -> list[int]:
    return list(range(count)) if count <= most else [i * count // most for i in range(most)]


def _row(source: BinaryIO, header: GgufHeader, tensor: GgufTensor, index: int) -> Floats:
    size = GGML_TYPES[tensor.type_id].row_bytes(tensor.shape[0])
    source.seek(header.data_offset + tensor.offset + index * size)
    return restored(source.read(size), tensor.type_id, tensor.shape[0])
