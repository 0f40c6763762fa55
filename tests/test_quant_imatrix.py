"""The numbers of an importance matrix: means, sums of several, and whether one belongs to a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import UsageError
from llmcli.quant.imatrix import Entry, Imatrix, merge, mismatch


def entry(sums: list[float], counts: list[int]) -> Entry:
    return Entry(np.array(sums, np.float32), np.array(counts, np.int64))


def plain(entry_: Entry) -> tuple[list[float], list[int]]:
    return entry_.sums.tolist(), entry_.counts.tolist()


def matrix(entries: dict[str, Entry], **more: Any) -> Imatrix:
    return Imatrix(entries, **{"datasets": ("a",), "n_chunks": 1, "chunk_tokens": 8, **more})


def test_means_are_by_expert_and_one_where_there_is_no_data() -> None:
    assert entry([2, 4], [4]).means().tolist() == [0.5, 1.0]
    assert entry([2, 4, 0, 0, 9, 3], [2, 0, 3]).means().tolist() == [1, 2, 1, 1, 3, 1]
    assert entry([2, 4, 0, 0], [2, 0]).n_unused == 1


def test_weights_are_what_llama_quantize_takes() -> None:
    found = matrix({"w": entry([2, 4], [4])}).weights()
    assert {name: (str(values.dtype), values.tolist()) for name, values in found.items()} == {
        "w": ("float32", [0.5, 1.0])
    }


def test_merge_adds_sums_and_counts_and_keeps_what_is_in_one_alone() -> None:
    a = matrix({"x": entry([1, 2], [8]), "y": entry([5], [8])}, datasets=("a",))
    b = matrix({"x": entry([10, 20], [16]), "z": entry([7], [16])}, datasets=("b", "c"), n_chunks=2)
    whole = merge([a, b])
    assert {name: plain(e) for name, e in whole.entries.items()} == {
        "x": ([11, 22], [24]),
        "y": ([5], [8]),
        "z": ([7], [16]),
    }
    assert (whole.datasets, whole.n_chunks, whole.chunk_tokens) == (("a", "b", "c"), 3, 8)


def test_one_count_for_all_experts_is_spread() -> None:
    whole = merge([matrix({"x": entry([1, 2, 3, 4], [8])}), matrix({"x": entry([1, 1, 1, 1], [3, 5])})])
    assert plain(whole.entries["x"]) == ([2, 3, 4, 5], [11, 13])


def test_old_files_count_windows_and_are_brought_to_tokens() -> None:
    old = Imatrix({"x": entry([3, 6], [3])}, n_chunks=3)  # means 1 and 2, of three windows
    whole = merge([old, matrix({"x": entry([8, 8], [8])})])
    assert plain(whole.entries["x"]) == ([32, 56], [32])
    assert whole.n_chunks == 4
    assert plain(merge([old, old]).entries["x"]) == ([6, 12], [6])
    assert merge([old, old]).n_chunks == 6


def test_matrices_of_different_models_are_refused() -> None:
    one = matrix({"x": entry([1, 2], [8])})
    with pytest.raises(UsageError, match="different models: x has 2 values in one and 3 in the other"):
        merge([one, matrix({"x": entry([1, 2, 3], [8])})])
    six = entry([1] * 6, [1, 1, 1])
    with pytest.raises(UsageError, match="x has 3 experts in one and 2 in the other"):
        merge([matrix({"x": six}), matrix({"x": entry([1] * 6, [1, 1])})])
    with pytest.raises(UsageError, match="no importance matrix to merge"):
        merge([])


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), min_size=1, max_size=6))
def test_merging_in_any_grouping_gives_the_same(parts: list[tuple[int, int]]) -> None:
    """Whole numbers this small add up exactly in 32-bit floats."""
    matrices = [matrix({"x": entry([value], [count])}) for value, count in parts]
    left = matrices[0]
    for one in matrices[1:]:
        left = merge([left, one])
    whole = merge(matrices)
    assert (
        plain(left.entries["x"])
        == plain(whole.entries["x"])
        == ([sum(v for v, _ in parts)], [sum(c for _, c in parts)])
    )


SHAPES = {"a.weight": (4, 10, 1, 1), "e.weight": (4, 10, 3, 1), "output.weight": (4, 99)}


def test_a_matrix_of_the_model_fits() -> None:
    fits = matrix({"a.weight": entry([1] * 4, [8]), "e.weight": entry([1] * 12, [1, 2, 3])})
    assert mismatch(fits, SHAPES) is None
    assert mismatch(matrix({"a.weight": entry([1] * 4, [8]), "pruned": entry([1], [8])}), SHAPES) is None


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"b.weight": entry([1], [1])}, "none of its 1 weights is in the model (one is b.weight)"),
        ({"a.weight": entry([1] * 5, [1])}, "a.weight has 5 values in it, and the model's needs 4"),
        ({"e.weight": entry([1] * 4, [1])}, "e.weight has 4 values in it, and the model's needs 12"),
        (
            {"a.weight": entry([1] * 4, [1]), "b": entry([1], [1]), "c": entry([1], [1])},
            "2 of its 3 weights are not in the model",
        ),
    ],
)
def test_a_matrix_of_another_model_does_not(entries: dict[str, Entry], why: str) -> None:
    assert mismatch(matrix(entries), SHAPES) == why


def test_unused_experts_are_counted_over_all_weights() -> None:
    found = matrix({"a": entry([1, 1], [0, 4]), "b": entry([1, 1, 1], [0, 0, 1]), "dense": entry([1], [0])})
    assert found.n_unused_experts == 3
