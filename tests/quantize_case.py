"""What the tests of quantizing share: digests of a model's tensors and metadata, and llama-quantize's for comparison.

The digests in tests/data/quantize.json were made with the llama-quantize that belongs to the pinned llama-cpp-python
(two threads, CPU build): they are exact for that build on any machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from llmcli.models.gguf_header import GgufHeader, read_header
from llmcli.models.gguf_types import GGML_TYPES
from llmcli.models.gguf_values import GgufArray
from llmcli.quant.child import Child
from llmcli.quant.place import target_at
from llmcli.quant.plan import Plan
from llmcli.quant.request import QuantizeRequest
from llmcli.quant.run import Outcome, Source, carry_out, check_targets, make_plan, open_source
from llmcli.quant.types import parse_target
from llmcli.quant.weights import ChosenWeights, read_weights

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "quantize.json").read_text(encoding="utf-8"))
PROVENANCE = frozenset({"quantize.imatrix.file"})  # a path, which differs from machine to machine


def tensor_digest(*paths: Path) -> str:
    """sha256 over, for each tensor in file order: name, ':', type name, ':', raw bytes."""
    digest = hashlib.sha256()
    for path in paths:
        header = read_header(path)
        with open(path, "rb") as source:
            for tensor in header.tensors:
                source.seek(header.data_offset + tensor.offset)
                name = f"{tensor.name}:{GGML_TYPES[tensor.type_id].name}:"
                digest.update(name.encode() + source.read(tensor.nbytes))
    return digest.hexdigest()


def metadata_digest(path: Path) -> str:
    """sha256 over the keys in order with their types and values, without provenance."""
    header = read_header(path)
    rows = [
        (key, header.value_types[key], value.data if isinstance(value, GgufArray) else value)
        for key, value in header.metadata.items()
        if key not in PROVENANCE
    ]
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()


def tensor_types(paths: Iterable[Path]) -> dict[str, int]:
    """How many tensors each type has."""
    return dict(Counter(type_of(header, t.name) for header in map(read_header, paths) for t in header.tensors))


def type_of(header: GgufHeader, name: str) -> str:
    """The type of one tensor."""
    return next(GGML_TYPES[tensor.type_id].name for tensor in header.tensors if tensor.name == name)


class Quiet:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[int] = []

    def notify(self, line: str) -> None:
        self.notes.append(line)

    def native_log(self, level: int, line: str) -> None:
        pass

    @contextlib.contextmanager
    def begin(self, plan: Plan) -> Iterator[Callable[[int], None]]:
        yield self.done.append


def quantize(
    child: Child, source: Path, out: Path, type_name: str, request: QuantizeRequest, listener: Quiet | None = None
) -> Outcome:
    """One output, by the functions that the command calls."""
    heard, opened, kind = listener or Quiet(), open_source(source, source.name), parse_target(type_name)
    parts = len(opened.headers) if request.keep_split else 1
    target = target_at(out, parts=parts, forced=False)
    check_targets([target], opened)
    weights = _weights(opened, request)
    plan = make_plan(child, opened, kind, request, weights, heard)
    return carry_out(child, opened, plan, target, request, weights, heard)


def _weights(source: Source, request: QuantizeRequest) -> ChosenWeights | None:
    if request.imatrix is None:
        return None
    weights = read_weights(request.imatrix, request.imatrix.name, request.include, request.exclude)
    weights.check_belongs(source.shapes)
    return weights
