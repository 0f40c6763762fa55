"""The list of tensors: types and places that the operations of ggml abort on.

Shapes are llama.cpp's to check, and it does (check_tensor_dims). It does not check types: a weight of a type that
cannot be multiplied with is a call of a null pointer, a norm that is not F32 is an abort in the first token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmcli.models.facts import NO_VOCABULARY
from llmcli.models.gguf_header import GgufHeader, GgufTensor
from llmcli.models.gguf_keys import Keys
from llmcli.models.gguf_types import GGML_TYPES, TYPE_IDS, WEIGHT_TYPES

TENSOR_ALIGNMENT_BYTES = 32  # TENSOR_ALIGNMENT of ggml: memory-mapped weights that lie otherwise are an abort
_F32 = TYPE_IDS["F32"]

# Added, scaled, convolved or scanned with, never multiplied as a matrix: only F32 is implemented for them on the CPU.
# (LLM_TENSOR_INFOS in src/llama-arch.cpp, the operations other than MUL_MAT, MUL_MAT_ID and GET_ROWS.)
_ONLY_F32 = re.compile(
    r"(\.bias|\.scale|norm(_\d|_exps)?\.weight|rope_freqs\.weight|rope_factors_(long|short)\.weight"
    r"|ssm_(a|d|conv1d(_[qkv])?)(\.weight)?|ssm_norm\.weight|shortconv\.conv\.weight|attn_sinks(\.weight)?"
    r"|exp_probs_b(\.\w+)?|time_mix_(first|lerp_\w+|decay|ln)\.weight)\Z"
)
# Tables of indices.
_INTEGERS = {"ffn_gate_tid2eid": {"I32"}, "d2t": {"I32", "I64"}, "masked_embd_ordering": {"I32"}}


def check_tensors(keys: Keys, headers: Sequence[GgufHeader]) -> None:
    """Refuse tensors that would bring llama.cpp down."""
    embedding: GgufTensor | None = None
    for header in headers:
        part = Keys(header, keys.architecture)
        for tensor in header.tensors:
            _check_type(part, tensor)
            if (header.data_offset + tensor.offset) % TENSOR_ALIGNMENT_BYTES:
                part.fail(
                    f"tensor {tensor.name!r} starts at offset {header.data_offset + tensor.offset}, expected a "
                    f"multiple of {TENSOR_ALIGNMENT_BYTES} (general.alignment is {header.alignment})"
                )
            if tensor.name == "token_embd.weight":
                embedding = tensor
    if embedding is None or len(embedding.shape) != 2:
        keys.fail("tensor 'token_embd.weight' is missing or has no rows")
    _check_embedding(keys, embedding)


def _check_type(keys: Keys, tensor: GgufTensor) -> None:
    name, kind = tensor.name, GGML_TYPES[tensor.type_id].name
    allowed = _INTEGERS.get(name.split(".")[-2 if name.endswith(".weight") else -1], set())
    if allowed:
        if kind not in allowed:
            keys.fail(f"tensor {name!r} has type {kind}, expected {' or '.join(sorted(allowed))}")
        return
    flat = all(size == 1 for size in tensor.shape[1:])
    if tensor.type_id != _F32 and (flat or _ONLY_F32.search(name)):
        keys.fail(f"tensor {name!r} has type {kind}, expected F32")
    if tensor.type_id not in WEIGHT_TYPES:
        keys.fail(f"tensor {name!r} has type {kind}, which cannot be multiplied with")


def _check_embedding(keys: Keys, embedding: GgufTensor) -> None:
    """One row for each token. A declared vocabulary size without tokens is memory that llama.cpp reserves unchecked."""
    tokens = keys.array("tokenizer.ggml.tokens", "str")
    if keys.text("tokenizer.ggml.model") in NO_VOCABULARY:
        count = keys.integer(keys.own("vocab_size")) or 0
    else:
        count = tokens.count if tokens else 0
    if embedding.shape[1] != count:
        keys.fail(f"tensor 'token_embd.weight' has {embedding.shape[1]} rows, expected one for each of {count} tokens")
