"""The type tables, against the gguf package and against the library itself."""

from __future__ import annotations

import ctypes

import gguf
import pytest
from llama_cpp import llama_cpp as lib

from llmcli.models.gguf_types import FILE_TYPES, GGML_TYPES, REMOVED_TYPES, TYPE_IDS, WEIGHT_TYPES, GgmlType

# The gguf package counts a float that block_q8_1 lost in 2024, and does not know the newest type.
DIFFERENT = {"Q8_1"}


@pytest.mark.parametrize("kind", list(gguf.GGMLQuantizationType))
def test_sizes_are_those_of_the_gguf_package(kind: gguf.GGMLQuantizationType) -> None:
    ours = GGML_TYPES[int(kind)]
    assert ours.name == kind.name
    if kind.name not in DIFFERENT:
        assert (ours.block_elements, ours.block_bytes) == gguf.GGML_QUANT_SIZES[kind]


@pytest.mark.parametrize("number", sorted(GGML_TYPES))
def test_sizes_are_those_of_the_library(number: int) -> None:
    ggml = ctypes.CDLL(lib._lib._name.replace("libllama", "libggml-base"))
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_name.restype = ctypes.c_char_p
    assert ggml.ggml_type_name(number).decode().upper() == GGML_TYPES[number].name
    assert ggml.ggml_type_size(number) == GGML_TYPES[number].block_bytes
    assert ggml.ggml_blck_size(number) == GGML_TYPES[number].block_elements


def test_no_number_is_left_out() -> None:
    assert sorted(GGML_TYPES | REMOVED_TYPES) == list(range(43))


@pytest.mark.parametrize("number", sorted(FILE_TYPES))
def test_file_types_are_those_of_the_library(number: int) -> None:
    named = lib._lib.llama_ftype_name
    named.restype = ctypes.c_char_p
    words = named(number).decode().upper().removeprefix("ALL ").replace(" - ", "_").split()
    short = words[0].replace("_SMALL", "_S").replace("_MEDIUM", "_M").replace("_LARGE", "_L")
    # The library gives the two mixes a name of words, and numbers with some others.
    expected = {"Q2_K": "Q2_K_M", "IQ3_M": "IQ3_S"}.get(FILE_TYPES[number], FILE_TYPES[number])
    assert short.startswith(expected)


def test_rows() -> None:
    kind = GGML_TYPES[TYPE_IDS["Q4_K"]]
    assert kind == GgmlType("Q4_K", 256, 144)
    assert kind.row_bytes(512) == 288
    with pytest.raises(ValueError, match="576 elements are not a multiple"):
        kind.row_bytes(576)


def test_weight_types_leave_out_what_cannot_be_multiplied_with() -> None:
    left_out = {GGML_TYPES[number].name for number in set(GGML_TYPES) - WEIGHT_TYPES}
    assert left_out == {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
