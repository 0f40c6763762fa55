"""Importance matrices on their way to llama.cpp: which entries count, whose they are, what is noted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llmcli.base.errors import LlmcliError
from llmcli.quant.weights import read_weights
from tests.fixtures.wide_model import SHAPES, WIDTH, write_wide_imatrix

MODEL_SHAPES = {name: (columns, rows) for name, (rows, columns) in SHAPES.items()}


@pytest.fixture(name="matrix")
def a_matrix(tmp_path: Path) -> Path:
    return write_wide_imatrix(tmp_path / "im.gguf")


def test_all_entries(matrix: Path) -> None:
    weights = read_weights(matrix, "im.gguf")
    assert set(weights.values) == set(SHAPES)
    native = {one.name: np.frombuffer(one.values, np.float32) for one in weights.native()}
    for name, values in native.items():
        assert len(values) == SHAPES[name][1]
        assert (values == weights.values[name]).all()


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [(["attn_q"], [], 1), (["attn_q", "ffn"], [], 4), ([], ["ffn"], 4), ([], ["weight"], 0), (["nothing"], [], 0)],
)
def test_chosen_entries(matrix: Path, include: list[str], exclude: list[str], left: int) -> None:
    weights = read_weights(matrix, "im.gguf", include, exclude)
    assert len(weights.values) == len(weights.native()) == left
    assert bool(weights.provenance()) == bool(left)


def test_what_is_noted(matrix: Path) -> None:
    noted = {override.key: override.value for override in read_weights(matrix, "im.gguf", ["attn"]).provenance()}
    assert noted == {
        "quantize.imatrix.file": "im.gguf",
        "quantize.imatrix.dataset": "made-up.txt",
        "quantize.imatrix.entries_count": 4,
        "quantize.imatrix.chunks_count": 4,
    }


def test_a_long_name_is_cut_between_characters(matrix: Path) -> None:
    noted = read_weights(matrix, "é" * 100).provenance()[0]
    assert noted.value == "é" * 63


def test_its_own_model(matrix: Path) -> None:
    read_weights(matrix, "im.gguf").check_belongs(MODEL_SHAPES)


@pytest.mark.parametrize(
    "shapes", [dict.fromkeys(SHAPES, (WIDTH + 32, 8)), {"blk.7.other.weight": (WIDTH, 8)}], ids=["sizes", "names"]
)
def test_another_model(matrix: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(LlmcliError, match="matrix of another model"):
        read_weights(matrix, "im.gguf").check_belongs(shapes)
