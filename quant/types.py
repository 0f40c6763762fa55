"""The types a model can be quantized to: llama-quantize's names and numbers, and what is known of each.

A target type (`Q4_K_M`) is a mix that llama.cpp spreads over the tensors; a tensor type (`Q4_K`) is what one tensor is
stored in. Names and numbers: QUANT_OPTIONS of tools/quantize and enum llama_ftype of the llama.cpp that is pinned in
pyproject.toml; which of them need an importance matrix: tensor_requires_imatrix of src/llama-quant.cpp.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from llmcli.base.errors import UsageError
from llmcli.base.text import printable
from llmcli.models.gguf_types import GGML_TYPES, TYPE_IDS, WEIGHT_TYPES


@dataclass(frozen=True, slots=True)
class TargetType:
    """A type to quantize to.

    file_type    enum llama_ftype
    tensor_type  what most tensors become (llama_ftype_get_default_type)
    """

    name: str
    file_type: int
    tensor_type: str

    @property
    def quantizes(self) -> bool:
        """False for the float types and COPY."""
        return self.tensor_type not in FLOAT_TYPES

    @property
    def copies(self) -> bool:
        """Whether every tensor stays as it is."""
        return self.name == COPY

    @property
    def bits(self) -> float:
        """Bits per weight of the tensor type."""
        return bits_per_weight(self.tensor_type)


COPY = "COPY"
FLOAT_TYPES = frozenset({"F32", "F16", "BF16"})
# The tensor types that are good for any tensor of any model, from the largest down.
USUAL_TYPES = (
    "F16", "Q8_0", "Q6_K", "Q5_1", "Q5_K", "Q5_0", "Q4_1", "Q4_K", "Q4_0", "IQ4_NL", "IQ4_XS", "Q3_K", "IQ3_S",
    "IQ3_XXS", "Q2_K",
)  # fmt: skip
# In llama-quantize's order: a number means the first of that number.
TARGET_TYPES: tuple[TargetType, ...] = tuple(
    TargetType(*row)
    for row in (
        ("Q1_0", 40, "Q1_0"),
        ("Q2_0", 41, "Q2_0"),
        ("Q4_0", 2, "Q4_0"),
        ("Q4_1", 3, "Q4_1"),
        ("MXFP4_MOE", 38, "MXFP4"),
        ("Q5_0", 8, "Q5_0"),
        ("Q5_1", 9, "Q5_1"),
        ("IQ2_XXS", 19, "IQ2_XXS"),
        ("IQ2_XS", 20, "IQ2_XS"),
        ("IQ2_S", 28, "IQ2_XS"),
        ("IQ2_M", 29, "IQ2_S"),
        ("IQ1_S", 24, "IQ1_S"),
        ("IQ1_M", 31, "IQ1_M"),
        ("TQ1_0", 36, "TQ1_0"),
        ("TQ2_0", 37, "TQ2_0"),
        ("Q2_K", 10, "Q2_K"),
        ("Q2_K_S", 21, "Q2_K"),
        ("IQ3_XXS", 23, "IQ3_XXS"),
        ("IQ3_S", 26, "IQ3_S"),
        ("IQ3_M", 27, "IQ3_S"),
        ("IQ3_XS", 22, "IQ3_S"),
        ("Q3_K_S", 11, "Q3_K"),
        ("Q3_K_M", 12, "Q3_K"),
        ("Q3_K_L", 13, "Q3_K"),
        ("IQ4_NL", 25, "IQ4_NL"),
        ("IQ4_XS", 30, "IQ4_XS"),
        ("Q4_K_S", 14, "Q4_K"),
        ("Q4_K_M", 15, "Q4_K"),
        ("Q5_K_S", 16, "Q5_K"),
        ("Q5_K_M", 17, "Q5_K"),
        ("Q6_K", 18, "Q6_K"),
        ("Q8_0", 7, "Q8_0"),
        ("F16", 1, "F16"),
        ("BF16", 32, "BF16"),
        ("F32", 0, "F32"),
        (COPY, 0, "F32"),
    )
)
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_BY_NAME = {target.name: target for target in TARGET_TYPES}
# Tensor types that come out as noise without an importance matrix; llama.cpp refuses them.
NEED_IMATRIX = frozenset({"IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_M", "IQ1_S"})
_ABORT_WITHOUT = frozenset({"IQ2_XXS", "IQ2_XS", "IQ1_S"})  # whatever the tensor: ggml_quantize_requires_imatrix
_SELDOM_NEED = frozenset({"token_embd.weight", "per_layer_token_embd.weight", "output.weight"})
# Below this, an importance matrix is worth its time; measured in docs/quantize.md.
_BITS_THAT_SUFFER = 5.0


def parse_targets(text: str) -> tuple[TargetType, ...]:
    """`Q4_K_M`, `15` or `Q4_K_M,Q8_0`, each once. Raises UsageError naming what there is."""
    found = dict.fromkeys(parse_target(word) for word in text.split(",") if word.strip())
    if not found:
        raise UsageError("no TYPE was given", hint="for example Q4_K_M; llmcli quantize --help lists them")
    return tuple(found)


def parse_target(text: str) -> TargetType:
    """One type by llama-quantize's name, in any case, or by its number."""
    found = find_target(text)
    if found is None:
        raise UsageError(
            f"{printable(text)!r} is no type", hint=_near(text, (*_BY_NAME, *_ALIASES)) or "there is " + target_names()
        )
    return found


