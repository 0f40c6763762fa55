"""Statistics of an importance matrix, on numbers that can be checked by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from llmcli.quant.imatrix import Entry, Imatrix
from llmcli.quant.imatrix_file import read_imatrix
from llmcli.quant.imatrix_stats import kind_of, layer_statistics, tensor_statistics

EXPERTS = Path(__file__).parent / "data" / "experts.imatrix.gguf"


def entry(sums: list[float], *counts: int) -> Entry:
    return Entry(np.array(sums, np.float32), np.array(counts, np.int64))


def test_one_weight() -> None:
    (found,) = tensor_statistics(Imatrix({"blk.7.attn_q.weight": entry([4, 4, 8, 0], 4)}))
    assert (found.weight, found.layer, found.n_columns, found.cosine) == ("blk.7.attn_q.weight", 7, 4, None)
    assert (found.total, found.least, found.most, found.mean) == (4, 0, 2, 1)
    assert found.deviation == pytest.approx(math.sqrt(0.5))
    assert found.active == 0.75
    assert found.entropy_bits == pytest.approx(1.5)
    assert found.evenness == pytest.approx(0.75)
    assert found.outliers == 0.25
    assert found.n_unused_experts == 0


def test_the_layer_before_is_compared_with() -> None:
    matrix = Imatrix({"blk.0.a.weight": entry([3, 4], 1), "blk.1.a.weight": entry([4, 3], 1)})
    found = {one.layer: one for one in tensor_statistics(matrix)}
    assert found[0].cosine is None
    assert found[1].cosine == pytest.approx(24 / 25)


def test_layers_are_means_over_columns() -> None:
    matrix = Imatrix(
        {"blk.0.a.weight": entry([1, 1, 1, 1], 1), "blk.0.b.weight": entry([10, 0], 1), "output.weight": entry([1], 1)}
    )
    (layer,) = layer_statistics(tensor_statistics(matrix))
    assert layer.layer == 0
    assert layer.total == pytest.approx((4 * 4 + 2 * 10) / 6)


def test_experts_without_data_are_left_out_and_counted() -> None:
    (found,) = tensor_statistics(Imatrix({"blk.0.x.weight": entry([1, 3, 0, 0], 2, 0)}))
    assert (found.n_columns, found.total, found.n_unused_experts) == (2, 2, 1)
    assert tensor_statistics(Imatrix({"blk.0.x.weight": entry([0, 0], 0)})) == []


def test_kinds_are_grouped_with_the_largest_first() -> None:
    found = tensor_statistics(read_imatrix(EXPERTS))
    kinds = [kind_of(one.weight) for one in found]
    assert kinds == sorted(kinds)
    totals = [one.total for one in found if kind_of(one.weight) == "attn_q"]
    assert len(totals) == 2
    assert totals == sorted(totals, reverse=True)
    assert found[0].as_json().keys() == set(type(found[0]).__slots__)


def test_kind_of() -> None:
    assert kind_of("blk.3.attn_q.weight") == "attn_q"
    assert kind_of("output.weight") == "output"
    assert kind_of("odd") == "odd"


def test_a_column_of_zeros_has_no_entropy() -> None:
    (found,) = tensor_statistics(Imatrix({"blk.1.x.weight": entry([0, 0], 3), "blk.0.x.weight": entry([0, 0], 0)}))
    assert (found.entropy_bits, found.evenness, found.outliers, found.cosine) == (0, 0, 0, None)
