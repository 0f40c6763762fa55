"""LoRA adapters beside a model: what fits, and what would bring llama.cpp down."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.check import check_model
from llmcli.models.check_lora import check_lora
from llmcli.models.facts import ModelFacts
from tests.fixtures.gguf_edit import ARRAY, F32, I32, U32, Array, Gguf
from tests.fixtures.small_models import zero_tensor

WIDTH, RANK, VOCAB = 288, 4, 263


@pytest.fixture
def base(scripted_model: Callable[..., Path]) -> ModelFacts:
    return check_model(scripted_model(["Hello", " world"]))


@pytest.fixture
def adapter() -> Gguf:
    model = Gguf().text("general.type", "adapter").text("general.architecture", "llama").text("adapter.type", "lora")
    model.set("adapter.lora.alpha", F32, 8.0)
    model.tensors = [
        zero_tensor("blk.0.attn_q.weight.lora_a", WIDTH, RANK),
        zero_tensor("blk.0.attn_q.weight.lora_b", RANK, WIDTH),
        zero_tensor("token_embd.weight.lora_a", RANK, VOCAB),
        zero_tensor("token_embd.weight.lora_b", RANK, WIDTH),
    ]
    return model


def refused(adapter: Gguf, base: ModelFacts, tmp_path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_lora(adapter.write(tmp_path / "adapter.gguf"), base)
    return caught.value.message


def test_a_good_one(adapter: Gguf, base: ModelFacts, tmp_path: Path) -> None:
    check_lora(adapter.write(tmp_path / "adapter.gguf"), base)
    adapter.tensors.append(zero_tensor("blk.0.attn_norm.weight", WIDTH))
    adapter.set("adapter.alora.invocation_tokens", ARRAY, Array(U32, [1, 2]))
    check_lora(adapter.write(tmp_path / "adapter.gguf"), base)


def test_a_model_is_none(base: ModelFacts) -> None:
    with pytest.raises(ModelError, match="is not a LoRA adapter"):
        check_lora(Path(base.shards[0]), base)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda m: m.set("general.type", U32, 1), "general.type is u32, expected a string"),
        (lambda m: m.text("adapter.type", "control"), "is not a LoRA adapter (general.type is 'adapter'"),
        (
            lambda m: m.text("general.architecture", "qwen2"),
            "is a LoRA adapter for 'qwen2', but the model is of 'llama'",
        ),
        (lambda m: m.set("adapter.lora.alpha", U32, 8), "adapter.lora.alpha is u32, expected a floating-point number"),
        (lambda m: m.set("adapter.lora.alpha", 12, 8.0), "adapter.lora.alpha is not an f32"),
        (
            lambda m: m.set("adapter.alora.invocation_tokens", ARRAY, Array(I32, [1])),
            "is an array of i32, expected an array of u32",
        ),
        (lambda m: m.tensors.clear(), "it has no tensors"),
        (lambda m: m.tensors.pop(0), "its other half is missing"),
        (
            lambda m: m.tensors.append(zero_tensor("blk.9.ffn_up.weight.lora_a", 4, 4)),
            "the model has no tensor of that",
        ),
        (lambda m: m.tensors.append(zero_tensor("blk.0.attn_q.weight", WIDTH, WIDTH)), "is no part of an adapter"),
        (lambda m: setattr(m.tensors[0], "type_id", 26), "has type I32, which cannot be multiplied with"),
        (lambda m: m.tensors.__setitem__(1, zero_tensor("blk.0.attn_q.weight.lora_b", 8, WIDTH)), "does not fit"),
        (lambda m: m.tensors.__setitem__(2, zero_tensor("token_embd.weight.lora_a", 8, VOCAB)), "does not fit"),
        (
            lambda m: m.tensors.__setitem__(0, zero_tensor("blk.0.attn_q.weight.lora_a", WIDTH, RANK, 3)),
            "which does not fit [288, 4, 3, 1] and [4, 288, 1, 1]",
        ),
    ],
)
def test_bad_ones(
    adapter: Gguf, base: ModelFacts, tmp_path: Path, damage: Callable[[Gguf], object], expected: str
) -> None:
    changed = copy.deepcopy(adapter)
    damage(changed)
    assert expected in refused(changed, base, tmp_path)
