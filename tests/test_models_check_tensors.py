"""Tensors that the operations of ggml abort on, or that the graph takes for granted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.check_sizes import check_sizes
from llmcli.models.check_tensors import check_tensors
from tests.fixtures.fuzz_bases import make_bases
from tests.fixtures.gguf_edit import Gguf
from tests.fixtures.small_models import keys_of, zero_tensor

F16, Q8_0, Q8_K, I32, F64, BF16 = 1, 8, 15, 26, 28, 30


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gguf]:
    return make_bases(tmp_path_factory.mktemp("bases"))


def check(model: Gguf, tmp_path: Path) -> None:
    keys = keys_of(model, tmp_path)
    check_tensors(keys, [keys.header], check_sizes(keys))


@pytest.mark.parametrize(
    "name", ["plain", "iswa", "hybrid", "mamba", "experts", "learned positions", "rwkv7", "delta net"]
)
def test_good_ones(bases: dict[str, Gguf], tmp_path: Path, name: str) -> None:
    check(bases[name], tmp_path)


def _retype(name: str, type_id: int, size: int) -> Callable[[Gguf], object]:
    def change(model: Gguf) -> None:
        tensor = model.tensor(name)
        tensor.type_id, tensor.data = type_id, bytes(size)

    return change


def _drop(name: str) -> Callable[[Gguf], object]:
    return lambda model: model.tensors.remove(model.tensor(name))


@pytest.mark.parametrize(
    ("base", "damage", "expected"),
    [
        ("plain", _retype("output_norm.weight", F16, 128), "'output_norm.weight' has type F16, expected F32"),
        ("plain", _retype("blk.0.attn_norm.weight", BF16, 128), "has type BF16, expected F32"),
        ("plain", _retype("output.weight", I32, 4 * 64 * 128), "has type I32, which cannot be multiplied with"),
        ("plain", _retype("output.weight", F64, 8 * 64 * 128), "has type F64, which cannot be multiplied with"),
        ("mamba", _retype("blk.0.ssm_conv1d.weight", F16, 2 * 4 * 128), "has type F16, expected F32"),
        ("mamba", _retype("blk.0.ssm_a", F16, 2 * 16 * 128), "'blk.0.ssm_a' has type F16, expected F32"),
        ("mamba", _retype("blk.1.ssm_conv1d.bias", F16, 2 * 128), "has type F16, expected F32"),
        ("hybrid", _retype("blk.0.shortconv.conv.weight", F16, 2 * 3 * 64), "has type F16, expected F32"),
        ("rwkv7", _retype("blk.0.time_mix_lerp_fused.weight", F16, 2 * 64 * 6), "has type F16, expected F32"),
        ("plain", lambda m: m.tensors.append(zero_tensor("d2t", 8, type_id=F16, size=16)), "expected I32 or I64"),
        ("plain", _drop("token_embd.weight"), "'token_embd.weight' is missing or has no rows"),
        ("plain", lambda m: m.u32("llama.vocab_size", 64), "has 128 rows, expected one for each of 64 tokens"),
        (
            "scripted",
            lambda m: m.get("tokenizer.ggml.tokens").items.pop(),
            "has 263 rows, expected one for each of 262",
        ),
        ("plain", lambda m: setattr(m.tensor("blk.0.attn_q.weight"), "shape", [64, 32]), "does not fit 2 heads of 32"),
        ("plain", _drop("blk.1.attn_k.weight"), "tensor 'blk.1.attn_k.weight' is missing"),
        ("plain", _drop("blk.1.ffn_down.weight"), "tensor 'blk.1.ffn_down.weight' is missing"),
        ("experts", _drop("blk.0.ffn_up_exps.weight"), "tensor 'blk.0.ffn_gate_up_exps.weight' is missing"),
        ("experts", _drop("blk.0.ffn_gate_inp.weight"), "tensor 'blk.0.ffn_gate_inp.weight' is missing"),
        ("delta net", _drop("blk.2.attn_qkv.weight"), "tensor 'blk.2.attn_qkv.weight' is missing"),
        ("delta net", _drop("blk.0.attn_gate.weight"), "tensor 'blk.0.attn_gate.weight' is missing"),
    ],
)
def test_bad_ones(
    bases: dict[str, Gguf], tmp_path: Path, base: str, damage: Callable[[Gguf], object], expected: str
) -> None:
    model = copy.deepcopy(bases[base])
    damage(model)
    for tensor in model.tensors:  # a wrong shape must not be found out by its size
        if tensor.name == b"blk.0.attn_q.weight" and tensor.shape == [64, 32]:
            tensor.data = tensor.data[: 4 * 64 * 32]
    with pytest.raises(ModelError) as caught:
        check(model, tmp_path)
    assert expected in caught.value.message


@pytest.mark.parametrize(("type_id", "size"), [(F16, 2 * 64 * 128), (BF16, 2 * 64 * 128), (Q8_0, 34 * 2 * 128)])
def test_weights_may_be_quantized(bases: dict[str, Gguf], tmp_path: Path, type_id: int, size: int) -> None:
    model = copy.deepcopy(bases["plain"])
    _retype("output.weight", type_id, size)(model)
    check(model, tmp_path)


def test_data_that_is_not_aligned(bases: dict[str, Gguf], tmp_path: Path) -> None:
    model = copy.deepcopy(bases["plain"])
    model.alignment = 4
    model.u32("general.alignment", 4)
    model.text("general.name", "x" * (next(n for n in range(32) if _data_offset(model, n) % 32)))
    with pytest.raises(ModelError, match=r"expected a multiple of 32 \(general.alignment is 4\)"):
        check(model, tmp_path)


def _data_offset(model: Gguf, padding: int) -> int:
    size = len(copy.deepcopy(model).text("general.name", "x" * padding).header())
    return -(-size // 4) * 4
