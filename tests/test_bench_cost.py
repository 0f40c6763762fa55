"""Bytes and operations per token: counted by hand for models of known shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from llmcli.bench.cost import Active, _active, active_weights, cost_of
from llmcli.bench.sizes import Sizes
from llmcli.models.check import check_model
from llmcli.models.estimate import kv_cache_bytes
from llmcli.models.tensor_list import GgufTensor
from tests.test_engine_plan import LLAMA


def tensor(name: str, *shape: int, nbytes: int | None = None) -> GgufTensor:
    count = 1
    for side in shape:
        count *= side
    return GgufTensor(name, shape, 1, 0, 2 * count if nbytes is None else nbytes)


EMBEDDING, OUTPUT = tensor("token_embd.weight", 64, 1000), tensor("output.weight", 64, 1000)
NORM, MATRIX = tensor("blk.0.attn_norm.weight", 64, nbytes=256), tensor("blk.0.attn_q.weight", 64, 64)
EXPERTS = tensor("blk.0.ffn_up_exps.weight", 64, 128, 8)


def test_the_embedding_is_read_where_it_is_the_output_too() -> None:
    assert _active([EMBEDDING, NORM, MATRIX], LLAMA) == Active(128000 + 256 + 8192, 128000 + 256 + 8192, 64000 + 4096)
    assert _active([EMBEDDING, OUTPUT, MATRIX], LLAMA) == Active(128000 + 8192, 128000 + 8192, 64000 + 4096)


def test_experts_take_part_in_their_share() -> None:
    facts = replace(LLAMA, n_expert=8, n_expert_used=2)
    found = _active([OUTPUT, MATRIX, EXPERTS], facts)
    assert found.weights == 64000 + 4096 + 64 * 128 * 2
    assert found.bytes == 128000 + 8192 + 2 * 64 * 128 * 2
    assert found.batch_bytes == 128000 + 8192 + 2 * 64 * 128 * 8


ACTIVE = Active(4 << 30, 4 << 30, 8 << 30)


def cost(sizes: Sizes, n_ubatch: int = 256) -> tuple[float, float]:
    found = cost_of(sizes, LLAMA, ACTIVE, n_ubatch, "f16", "f16")
    return found.bytes_per_token, found.ops_per_token


def test_decoding_reads_all_weights_and_the_cache_behind() -> None:
    bytes_, ops = cost(Sizes(n_gen=2, n_depth=1000))
    assert bytes_ == (4 << 30) + kv_cache_bytes(LLAMA, 1001)
    # 32 layers of 32 heads of 128: scores and values, a multiplication and an addition each
    assert ops == 2 * (8 << 30) + 32 * 4 * 32 * 128 * 1001


def test_a_prompt_reads_the_weights_once_per_batch() -> None:
    bytes_, ops = cost(Sizes(n_prompt=512))
    assert bytes_ == (2 * (4 << 30) + kv_cache_bytes(LLAMA, 256) + kv_cache_bytes(LLAMA, 512)) / 512
    assert ops == 2 * (8 << 30) + 32 * 4 * 32 * 128 * 256
    assert cost(Sizes(n_prompt=512), n_ubatch=512)[0] < bytes_


def test_both_are_the_mean_of_their_tokens() -> None:
    both = cost(Sizes(n_prompt=512, n_gen=128))
    assert min(cost(Sizes(n_prompt=512))) < min(both)
    assert cost(Sizes(n_prompt=512))[0] < both[0] < cost(Sizes(n_gen=128))[0]


def test_a_window_bounds_what_attention_sees() -> None:
    facts = replace(LLAMA, sliding_window=512, window_layers=(True,) * 32)
    near, far = (cost_of(Sizes(n_gen=1, n_depth=d), facts, ACTIVE, 256, "f16", "f16") for d in (2000, 9000))
    assert near == far
    assert near.ops_per_token == 2 * (8 << 30) + 32 * 4 * 32 * 128 * 512


@pytest.mark.parametrize("kind", ["plain", "hybrid", "mamba"])
def test_the_tensors_of_a_file(kind: str, random_model: Callable[[str], Path]) -> None:
    path = random_model(kind)
    found = active_weights(check_model(path, need_vocabulary=False))
    tensors = gguf.GGUFReader(path).tensors
    named = {t.name: t for t in tensors}
    skip = {"token_embd.weight"} if "output.weight" in named else set()
    assert found.bytes == sum(t.n_bytes for name, t in named.items() if name not in skip)
    assert found.weights == sum(t.n_elements for name, t in named.items() if name not in skip and len(t.shape) > 1)
