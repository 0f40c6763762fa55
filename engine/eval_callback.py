"""Watches the matrix products of a running model: which weight, and what it is multiplied with.

llama.cpp asks for every node of its graph whether it is of interest, and shows the finished ones that were. Here that
becomes a `Product` with the raw memory of its input; what is made of it (numpy, sums) is the watcher's business.
The layout of `ggml_tensor` is that of ggml.h in the llama.cpp that pyproject.toml pins; numbers of operations are asked
of the library.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.engine import native

_MAX_DIMS, _MAX_SRC, _MAX_NAME, _OP_PARAMS = 4, 10, 64, 16  # GGML_MAX_* in ggml.h; the last one in int32
_F32 = 0  # enum ggml_type
_MAX_OPS = 256
LEAST_TOKENS = 16  # llama-imatrix leaves products of fewer out
_ELEMENT_BYTES = 4  # of float32 activations and of int32 expert numbers alike


class _Tensor(ctypes.Structure):
    """struct ggml_tensor."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * _MAX_DIMS),
        ("nb", ctypes.c_size_t * _MAX_DIMS),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * _OP_PARAMS),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * _MAX_SRC),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * _MAX_NAME),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_char * 8),
    )


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a product, in ggml order: the fastest dimension first. `address` is ggml's own id of the tensor,
    the same for all that is multiplied with this operand in one call of llama_decode.
    """

    address: int
    name: str
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    is_f32: bool

    def memory(self) -> memoryview:
        """Its bytes, from the first element to the end of the last; a copy where they lie on a device.

        Valid until the watcher returns. The strides say where each element is.
        """
        tensor = _Tensor.from_address(self.address)
        count = sum((n - 1) * step for n, step in zip(self.shape, self.strides_bytes, strict=True)) + _ELEMENT_BYTES
        library = _library()
        if library.ggml_backend_buffer_is_host(tensor.buffer):
            return memoryview((ctypes.c_ubyte * count).from_address(tensor.data))
        copied = (ctypes.c_ubyte * count)()
        library.ggml_backend_tensor_get(self.address, copied, 0, count)
        return memoryview(copied)


@dataclass(frozen=True, slots=True)
class Product:
    """weight × input = output. `ids` names the experts that each token uses, [experts used, tokens], where there are
    experts. What is written into the output's memory is what the model goes on with, where that is the host's.
    """

    weight: str
    weight_shape: tuple[int, ...]
    input: Operand
    ids: Operand | None
    output: Operand


class Watcher:
    """Hands the products of a model that are wanted to a function, once each is computed.

    wants    asked for each product, by the weight's name
    seen     shown each one that is wanted; False ends the work on this batch: what would be computed next is not
    Products of fewer tokens than `least_tokens` are left out, and inputs that are not 32-bit floats.
    """

    def __init__(
        self, wants: Callable[[str], bool], seen: Callable[[Product], bool], *, least_tokens: int = LEAST_TOKENS
    ) -> None:
        self._wants, self._seen, self._least_tokens = wants, seen, least_tokens
        self._plain, self._indirect = _operations()
        self._failure: BaseException | None = None
        self.callback = native.lib().ggml_backend_sched_eval_callback(self._on_node)

    def raise_failure(self) -> None:
        """Raise what `wants` or `seen` has raised: it cannot pass through llama.cpp."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _on_node(self, address: int, ask: bool, _data: object) -> bool:  # noqa: FBT001  # C calls it
        try:
            if self._failure is not None:
                return False
            tensor = _Tensor.from_address(address)
            if ask:
                return tensor.op in (self._plain, self._indirect) and self._is_wanted(tensor)
            return self._seen(_product(address, tensor, indirect=tensor.op == self._indirect))
        except BaseException as error:  # noqa: BLE001  # ctypes would print it and go on
            self._failure = error
            return False

    def _is_wanted(self, tensor: _Tensor) -> bool:
        source = _Tensor.from_address(tensor.src[1])
        if source.type != _F32 or (tensor.op == self._plain and source.ne[1] < self._least_tokens):
            return False
        return self._wants(_weight_name(_Tensor.from_address(tensor.src[0])))


def _product(address: int, tensor: _Tensor, *, indirect: bool) -> Product:
    weight = _Tensor.from_address(tensor.src[0])
    return Product(
        weight=_weight_name(weight),
        weight_shape=tuple(weight.ne),
        input=_operand(tensor.src[1]),
        ids=_operand(tensor.src[2]) if indirect else None,
        output=_operand(address),
    )


def _operand(address: int) -> Operand:
    tensor = _Tensor.from_address(address)
    return Operand(address, _name(tensor), tuple(tensor.ne), tuple(tensor.nb), tensor.type == _F32)


def _name(tensor: _Tensor) -> str:
    return str(tensor.name.decode("utf-8", "replace"))


def _weight_name(tensor: _Tensor) -> str:
    """The name in the file: where a copy of the weight is used, it is called `CUDA0#blk.0.attn_k.weight#0`."""
    parts = _name(tensor).split("#")
    return parts[1] if len(parts) > 1 else parts[0]


@functools.cache
def _library() -> Any:
    library = native.ggml_library()
    library.ggml_op_name.argtypes, library.ggml_op_name.restype = [ctypes.c_int], ctypes.c_char_p
    library.ggml_backend_buffer_is_host.argtypes = [ctypes.c_void_p]
    library.ggml_backend_buffer_is_host.restype = ctypes.c_bool
    library.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    library.ggml_backend_tensor_get.restype = None
    return library


@functools.cache
def _operations() -> tuple[int, int]:
    """The numbers of MUL_MAT and MUL_MAT_ID in this build."""
    found: dict[bytes, int] = {}
    for number in range(_MAX_OPS):
        name = _library().ggml_op_name(number)
        found.setdefault(name, number)
        if {b"MUL_MAT", b"MUL_MAT_ID"} <= found.keys():
            return found[b"MUL_MAT"], found[b"MUL_MAT_ID"]
    raise LlmcliError("this build of llama.cpp names no matrix product", hint="reinstall the engine: make install")
