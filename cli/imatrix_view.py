"""The statistics of an importance matrix as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from llmcli.base.text import printable
from llmcli.base.units import format_count

if TYPE_CHECKING:
    from llmcli.quant.imatrix import Imatrix
    from llmcli.quant.imatrix_stats import LayerStatistics, TensorStatistics

_TENSOR_HEAD = (
    f"{'layer':>5}  {'weight':<16} {'sum':>11} {'min':>9} {'max':>10} {'mean':>9} {'deviation':>9} {'active':>7} "
    f"{'columns':>7} {'entropy':>8} {'even':>6} {'outliers':>8} {'cosine':>7}"
)
_LAYER_HEAD = f"{'layer':>5} {'mean sum':>12} {'outliers':>9} {'cosine':>8}"


def statistics_lines(
    matrix: Imatrix, tensors: Sequence[TensorStatistics], layers: Sequence[LayerStatistics]
) -> Iterator[str]:
    """One table of the weights and one of the layers."""
    texts = ", ".join(map(printable, matrix.datasets)) or "an unnamed text"
    yield f"{format_count(len(tensors), 'weight')}, measured on {texts}: {format_count(matrix.n_chunks, 'window')}"
    yield ""
    yield _TENSOR_HEAD
    for one in tensors:
        yield _tensor_line(one)
    if layers:
        yield ""
        yield _LAYER_HEAD
    for layer in layers:
        yield f"{layer.layer:>5} {layer.total:>12.2f} {layer.outliers:>9.2%} {layer.cosine:>8.4f}"


def _tensor_line(one: TensorStatistics) -> str:
    from llmcli.quant.imatrix_stats import kind_of

    layer = "-" if one.layer is None else str(one.layer)
    cosine = "-" if one.cosine is None else f"{one.cosine:.4f}"
    return (
        f"{layer:>5}  {printable(kind_of(one.weight)):<16} {one.total:>11.2f} {one.least:>9.4f} {one.most:>10.4f} "
        f"{one.mean:>9.4f} {one.deviation:>9.4f} {one.active:>7.2%} {one.n_columns:>7} {one.entropy_bits:>8.4f} "
        f"{one.evenness:>6.1%} {one.outliers:>8.2%} {cosine:>7}"
    )
