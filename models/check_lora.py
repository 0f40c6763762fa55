"""Decides whether a LoRA adapter may be handed to llama.cpp beside a model.

Follows src/llama-adapter.cpp, which reads some values without looking at their type first (an abort), and the
products that src/llama-graph.cpp makes of the pairs, which abort where the sizes do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llmcli.base.errors import ModelError
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_header import read_header
from llmcli.models.gguf_keys import Keys
from llmcli.models.gguf_source import shown
from llmcli.models.gguf_types import GGML_TYPES, WEIGHT_TYPES
from llmcli.models.tensor_list import GgufTensor

_SUFFIXES = (".lora_a", ".lora_b")


def check_lora(path: Path, base: ModelFacts) -> None:
    """Raise ModelError where `path` is no LoRA adapter, or not one for the model `base`."""
    header = read_header(path)
    keys = Keys(header)
    kind, adapter = keys.text("general.type"), keys.text("adapter.type")
    if kind != "adapter" or adapter != "lora":
        said = (("general.type", kind), ("adapter.type", adapter))
        words = ", ".join(f"{key} is {'missing' if value is None else repr(value)}" for key, value in said)
        raise ModelError(f"{shown(path)} is not a LoRA adapter ({words})")
    name = keys.text("general.architecture")
    if name != base.architecture:
        raise ModelError(f"{shown(path)} is a LoRA adapter for {name!r}, but the model is of {base.architecture!r}")
    if keys.number("adapter.lora.alpha") is not None and header.value_types["adapter.lora.alpha"] != "f32":
        keys.fail("adapter.lora.alpha is not an f32")
    keys.array("adapter.alora.invocation_tokens", "u32")
    tensors = {tensor.name: tensor for tensor in header.tensors}
    weights = {tensor.name: tensor for shard in base.shards for tensor in read_header(Path(shard)).tensors}
    if not tensors:
        keys.fail("it has no tensors")
    for tensor in tensors.values():
        _check_tensor(keys, tensor, tensors, weights)


def _check_tensor(
    keys: Keys, tensor: GgufTensor, tensors: Mapping[str, GgufTensor], weights: Mapping[str, GgufTensor]
) -> None:
    if tensor.name.endswith("_norm.weight"):  # llama.cpp skips them
        return
    if tensor.type_id not in WEIGHT_TYPES:
        keys.fail(f"tensor {tensor.name!r} has type {GGML_TYPES[tensor.type_id].name}, which cannot be multiplied with")
    if not tensor.name.endswith(_SUFFIXES):
        keys.fail(f"tensor {tensor.name!r} is no part of an adapter (expected a name that ends in .lora_a or .lora_b)")
    stem = tensor.name[: -len(_SUFFIXES[0])]
    pair = [tensors.get(stem + suffix) for suffix in _SUFFIXES]
    weight = weights.get(stem)
    if weight is None or pair[0] is None or pair[1] is None:
        what = "the model has no tensor of that name" if weight is None else "its other half is missing"
        keys.fail(f"tensor {tensor.name!r} changes nothing: {what}")
    first, second, whole = _four(pair[0]), _four(pair[1]), _four(weight)
    if stem.endswith("token_embd.weight"):  # looked up, so A is the other way round
        fits = (second[1], first[1]) == whole[:2] and first[0] == second[0]
    else:
        fits = (first[0], second[1]) == whole[:2] and first[1] == second[0]
    if not fits or first[2:] != whole[2:] or second[2:] != whole[2:]:
        keys.fail(f"tensor {stem!r} is {list(whole)} in the model, which does not fit {list(first)} and {list(second)}")


def _four(tensor: GgufTensor) -> tuple[int, ...]:
    return (*tensor.shape, 1, 1, 1)[:4]