def find_target(text: str) -> TargetType | None:
    """The same, None for anything else."""
    name = text.strip().upper()
    if name.isascii() and name.isdecimal() and len(name) <= 3:
        return next((target for target in TARGET_TYPES if target.file_type == int(name)), None)
    return _BY_NAME.get(_ALIASES.get(name, name))


def target_names() -> str:
    """Every name, for help and messages."""
    return ", ".join(target.name for target in TARGET_TYPES)


def parse_tensor_type(text: str) -> str:
    """A tensor type by ggml's name, in any case. Raises UsageError naming what there is."""
    name = text.strip().upper()
    if TYPE_IDS.get(name) in WEIGHT_TYPES:
        return name
    names = [GGML_TYPES[number].name for number in sorted(WEIGHT_TYPES)]
    aliases = {_ALIASES[mix]: mix for mix in _ALIASES}
    if mix := aliases.get(name):
        raise UsageError(f"{printable(text)!r} is a mix of types, not the type of one tensor", hint=f"write {mix}")
    raise UsageError(
        f"{printable(text)!r} is no type of a tensor", hint=_near(text, names) or "there is " + ", ".join(names)
    )


def _near(text: str, names: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(text.strip().upper(), list(names), n=3)
    return f"did you mean {' or '.join(near)}?" if near else None


def bits_per_weight(tensor_type: str) -> float:
    """Bits per weight of a tensor type, its scales included."""
    kind = GGML_TYPES[TYPE_IDS[tensor_type]]
    return kind.block_bytes * 8 / kind.block_elements


def fits(tensor_type: str, width: int) -> bool:
    """Whether rows of `width` elements are a whole number of blocks."""
    return width % GGML_TYPES[TYPE_IDS[tensor_type]].block_elements == 0


def nbytes(tensor_type: str, width: int, rows: int) -> int:
    """The bytes of `rows` rows of `width` elements, which must fit."""
    return GGML_TYPES[TYPE_IDS[tensor_type]].row_bytes(width) * rows


def needs_imatrix(name: str, tensor_type: str, target: TargetType) -> bool:
    """Whether llama.cpp refuses this type for the tensor `name` without an importance matrix, or aborts."""
    if name in _SELDOM_NEED:
        return tensor_type in _ABORT_WITHOUT
    return tensor_type in NEED_IMATRIX or (tensor_type == "Q2_K" and target.name == "Q2_K_S")


def suffers_without_imatrix(target: TargetType) -> bool:
    """Whether the type works without an importance matrix, and is clearly worse for it."""
    return target.quantizes and target.bits < _BITS_THAT_SUFFER
