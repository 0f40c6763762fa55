"""llama_model_quantize with typed settings: one call from a model file to a model file.

The call cannot be stopped, may abort the process on input it does not expect, and writes straight to its target: what
makes it safe (a child process, a temporary place, checks before and after) is in llmcli.quant. What it does per tensor
it tells only through the log, `native.LOG`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.engine import native

# enum llama_model_kv_override_type (llama.h)
_OVERRIDE_TAGS: dict[type, int] = {int: 0, float: 1, bool: 2, str: 3}
_NO_LAYER = -1


@dataclass(frozen=True, slots=True)
class Weights:
    """The importance of the columns of one tensor: `values` are float32 in memory order, one row for each expert."""

    name: str
    values: bytes


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """The fields of llama_model_quantize_params, None where llama.cpp's own default is meant.

    file_type        enum llama_ftype
    tensor_types     (pattern, enum ggml_type) in order; the first pattern that is found in a name counts
    overrides        (metadata key, value); the value's Python type is the type written
    max_buffer_bytes rows of one tensor kept in memory at once
    """

    file_type: int
    threads: int
    output_tensor_type: int | None = None
    token_embedding_type: int | None = None
    tensor_types: tuple[tuple[str, int], ...] = ()
    overrides: tuple[tuple[str, int | float | bool | str], ...] = ()
    prune_layers: tuple[int, ...] = ()
    allow_requantize: bool = False
    leave_output_tensor: bool = False
    only_copy: bool = False
    pure: bool = False
    keep_split: bool = False
    dry_run: bool = False
    max_buffer_bytes: int | None = None


def quantize(source: Path, target: Path, settings: NativeSettings, weights: Sequence[Weights] = ()) -> None:
    """Quantize `source` (of a split model the first part) into `target`; a dry run only logs what would be done.

    With `keep_split` the target is the common beginning of the names of the parts. Raises LlmcliError with llama.cpp's
    last error line.
    """
    lib = native.lib()
    params = lib.llama_model_quantize_default_params()
    kept = _fill(lib, params, settings, weights)
    native.LOG.clear()
    failed = lib.llama_model_quantize(bytes(source.absolute()), bytes(target.absolute()), ctypes.byref(params))
    del kept
    if failed:
        raise LlmcliError(native.LOG.last_error() or "llama.cpp failed to quantize and gave no reason")


def _fill(lib: Any, params: Any, settings: NativeSettings, weights: Sequence[Weights]) -> list[object]:
    """Set the parameters; returns what they point to, which has to live as long as the call."""
    params.nthread, params.ftype = settings.threads, settings.file_type
    if settings.output_tensor_type is not None:
        params.output_tensor_type = settings.output_tensor_type
    if settings.token_embedding_type is not None:
        params.token_embedding_type = settings.token_embedding_type
    if settings.max_buffer_bytes is not None:
        params.max_buf_size = settings.max_buffer_bytes
    params.quantize_output_tensor = not settings.leave_output_tensor
    for name in ("allow_requantize", "only_copy", "pure", "keep_split", "dry_run"):
        setattr(params, name, getattr(settings, name))
    kept: list[object] = []
    if weights:
        params.imatrix = _keep(kept, _weights(lib, weights))
    if settings.overrides:
        params.kv_overrides = _keep(kept, _overrides(lib, settings.overrides))
    if settings.tensor_types:
        params.tt_overrides = _keep(kept, _tensor_types(lib, settings.tensor_types))
    if settings.prune_layers:
        layers = (*settings.prune_layers, _NO_LAYER)
        params.prune_layers = _keep(kept, (ctypes.c_int32 * len(layers))(*layers))
    return kept


def _keep(kept: list[object], array: Any) -> Any:
    kept.append(array)
    return ctypes.cast(array, ctypes.POINTER(array._type_))


def _weights(lib: Any, weights: Sequence[Weights]) -> Any:
    """An array of llama_model_imatrix_data, ended by one without a name; llama.cpp copies the values."""
    array = (lib.llama_model_imatrix_data * (len(weights) + 1))()
    for entry, one in zip(array, weights, strict=False):
        entry.name = one.name.encode("utf-8", "surrogateescape")
        entry.data = ctypes.cast(ctypes.c_char_p(one.values), ctypes.POINTER(ctypes.c_float))
        entry.size = len(one.values) // ctypes.sizeof(ctypes.c_float)
    return array


def _overrides(lib: Any, overrides: Sequence[tuple[str, int | float | bool | str]]) -> Any:
    """An array of llama_model_kv_override, ended by one without a key."""
    array = (lib.llama_model_kv_override * (len(overrides) + 1))()
    for entry, (key, value) in zip(array, overrides, strict=False):
        entry.key, entry.tag = key.encode(), _OVERRIDE_TAGS[type(value)]
        if isinstance(value, bool):
            entry.value.val_bool = value
        elif isinstance(value, int):
            entry.value.val_i64 = value
        elif isinstance(value, float):
            entry.value.val_f64 = value
        else:
            entry.value.val_str = value.encode()
    return array


def _tensor_types(lib: Any, rules: Sequence[tuple[str, int]]) -> Any:
    """An array of llama_model_tensor_override, ended by one without a pattern."""
    array = (lib.llama_model_tensor_override * (len(rules) + 1))()
    for entry, (pattern, type_id) in zip(array, rules, strict=False):
        entry.pattern, entry.type = pattern.encode(), type_id
    return array
