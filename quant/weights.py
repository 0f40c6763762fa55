"""An importance matrix as quantizing needs it: the entries that count, and whether it is of the model at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmcli.base.errors import LlmcliError
from llmcli.base.text import printable
from llmcli.engine.quantizer import Weights
from llmcli.models.gguf_source import shown
from llmcli.quant.imatrix import Floats, Imatrix, mismatch
from llmcli.quant.imatrix_file import read_imatrix
from llmcli.quant.request import Override

_FIELD_BYTES = 127  # of a text in llama_model_kv_override


@dataclass(frozen=True, slots=True)
class ChosenWeights:
    """The mean squares of the columns, by tensor, of the entries that count.

    named    the file as the user wrote it
    """

    path: Path
    named: str
    values: Mapping[str, Floats]
    whole: Imatrix

    def native(self) -> tuple[Weights, ...]:
        """The entries as llama.cpp takes them."""
        return tuple(Weights(name, value.tobytes()) for name, value in self.values.items())

    def provenance(self) -> tuple[Override, ...]:
        """The keys that llama-quantize adds to the output for the matrix; none where nothing of it counts."""
        if not self.values:
            return ()
        found = [Override("quantize.imatrix.file", _cut(self.named))]
        if self.whole.datasets:
            found.append(Override("quantize.imatrix.dataset", _cut(self.whole.datasets[0])))
        found.append(Override("quantize.imatrix.entries_count", len(self.values)))
        if self.whole.n_chunks > 0:
            found.append(Override("quantize.imatrix.chunks_count", self.whole.n_chunks))
        return tuple(found)

    def check_belongs(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise LlmcliError where the matrix is of another model; `shapes` are those of all its tensors."""
        if why := mismatch(self.whole, shapes):
            raise LlmcliError(
                f"{shown(self.path)} is an importance matrix of another model: {printable(why)}",
                hint="make one of this model: --imatrix auto",
            )


def _cut(text: str) -> str:
    """As much of a text as a metadata override holds, not ending inside a character."""
    return text.encode("utf-8", "replace")[:_FIELD_BYTES].decode("utf-8", "ignore")


def read_weights(path: Path, named: str, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> ChosenWeights:
    """Read a matrix; `include` and `exclude` are pieces of tensor names that choose entries. Raises ModelError."""
    whole = read_imatrix(path)
    kept = {
        name: value
        for name, value in whole.weights().items()
        if not any(part in name for part in exclude) and (not include or any(part in name for part in include))
    }
    return ChosenWeights(path, named, kept, whole)
