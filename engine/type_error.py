"""What storing weights in another type does to them: ggml's own quantizing and its inverse, on rows in memory."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcli.engine import native
from llmcli.models.gguf_types import GGML_TYPES

Floats = NDArray[np.float32]
_F32 = 0


class _Traits(ctypes.Structure):
    """struct ggml_type_traits (ggml.h)."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


_TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@functools.cache
def _library() -> Any:
    library = native.ggml_library()
    library.ggml_get_type_traits.argtypes = [ctypes.c_int]
    library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_init.argtypes, library.ggml_quantize_init.restype = [ctypes.c_int], None
    return library


def stored(values: Floats, type_id: int, importance: Floats | None = None) -> bytes:
    """Rows of weights in a type, whose blocks must fit the rows; `importance` is one number for each column."""
    data = np.ascontiguousarray(values, np.float32)
    rows, width = data.shape
    out = ctypes.create_string_buffer(GGML_TYPES[type_id].row_bytes(width) * rows)
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
    pointer = None if weights is None else weights.ctypes.data
    _library().ggml_quantize_init(type_id)
    _library().ggml_quantize_chunk(type_id, data.ctypes.data, out, 0, rows, width, pointer)
    return out.raw


def restored(data: bytes, type_id: int, width: int) -> Floats:
    """The rows that `data` holds in a type, as floats."""
    if type_id == _F32:
        return np.frombuffer(data, "<f4").reshape(-1, width)
    rows = len(data) // GGML_TYPES[type_id].row_bytes(width)
    out = np.empty((rows, width), np.float32)
    to_float = _TO_FLOAT(_library().ggml_get_type_traits(type_id).contents.to_float)
    to_float(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), out.ctypes.data, rows * width)
    return out


def relative_error(values: Floats, type_id: int, importance: Floats | None = None) -> float:
    """How much of a product with these rows is lost when they are stored in a type: 0 for nothing, 1 for all of it.

    It is the mean square of the error over that of the rows, each column counted by the mean square of what it is
    multiplied with.
    """
    weights = np.ones(values.shape[1], np.float32) if importance is None else importance
    power = float(np.einsum("rc,rc,c->", values, values, weights, optimize=True))
    if power <= 0:
        return 0.0
    difference = values - restored(stored(values, type_id, importance), type_id, values.shape[1])
    return float(np.einsum("rc,rc,c->", difference, difference, weights, optimize=True)) / power
