"""Which layer keeps what, by architecture, as create_memory of llama.cpp decides it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.layers import Layers, read_layers
from tests.fixtures.gguf_edit import ARRAY, BOOL, U32, Array, Gguf
from tests.fixtures.small_models import keys_of, metadata


def layers_of(model: Gguf, tmp_path: Path) -> Layers:
    return read_layers(keys_of(model, tmp_path))


def test_plain(tmp_path: Path) -> None:
    layers = layers_of(metadata("llama", block_count=3, attention__head_count_kv=2, attention__key_length=24), tmp_path)
    assert layers.cached_heads == (2, 2, 2)
    assert (layers.key_width, layers.value_width) == (24, 16)
    assert (layers.window, layers.window_layers, layers.recurrent_state_bytes) == (None, (False,) * 3, 0)
    assert layers.mla is False


def test_extra_prediction_layers_do_not_count(tmp_path: Path) -> None:
    layers = layers_of(metadata("glm4moe", block_count=4, nextn_predict_layers=1), tmp_path)
    assert (layers.count_all, layers.count, layers.cached_heads) == (4, 3, (4, 4, 4))


WINDOWS = {
    # Every n-th layer sees everything; 1 = sees the window.
    ("gemma2", 4): "1010",
    ("gemma3", 7): "1111101",
    ("gemma3n", 6): "111101",
    ("gpt-oss", 4): "1010",
    ("cohere2", 5): "11101",
    ("cohere2moe", 5): "01110",
    ("laguna", 5): "01110",
    ("llama4", 5): "11101",
    ("smallthinker", 5): "01110",
    ("plamo3", 9): "111111101",
    ("exaone4", 64): "1110" * 16,
    ("exaone4", 32): "0" * 32,
    ("deepseek4", 3): "111",
    ("phi3", 4): "0000",
    ("qwen2", 4): "0000",
}


@pytest.mark.parametrize(("case", "expected"), WINDOWS.items(), ids=[f"{name} {count}" for name, count in WINDOWS])
def test_windows(tmp_path: Path, case: tuple[str, int], expected: str) -> None:
    name, count = case
    layers = layers_of(metadata(name, block_count=count, attention__sliding_window=100), tmp_path)
    assert layers.window_layers == tuple(flag == "1" for flag in expected)
    fixed = {"llama4": 8192, "smallthinker": 4096}
    assert layers.window == (fixed.get(name, 100) if "1" in expected else None)


def test_a_window_that_the_file_leaves_out(tmp_path: Path) -> None:
    assert layers_of(metadata("gemma3"), tmp_path).window is None
    assert layers_of(metadata("gemma3", attention__sliding_window=0), tmp_path).window is None
    assert layers_of(metadata("gemma2"), tmp_path).window == 4096
    assert layers_of(metadata("llama4"), tmp_path).window == 8192
    assert layers_of(metadata("llama4", attention__sliding_window=0), tmp_path).window is None
    with pytest.raises(ModelError, match="is None, expected a window of at least 1"):
        layers_of(metadata("gpt-oss"), tmp_path)


def test_a_pattern_in_the_file_counts(tmp_path: Path) -> None:
    model = metadata("gemma3", block_count=4, attention__sliding_window=64)
    model.set("gemma3.attention.sliding_window_pattern", U32, 2)
    assert layers_of(model, tmp_path).window_layers == (True, False, True, False)
    model.set("gemma3.attention.sliding_window_pattern", ARRAY, Array(BOOL, [False, True, True]))
    assert layers_of(model, tmp_path).window_layers == (False, True, True, False)


def test_widths_of_window_layers(tmp_path: Path) -> None:
    model = metadata("gemma4", attention__sliding_window=64, attention__key_length=32, attention__value_length=32)
    model.u32("gemma4.attention.key_length_swa", 8).u32("gemma4.attention.value_length_swa", 8)
    model.set("gemma4.attention.sliding_window_pattern", ARRAY, Array(BOOL, [True, False]))
    layers = layers_of(model, tmp_path)
    assert (layers.key_width, layers.key_width_window, layers.value_width_window) == (32, 8, 8)


def test_layers_that_reuse_a_cache(tmp_path: Path) -> None:
    layers = layers_of(metadata("gemma3n", block_count=30, attention__sliding_window=64), tmp_path)
    assert layers.cached_heads == (4,) * 20 + (0,) * 10


@pytest.mark.parametrize(
    ("architecture", "sizes", "heads", "state_values"),
    [
        # mamba: (kernel - 1) * (inner + 2 * groups * state) + state * inner, for each layer
        (
            "mamba",
            {"ssm__inner_size": 128, "ssm__state_size": 16, "ssm__conv_kernel": 4},
            None,
            2 * (3 * 128 + 16 * 128),
        ),
        (
            "falcon-h1",
            {"ssm__inner_size": 128, "ssm__state_size": 16, "ssm__conv_kernel": 4, "ssm__group_count": 2},
            None,
            2 * (3 * (128 + 2 * 2 * 16) + 16 * 128),
        ),
        ("rwkv7", {"wkv__head_size": 32}, None, 2 * (2 * 64 + 64 * 32)),
        ("arwkv7", {"wkv__head_size": 32, "token_shift_count": 1}, None, 2 * (64 + 64 * 32)),
        ("lfm2", {"shortconv__l_cache": 3}, [0, 2], 2 * 64),
        ("kimi-linear", {"kda__head_dim": 8, "ssm__conv_kernel": 4}, [0, 1], 3 * 3 * 4 * 8 + 4 * 8 * 8),
        ("minimax-01", {"full_attention_interval": 2}, None, 4 * 16 * 16),
    ],
)
def test_recurrent_states(
    tmp_path: Path, architecture: str, sizes: dict[str, int], heads: list[int] | None, state_values: int
) -> None:
    model = metadata(architecture, **sizes)
    if heads:
        model.set(f"{architecture}.attention.head_count_kv", ARRAY, Array(U32, heads))
    layers = layers_of(model, tmp_path)
    assert layers.recurrent_state_bytes == 4 * state_values
    everywhere = architecture in {"mamba", "rwkv7", "arwkv7", "falcon-h1"}
    assert layers.recurrent == ((True, True) if everywhere else (True, False))
    assert layers.cached_heads[1] == (0 if everywhere and architecture != "falcon-h1" else layers.kv_heads[1])


def test_intervals(tmp_path: Path) -> None:
    sizes = {"ssm__inner_size": 64, "ssm__state_size": 16, "ssm__conv_kernel": 4, "ssm__group_count": 2}
    layers = layers_of(metadata("qwen3next", block_count=8, **sizes), tmp_path)
    assert layers.recurrent == (True, True, True, False) * 2
    assert layers.cached_heads == (0, 0, 0, 4) * 2
    model = metadata("qwen3next", block_count=4, **sizes)
    model.set("qwen3next.attention.recurrent_layers", ARRAY, Array(BOOL, [False, True, True, False]))
    assert layers_of(model, tmp_path).recurrent == (False, True, True, False)


def test_feed_forward_layers_are_not_recurrent(tmp_path: Path) -> None:
    model = metadata("nemotron_h", block_count=3, ssm__inner_size=64, ssm__state_size=16, ssm__conv_kernel=4)
    model.set("nemotron_h.attention.head_count_kv", ARRAY, Array(U32, [0, 2, 0]))
    model.set("nemotron_h.feed_forward_length", ARRAY, Array(U32, [0, 0, 128]))
    layers = layers_of(model, tmp_path)
    assert (layers.recurrent, layers.cached_heads) == ((True, False, False), (0, 2, 0))


def test_latent_attention(tmp_path: Path) -> None:
    model = metadata("deepseek2", attention__head_count_kv=1, attention__key_length=576, attention__value_length=512)
    assert layers_of(model, tmp_path).mla is False
    model.u32("deepseek2.attention.key_length_mla", 192).u32("deepseek2.attention.value_length_mla", 128)
    assert layers_of(model, tmp_path).mla is True


def test_sparse_attention_keeps_more(tmp_path: Path) -> None:
    layers = layers_of(metadata("glm-dsa", attention__indexer__key_length=128), tmp_path)
    assert (layers.indexer_width, layers.indexer_layers) == (128, 2)
    assert layers_of(metadata("llama", attention__indexer__key_length=128), tmp_path).indexer_width == 0
