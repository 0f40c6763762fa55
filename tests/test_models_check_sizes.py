"""Numbers of a model that llama.cpp asserts on or divides by."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.check_sizes import check_sizes
from tests.fixtures.gguf_edit import ARRAY, BOOL, F32, I32, U32, Array, Gguf
from tests.fixtures.small_models import keys_of, metadata


def refused(model: Gguf, tmp_path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_sizes(keys_of(model, tmp_path))
    return caught.value.message.split(" is not a usable model: ")[1]


def test_a_good_one(tmp_path: Path) -> None:
    layers = check_sizes(keys_of(metadata("llama", attention__head_count_kv=2), tmp_path))
    assert (layers.count, layers.heads, layers.kv_heads, layers.key_width) == (2, (4, 4), (2, 2), 16)


@pytest.mark.parametrize(
    ("suffix", "value", "expected"),
    [
        ("context_length", 0, "llama.context_length is 0, expected 1 to 2147483647"),
        ("embedding_length", 0, "llama.embedding_length is 0, expected 1 to 16777216"),
        ("block_count", 0, "llama.block_count is 0, expected 1 to 512"),
        ("block_count", 10**9, "llama.block_count is 1000000000, expected 1 to 512"),
        ("nextn_predict_layers", 2, "llama.nextn_predict_layers is 2, expected 0 to 1"),
        ("attention.head_count", 0, "llama.attention.head_count is 0, expected at least 1"),
        ("attention.head_count_kv", 3, "layer 0 has 4 heads for 3 KV heads, expected a multiple"),
        ("attention.head_count_kv", 8, "layer 0 has 4 heads for 8 KV heads, expected a multiple"),
        ("attention.head_count", 65, "its heads are 0 (keys) and 0 (values) wide, expected at least 1"),
        ("attention.key_length", 0, "its heads are 0 (keys) and 16 (values) wide, expected at least 1"),
        ("attention.key_length", 8, "llama.attention.key_length is 8 and llama.attention.value_length is 16"),
        (
            "attention.key_length_swa",
            8,
            "llama.attention.key_length_swa is 8 and llama.attention.value_length_swa is 16",
        ),
        ("rope.dimension_count", 8, "llama.rope.dimension_count is 8, expected 16 (the width of a head)"),
        ("rope.dimension_count", 0, "llama.rope.dimension_count is 0, expected 16 (the width of a head)"),
        ("rope.dimension_count_swa", 15, "is 15, expected an even number from 2 to 16 (the width of a head)"),
        ("rope.dimension_count_swa", 18, "is 18, expected an even number from 2 to 16 (the width of a head)"),
        ("expert_used_count", 2, "llama.expert_count is 0, but experts are used (2, 0 groups)"),
        ("expert_group_count", 2, "llama.expert_count is 0, but experts are used (0, 2 groups)"),
        ("expert_count", 1025, "llama.expert_count is 1025, expected 0 to 1024"),
        ("expert_count", 8, "llama.expert_used_count is 0 to 0, expected 1 to 8"),
    ],
)
def test_one_number(tmp_path: Path, suffix: str, value: int, expected: str) -> None:
    assert expected in refused(metadata("llama").u32(f"llama.{suffix}", value), tmp_path)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (I32, -1, "is -1, expected 1 to 512"),
        (F32, 2.0, "is f32, expected a whole number"),
        (BOOL, True, "is bool, expected a whole number"),
        (ARRAY, Array(U32, [2, 2]), "is an array of u32, expected a whole number"),
    ],
)
def test_the_type_of_a_number(tmp_path: Path, kind: int, value: object, expected: str) -> None:
    assert refused(metadata("llama").set("llama.block_count", kind, value), tmp_path).endswith(expected)


@pytest.mark.parametrize("suffix", ["context_length", "embedding_length", "block_count"])
def test_numbers_that_have_to_be_there(tmp_path: Path, suffix: str) -> None:
    assert refused(metadata("llama").drop(f"llama.{suffix}"), tmp_path) == f"llama.{suffix} is missing"


def test_numbers_for_each_layer(tmp_path: Path) -> None:
    model = metadata("llama").set("llama.attention.head_count_kv", ARRAY, Array(U32, [4, 0]))
    assert check_sizes(keys_of(model, tmp_path)).kv_heads == (4, 0)
    model.set("llama.attention.head_count_kv", ARRAY, Array(U32, [4, 4, 4]))
    assert refused(model, tmp_path) == "llama.attention.head_count_kv has 3 values, expected one for each of 2 layers"
    model.set("llama.attention.head_count_kv", ARRAY, Array(I32, [4, -4]))
    assert refused(model, tmp_path) == "llama.attention.head_count_kv holds -4, expected no negative number"
    model.set("llama.attention.head_count_kv", ARRAY, Array(F32, [4.0, 4.0]))
    assert "is an array of f32, expected an array of u32 or i32 or bool" in refused(model, tmp_path)


@pytest.mark.parametrize(
    ("suffix", "value", "expected"),
    [
        ("attention.layer_norm_rms_epsilon", -1e-5, "expected 0 or more"),
        ("attention.layer_norm_rms_epsilon", math.nan, "is nan, expected a finite number"),
        ("rope.freq_base", 0.0, "llama.rope.freq_base is 0.0, expected more than 0"),
        ("rope.freq_base", -10000.0, "expected more than 0"),
        ("rope.freq_base", math.inf, "is inf, expected a finite number"),
        ("rope.scaling.factor", math.nan, "is nan, expected a finite number"),
        ("anything.at.all", -math.inf, "is -inf, expected a finite number"),
    ],
)
def test_floating_point_numbers(tmp_path: Path, suffix: str, value: float, expected: str) -> None:
    assert expected in refused(metadata("llama").set(f"llama.{suffix}", F32, value), tmp_path)


def test_numbers_of_others_are_left_alone(tmp_path: Path) -> None:
    assert check_sizes(keys_of(metadata("llama").set("general.sampling.temp", F32, math.nan), tmp_path))


def test_rope(tmp_path: Path) -> None:
    model = metadata("llama").text("llama.rope.scaling.type", "dynamic")
    assert refused(model, tmp_path).startswith("llama.rope.scaling.type is 'dynamic', expected one of ('none', ")
    # Part of a head, where the architecture can do that; none, where it has no such positions.
    assert check_sizes(keys_of(metadata("gptneox", rope__dimension_count=8), tmp_path))
    assert check_sizes(keys_of(metadata("mpt", rope__dimension_count=0), tmp_path))
    assert "expected an even number from 2 to 16" in refused(metadata("gptneox", rope__dimension_count=0), tmp_path)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (None, "qwen2vl.rope.dimension_sections is missing"),
        ([0, 0, 0, 0], "is [0, 0, 0, 0], expected a section that is not empty"),
        ([8, 8, 8, 0], "is [8, 8, 8, 0], expected sections within a head"),
        ([2, 3, 3], "has 3 values, expected one for each of 4 layers"),
    ],
)
def test_rope_sections(tmp_path: Path, sections: list[int] | None, expected: str) -> None:
    model = metadata("qwen2vl")
    if sections is not None:
        model.set("qwen2vl.rope.dimension_sections", ARRAY, Array(I32, sections))
    assert expected in refused(model, tmp_path)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"expert_count": 8, "expert_used_count": 9}, "expert_used_count is 9 to 9, expected 1 to 8"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_group_count": 8}, "which have not that many"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_group_count": 3}, "that does not fit"),
        ({"expert_count": 1, "expert_used_count": 1, "expert_group_count": 1}, "expected fewer than the 1 experts"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_gating_func": 5}, "is 5, expected 1 to 4"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_gating_func": 0}, "is 0, expected 1 to 4"),
    ],
)
def test_experts(tmp_path: Path, sizes: dict[str, int], expected: str) -> None:
    if "expert_group_count" in sizes:
        sizes = {**sizes, "expert_group_used_count": 1}
    assert expected in refused(metadata("llama", **sizes), tmp_path)


def test_good_experts(tmp_path: Path) -> None:
    grouped = {"expert_count": 8, "expert_used_count": 2, "expert_group_count": 4, "expert_group_used_count": 2}
    assert check_sizes(keys_of(metadata("llama", **grouped, expert_gating_func=2), tmp_path))
    assert "qwen3moe.expert_count is 0" in refused(metadata("qwen3moe"), tmp_path)
    assert check_sizes(keys_of(metadata("hunyuan-dense", expert_count=1), tmp_path))


@pytest.mark.parametrize(
    ("architecture", "sizes", "expected"),
    [
        ("qwen3next", {"full_attention_interval": 0}, "qwen3next.full_attention_interval is 0, expected 1 to"),
        (
            "ernie4_5-moe",
            {"interleave_moe_layer_step": 0},
            "ernie4_5-moe.interleave_moe_layer_step is 0, expected 1 to",
        ),
        ("nanbeige", {"num_loops": 300}, "2 layers in 300 loops are more than 512"),
        ("nanbeige", {"num_loops": 0}, "nanbeige.num_loops is 0, expected 1 to"),
        ("hrm_text", {"hrm__layers_per_stack": 1, "hrm__h_cycles": 1, "hrm__l_cycles": 3}, "expected 1 * 1 * (3 + 1)"),
        ("gemma2", {"attention__sliding_window": 1 << 30}, "is 1073741824, expected 0 to 268435456"),
        ("gemma3n", {"attention__sliding_window": 0}, "attention.sliding_window is 0, expected a window of at least 1"),
        ("gemma2", {"attention__sliding_window_pattern": 1}, "no layer has the window that"),
        ("rwkv7", {"wkv__head_size": 0}, "rwkv7.wkv.head_size is 0, expected 1 to"),
        ("rwkv7", {"wkv__head_size": 32}, "rwkv7.wkv.head_size is 32, expected a multiple of 64"),
        ("rwkv7", {"wkv__head_size": 128}, "its state of 64 in heads of 128 with None shifts does not fit"),
        ("rwkv7", {"wkv__head_size": 64, "token_shift_count": 1}, "with 1 shifts does not fit"),
        ("deepseek2", {"rope__dimension_count": 16}, "is 16, which leaves nothing of a head of 16"),
        (
            "deepseek2",
            {"rope__dimension_count": 8, "attention__head_count_kv": 2},
            "has 4 heads and 2 KV heads, expected as",
        ),
    ],
)
def test_architectures_of_their_own_kind(
    tmp_path: Path, architecture: str, sizes: dict[str, int], expected: str
) -> None:
    assert expected in refused(metadata(architecture, **sizes), tmp_path)


MAMBA2 = {"ssm__inner_size": 128, "ssm__state_size": 16, "ssm__time_step_rank": 4, "ssm__conv_kernel": 4}


@pytest.mark.parametrize(
    ("architecture", "sizes", "expected"),
    [
        ("mamba2", {"ssm__group_count": 0}, "of 128 in 4 heads and 0 groups does not divide evenly"),
        ("mamba2", {"ssm__group_count": 3}, "in 4 heads and 3 groups does not divide evenly"),
        ("mamba2", {"ssm__group_count": 2, "ssm__time_step_rank": 0}, "ssm.time_step_rank is 0, expected 1 to"),
        ("mamba2", {"ssm__group_count": 2, "ssm__conv_kernel": 1}, "ssm.conv_kernel is 1, expected at least 2"),
        ("jamba", {"ssm__inner_size": 64}, "jamba.ssm.inner_size is 64, expected 128"),
        ("qwen35", {"ssm__group_count": 2}, "its linear attention of 128 in 4 heads of 16, 2 groups, does not divide"),
    ],
)
def test_recurrent_states(tmp_path: Path, architecture: str, sizes: dict[str, int], expected: str) -> None:
    model = metadata(architecture, **{**MAMBA2, **sizes})
    if architecture == "qwen35":
        model.set("qwen35.rope.dimension_sections", ARRAY, Array(I32, [2, 2, 2, 0]))
    assert expected in refused(model, tmp_path)


def test_a_shared_cache_has_to_be_of_the_same_kind(tmp_path: Path) -> None:
    def gemma4(pattern: list[bool], shared: int) -> Gguf:
        model = metadata("gemma4", block_count=len(pattern), attention__sliding_window=64)
        model.u32("gemma4.attention.shared_kv_layers", shared)
        return model.set("gemma4.attention.sliding_window_pattern", ARRAY, Array(BOOL, pattern))

    assert check_sizes(keys_of(gemma4([True, False, True, False], 2), tmp_path)).cached_heads == (4, 4, 0, 0)
    assert "layer 2 shares the KV cache of a layer with another window" in refused(
        gemma4([False, False, True, False], 2), tmp_path
    )
    assert "1 of its layers have a KV cache, expected at least 2" in refused(gemma4([True, False, True], 2), tmp_path)


def test_a_model_that_sees_the_future(tmp_path: Path) -> None:
    model = metadata("llama").set("llama.attention.causal", BOOL, False)
    assert "attention.causal is false), so it cannot write text" in refused(model, tmp_path)
