"""Weights in ggml's types and back, and how much is lost on the way."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from llmcli.engine.type_error import relative_error, restored, stored
from llmcli.models.gguf_types import GGML_TYPES, TYPE_IDS
from tests.fixtures.wide_model import numbers

ROWS = numbers(16 * 512, 7).reshape(16, 512)
ONES = np.ones(512, np.float32)


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q6_K", "Q4_K", "Q2_K", "IQ4_NL", "IQ4_XS"])
def test_the_same_floats_as_gguf_makes_of_the_bytes(name: str) -> None:
    data = stored(ROWS, TYPE_IDS[name])
    assert len(data) == 16 * GGML_TYPES[TYPE_IDS[name]].row_bytes(512)
    raw = np.frombuffer(data, np.uint8).reshape(16, -1)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType(TYPE_IDS[name]))
    np.testing.assert_allclose(restored(data, TYPE_IDS[name], 512), expected, rtol=1e-5, atol=1e-7)


def test_floats_come_back_as_they_are() -> None:
    assert (restored(ROWS.tobytes(), TYPE_IDS["F32"], 512) == ROWS).all()
    assert relative_error(ROWS, TYPE_IDS["F32"]) == 0


def test_more_bits_lose_less() -> None:
    errors = [relative_error(ROWS, TYPE_IDS[name]) for name in ("F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")]
    assert errors == sorted(errors)
    assert 0 < errors[0] < 1e-6
    assert 1e-5 < errors[1] < 1e-4
    assert 0.002 < errors[4] < 0.01


def test_importance_counts() -> None:
    """Columns that nothing is multiplied with may be lost; the important ones are kept better for it."""
    importance = np.where(np.arange(512) % 8 == 0, np.float32(100), np.float32(0.01))
    plain = restored(stored(ROWS, TYPE_IDS["Q4_K"]), TYPE_IDS["Q4_K"], 512) - ROWS
    blind = float((np.square(plain) * importance).sum() / (np.square(ROWS) * importance).sum())
    assert relative_error(ROWS, TYPE_IDS["Q4_K"], importance) < blind


def test_zeros_lose_nothing() -> None:
    assert relative_error(np.zeros((2, 256), np.float32), TYPE_IDS["Q4_0"]) == 0


def test_types_that_need_a_matrix_take_one() -> None:
    assert 0.01 < relative_error(ROWS, TYPE_IDS["IQ3_XXS"], ONES) < 0.1
