"""The list of tensors: types and places that the operations of ggml abort on.

Shapes are llama.cpp's to check, and it does (check_tensor_dims), but for some architectures it expects an attention
weight as wide as the embedding, whatever the heads are, and the graph then asserts on the heads. Types it does not
check: a weight of a type that cannot be multiplied with is a call of a null pointer, a norm that is not F32 is an
abort in the first token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from llmcli.models import architectures as arch
from llmcli.models.facts import NO_VOCABULARY
from llmcli.models.gguf_header import GgufHeader
from llmcli.models.gguf_keys import Keys
from llmcli.models.gguf_types import GGML_TYPES, TYPE_IDS, WEIGHT_TYPES
from llmcli.models.layers import Layers
from llmcli.models.tensor_list import GgufTensor

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


def check_tensors(keys: Keys, headers: Sequence[GgufHeader], layers: Layers) -> None:
    """Refuse tensors that would bring llama.cpp down."""
    tensors: dict[str, GgufTensor] = {}
    for header in headers:
        part = Keys(header, keys.architecture)
        for tensor in header.tensors:
            _check_type(part, tensor)
            if (header.data_offset + tensor.offset) % TENSOR_ALIGNMENT_BYTES:
                part.fail(
                    f"tensor {tensor.name!r} starts at offset {header.data_offset + tensor.offset}, expected a "
                    f"multiple of {TENSOR_ALIGNMENT_BYTES} (general.alignment is {header.alignment})"
                )
            tensors[tensor.name] = tensor
    _check_embedding(keys, tensors.get("token_embd.weight"))
    for layer in range(layers.count):
        _check_groups(keys, tensors, layers, layer)
    if keys.architecture not in arch.HEAD_SIZES_DIFFER:
        _check_heads(keys, tensors, layers)


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


# Tensors that the loader takes as optional and the graph as given: where one of the first is there, one of each of the
# others has to be.
_GROUPS: tuple[tuple[set[str], tuple[set[str], ...]], ...] = (
    ({"ffn_up", "ffn_gate", "ffn_down"}, ({"ffn_up"}, {"ffn_down"})),
    ({"ffn_up_shexp", "ffn_gate_shexp", "ffn_down_shexp"}, ({"ffn_up_shexp"}, {"ffn_down_shexp"})),
    (
        {"ffn_up_exps", "ffn_gate_exps", "ffn_gate_up_exps", "ffn_down_exps"},
        ({"ffn_up_exps", "ffn_gate_up_exps"}, {"ffn_down_exps"}, {"ffn_gate_inp"}),
    ),
    ({"time_mix_w1"}, ({"time_mix_lerp_fused", "time_mix_lerp_k"},)),
    *(({f"time_mix_lerp_{part}"}, tuple({f"time_mix_lerp_{other}"} for other in "wkvrg")) for part in "wkvrg"),
)
_FEED_FORWARD = {"ffn_down", "ffn_down_exps"}


def _check_groups(keys: Keys, tensors: Mapping[str, GgufTensor], layers: Layers, layer: int) -> None:
    def missing(names: set[str]) -> bool:
        return not any(f"blk.{layer}.{name}.weight" in tensors for name in names)

    name = keys.architecture
    groups = [*_GROUPS]
    if name in arch.DELTA_NET and layers.recurrent[layer]:
        groups.append(({"ssm_out"}, ({"attn_qkv", "ssm_in"}, {"attn_gate", "ssm_in"})))
    elif name not in arch.LATENT_ATTENTION and layers.cached_heads[layer]:
        groups.append(({"attn_norm", "attn_output"}, ({"attn_q", "attn_qkv"}, {"attn_k", "attn_qkv"})))
    if name in arch.FEED_FORWARD_EVERYWHERE and keys.own("feed_forward_length") in keys.header.metadata:
        groups.append(({"attn_norm"}, (_FEED_FORWARD,)))
    for triggers, needed in groups:
        for names in needed:
            if not missing(triggers) and missing(names):
                keys.fail(f"tensor 'blk.{layer}.{min(names)}.weight' is missing")


def _check_heads(keys: Keys, tensors: Mapping[str, GgufTensor], layers: Layers) -> None:
    """The attention weights of each layer are as wide as its heads together (queries with a gate: twice that)."""
    for layer, (heads, kv_heads) in enumerate(zip(layers.heads, layers.kv_heads, strict=True)):
        if not kv_heads or (layers.recurrent[layer] and keys.architecture not in arch.RECURRENT_AND_ATTENTION):
            continue
        in_window = layers.window_layers[layer]
        key = layers.key_width_window if in_window else layers.key_width
        value = layers.value_width_window if in_window else layers.value_width
        expected = {
            "attn_q": (1, {heads * key, 2 * heads * key}),
            "attn_k": (1, {kv_heads * key}),
            "attn_v": (1, {kv_heads * value}),
            "attn_qkv": (1, {queries + kv_heads * (key + value) for queries in (heads * key, 2 * heads * key)}),
            "attn_output": (0, {heads * value}),
        }
        for part, (axis, widths) in expected.items():
            tensor = tensors.get(f"blk.{layer}.{part}.weight")
            if tensor and (*tensor.shape, 1)[axis] not in widths:
                keys.fail(
                    f"tensor {tensor.name!r} is {list(tensor.shape)}, which does not fit {heads} heads of {key} "
                    f"({kv_heads} KV heads of {value}): expected a width of {min(widths)}"
                )


def _check_embedding(keys: Keys, embedding: GgufTensor | None) -> None:
    """One row for each token. A declared vocabulary size without tokens is memory that llama.cpp reserves unchecked."""
    if embedding is None or len(embedding.shape) != 2:
        keys.fail("tensor 'token_embd.weight' is missing or has no rows")
    tokens = keys.array("tokenizer.ggml.tokens", "str")
    if keys.text("tokenizer.ggml.model") in NO_VOCABULARY:
        count = keys.integer(keys.own("vocab_size")) or 0
    else:
        count = tokens.count if tokens else 0
    if embedding.shape[1] != count:
        keys.fail(f"tensor 'token_embd.weight' has {embedding.shape[1]} rows, expected one for each of {count} tokens")
