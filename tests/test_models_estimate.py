"""Memory estimates, against exact numbers and against what llama.cpp logs for the same context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import UsageError
from llmcli.models.check import check_model
from llmcli.models.estimate import (
    KV_TYPES,
    MemoryNeed,
    compute_bytes,
    kv_bytes_per_token,
    kv_cache_bytes,
    kv_type,
    memory_need,
    weights_bytes,
)
from llmcli.models.gguf_types import TYPE_IDS
from tests.fixtures.facts import LLAMA_8B
from tests.fixtures.fuzz_bases import ZERO_MODELS
from tests.fixtures.kv_report import reported_buffers_mib, reported_mib, resident_growth_mib

MIB = 1 << 20
TOLERANCE_MIB = 0.011  # the log has two decimals for each part


def test_plain_attention() -> None:
    assert kv_bytes_per_token(LLAMA_8B) == 2 * 2 * 8 * 128 * 32 == 131072
    assert kv_cache_bytes(LLAMA_8B, 8192) == 8192 * 131072
    assert weights_bytes(LLAMA_8B) == 4_912_898_304


def test_a_context_is_rounded_up() -> None:
    assert kv_cache_bytes(LLAMA_8B, 1) == kv_cache_bytes(LLAMA_8B, 256)
    assert kv_cache_bytes(LLAMA_8B, 257) == kv_cache_bytes(LLAMA_8B, 512)


# Bytes of a row of 1024 values.
ROW_BYTES = {
    "f32": 4096,
    "f16": 2048,
    "bf16": 2048,
    "q8_0": 1088,
    "q5_1": 768,
    "q5_0": 704,
    "q4_1": 640,
    "q4_0": 576,
    "iq4_nl": 576,
}


@pytest.mark.parametrize("name", KV_TYPES)
def test_cache_types(name: str) -> None:
    assert kv_bytes_per_token(LLAMA_8B, name, name) == 2 * 32 * ROW_BYTES[name]
    assert kv_bytes_per_token(LLAMA_8B, name, "f16") == 32 * (ROW_BYTES[name] + 2048)


@pytest.mark.parametrize("name", ["q4_k", "i32", "", "f16 "])
def test_a_wrong_cache_type_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a KV cache type"):
        kv_type(name)


def test_a_cache_type_that_does_not_fit_is_refused() -> None:
    facts = replace(LLAMA_8B, n_head_kv=(1,) * 32, n_embd_head_k=80, n_embd_head_v=80)
    with pytest.raises(UsageError, match=r"rows have 80 values, expected a multiple of 32"):
        kv_cache_bytes(facts, 4096, "q8_0", "f16")


def test_window_layers_keep_the_window_and_a_batch() -> None:
    facts = replace(LLAMA_8B, sliding_window=1024, window_layers=(True, False) * 16)
    half_row = 131072 // 2
    assert kv_cache_bytes(facts, 8192) == half_row * (8192 + 1024 + 256)
    assert kv_cache_bytes(facts, 8192, n_ubatch=512) == half_row * (8192 + 1024 + 512)
    assert kv_cache_bytes(facts, 8192, n_ubatch=100) == half_row * (8192 + 1280)
    assert kv_cache_bytes(facts, 8192, n_seq_max=2) == half_row * (8192 + 2048 + 256)
    assert kv_cache_bytes(facts, 1024) == half_row * 2048
    assert kv_cache_bytes(facts, 8192, swa_full=True) == kv_cache_bytes(LLAMA_8B, 8192)


def test_sequences_with_cells_of_their_own() -> None:
    assert kv_cache_bytes(LLAMA_8B, 1024, n_seq_max=3, kv_unified=False) == 131072 * 3 * 512
    assert kv_cache_bytes(LLAMA_8B, 1024, n_seq_max=3) == 131072 * 1024


def test_latent_attention_has_no_values() -> None:
    # DeepSeek-V3: 61 layers, keys of 512 + 64.
    facts = replace(LLAMA_8B, n_head_kv=(1,) * 61, window_layers=(False,) * 61, n_embd_head_k=576, n_embd_head_v=512)
    assert kv_bytes_per_token(replace(facts, mla=True)) == 61 * 576 * 2
    assert kv_bytes_per_token(facts) == 61 * (576 + 512) * 2


def test_a_recurrent_state_does_not_grow_with_the_context() -> None:
    facts = replace(LLAMA_8B, n_head_kv=(0,) * 32, recurrent_state_bytes=1000)
    assert kv_cache_bytes(facts, 256) == kv_cache_bytes(facts, 1 << 20) == 1000
    assert kv_cache_bytes(facts, 256, n_seq_max=4) == 4000
    assert kv_bytes_per_token(facts) == 0


@given(n_ctx=st.integers(1, 1 << 20), more=st.integers(0, 1 << 16), seqs=st.integers(1, 8), window=st.integers(1, 9000))
def test_more_tokens_never_need_less(n_ctx: int, more: int, seqs: int, window: int) -> None:
    facts = replace(LLAMA_8B, sliding_window=window, window_layers=(True, False) * 16)
    less = kv_cache_bytes(facts, n_ctx, n_seq_max=seqs)
    assert less <= kv_cache_bytes(facts, n_ctx + more, n_seq_max=seqs)
    assert less <= kv_cache_bytes(facts, n_ctx, n_seq_max=seqs, swa_full=True)


# Against the library. (options for llama.cpp, options for the estimate)
CASES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"n_ctx": 4096}, {}),
    ({"n_ctx": 5000, "n_ubatch": 256}, {}),
    ({"n_ctx": 4096, "n_ubatch": 300, "swa_full": False}, {"n_ubatch": 300}),
    ({"n_ctx": 4096, "swa_full": True}, {"swa_full": True}),
    ({"n_ctx": 4096, "n_seq_max": 3, "kv_unified": False}, {"n_seq_max": 3, "kv_unified": False}),
    ({"n_ctx": 4096, "n_seq_max": 3, "kv_unified": True}, {"n_seq_max": 3}),
    ({"n_ctx": 4096, "type_k": TYPE_IDS["Q8_0"]}, {"type_k": "q8_0"}),
    ({"n_ctx": 4096, "type_k": TYPE_IDS["F32"], "type_v": TYPE_IDS["BF16"]}, {"type_k": "f32", "type_v": "bf16"}),
)


def _agrees(path: Path, case: int) -> None:
    options, ours = CASES[case]
    asked = {"n_ubatch": 512, "swa_full": False, "kv_unified": True, **options}
    facts = check_model(path, need_vocabulary=False)
    estimate = kv_cache_bytes(facts, asked["n_ctx"], **{"n_ubatch": asked["n_ubatch"], **ours})
    assert reported_mib(path, **asked) == pytest.approx(estimate / MIB, abs=TOLERANCE_MIB)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_window_model_agrees_with_the_library(random_model: Callable[[str], Path], case: int) -> None:
    _agrees(random_model("iswa"), case)


@pytest.mark.parametrize("kind", ["plain", "hybrid", "mamba"])
def test_other_kinds_agree_with_the_library(random_model: Callable[[str], Path], kind: str) -> None:
    _agrees(random_model(kind), 0)
    _agrees(random_model(kind), 4)


@pytest.mark.parametrize("kind", sorted(ZERO_MODELS))
def test_rare_kinds_agree_with_the_library(tmp_path: Path, kind: str) -> None:
    _agrees(ZERO_MODELS[kind]().write(tmp_path / "model.gguf"), 0)


def test_exact_sizes_of_the_tiny_models(random_model: Callable[[str], Path]) -> None:
    sizes = {
        kind: check_model(random_model(kind), need_vocabulary=False) for kind in ("plain", "iswa", "hybrid", "mamba")
    }
    assert kv_cache_bytes(sizes["plain"], 4096) == 4096 * 2 * 2 * 32 * 2
    assert kv_cache_bytes(sizes["iswa"], 4096) == (4096 + 5 * 512) * 2 * 32 * 2
    assert kv_cache_bytes(sizes["hybrid"], 4096) == 4096 * 2 * 2 * 32 * 2 + 2 * 64 * 2 * 4
    assert kv_cache_bytes(sizes["mamba"], 4096) == 2 * (3 * 128 + 16 * 128) * 4


def test_smollm2(smollm2_path: Path) -> None:
    facts = check_model(smollm2_path)
    assert kv_bytes_per_token(facts) == 23040
    assert kv_cache_bytes(facts, 4096) == 94_371_840
    assert reported_mib(smollm2_path, n_ctx=4096) == 90.0
    both = {"type_k": TYPE_IDS["Q4_0"], "type_v": TYPE_IDS["IQ4_NL"]}
    assert reported_mib(smollm2_path, n_ctx=4096, **both) == pytest.approx(
        kv_cache_bytes(facts, 4096, "q4_0", "iq4_nl") / MIB, abs=TOLERANCE_MIB
    )


def test_gemma3(gemma3_path: Path) -> None:
    facts = check_model(gemma3_path)
    assert kv_bytes_per_token(facts) == 18432
    assert kv_cache_bytes(facts, 4096) == 3 * 1024 * 4096 + 15 * 1024 * 768
    assert kv_cache_bytes(facts, 4096, swa_full=True) == 18 * 1024 * 4096
    assert reported_mib(gemma3_path, n_ctx=4096, n_ubatch=256, swa_full=False) == 23.25
    assert reported_mib(gemma3_path, n_ctx=4096, n_ubatch=256, swa_full=True) == 72.0


# All of it: what a plan counts with, against the buffers that llama.cpp reports.
LLAMA_70B = replace(LLAMA_8B, n_layer=80, n_embd=8192, n_head=64, n_head_kv=(8,) * 80, window_layers=(False,) * 80)


def test_llama_70b_takes_one_and_a_quarter_gib_for_4096_tokens() -> None:
    assert kv_cache_bytes(LLAMA_70B, 4096) == 5 << 28  # 1.25 GiB


def test_compute_buffers_of_a_dense_model() -> None:
    facts = replace(LLAMA_8B, n_ff=14336)
    widest, masks = 4 * 4096 + 3 * 14336, 4096 * 2
    logits = 4 * 128256
    assert compute_bytes(facts, 4096) == 256 * (4 * widest + masks) + logits
    assert compute_bytes(facts, 4096, n_ubatch=512) == 512 * (4 * widest + masks) + logits
    scores = 2 * 4096 + 2 * 4096 + 2 * 8 * 128 + 4096 * 32
    assert compute_bytes(facts, 4096, flash_attn=False) == 256 * 4 * (scores + 4096) + logits
    assert compute_bytes(replace(LLAMA_8B, n_ff=0), 4096) == 256 * (4 * 16 * 4096 + masks) + logits
    wide = replace(facts, n_vocab=1 << 20)
    assert compute_bytes(wide, 4096, n_outputs=64) == 64 * (2 * 4 * (1 << 20) + 2 * 4 * 4096)


def test_a_window_has_a_mask_of_its_own() -> None:
    plain = replace(LLAMA_8B, n_ff=14336)
    window = replace(plain, sliding_window=512, window_layers=(True, False) * 16)
    assert compute_bytes(window, 4096) - compute_bytes(plain, 4096) == 256 * 2 * 768
    assert compute_bytes(window, 4096, swa_full=True) - compute_bytes(plain, 4096) == 256 * 2 * 4096


def test_the_need_is_the_sum_and_parallel_sequences_share_the_context() -> None:
    facts = replace(LLAMA_8B, recurrent_state_bytes=1000)
    one, four = memory_need(facts, 4096), memory_need(facts, 4096, n_parallel=4)
    parts = weights_bytes(facts), kv_cache_bytes(facts, 4096), compute_bytes(facts, 4096), 440 * 128256
    assert one == MemoryNeed(*parts)
    assert one.total_bytes == sum(parts)
    assert memory_need(replace(facts, tokenizer_model="llama"), 4096).vocabulary_bytes == 220 * 128256
    assert memory_need(replace(facts, tokenizer_model="no_vocab"), 4096).vocabulary_bytes == 0
    assert four.kv_bytes - one.kv_bytes == 3000
    assert four.compute_bytes - one.compute_bytes == 3 * 4 * 128256  # logits of each


def _whole_agrees(path: Path, **options: Any) -> None:
    facts = check_model(path, need_vocabulary=False)
    for flash in (True, False):
        asked = {"n_ctx": 4096, "n_ubatch": 256, "swa_full": False, "kv_unified": True, "n_seq_max": 2, **options}
        found = reported_buffers_mib(path, **asked, n_outputs_max=2, flash_attn_type=int(flash))
        swa_full, n_ubatch = asked["swa_full"], asked["n_ubatch"]
        need = memory_need(facts, asked["n_ctx"], n_parallel=2, n_ubatch=n_ubatch, swa_full=swa_full, flash_attn=flash)
        assert min(found["model"], found["compute"]) > 0
        buffers = need.total_bytes - need.vocabulary_bytes
        assert buffers / MIB == pytest.approx(sum(found.values()), rel=0.1)
        assert need.weights_bytes / MIB == pytest.approx(found["model"], abs=0.011)
        assert need.compute_bytes / MIB == pytest.approx(found["compute"] + found["output"], rel=0.15, abs=0.2)


@pytest.mark.parametrize("kind", ["plain", "iswa", "hybrid", "mamba"])
def test_the_whole_of_a_tiny_model(random_model: Callable[[str], Path], kind: str) -> None:
    _whole_agrees(random_model(kind))


@pytest.mark.parametrize("kind", sorted(ZERO_MODELS))
def test_the_whole_of_a_rare_kind(tmp_path: Path, kind: str) -> None:
    _whole_agrees(ZERO_MODELS[kind]().write(tmp_path / "model.gguf"))


@pytest.mark.parametrize("options", [{}, {"n_ctx": 8192, "n_ubatch": 512}, {"n_ctx": 1024}])
def test_the_whole_of_smollm2(smollm2_path: Path, options: dict[str, Any]) -> None:
    _whole_agrees(smollm2_path, **options)


@pytest.mark.parametrize("options", [{}, {"n_ctx": 8192, "n_ubatch": 512}, {"swa_full": True}])
def test_the_whole_of_gemma3(gemma3_path: Path, options: dict[str, Any]) -> None:
    _whole_agrees(gemma3_path, **options)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of resident memory is Linux's")
@pytest.mark.parametrize("n_ctx", [1024, 4096])
def test_resident_memory_of_real_runs(smollm2_path: Path, gemma3_path: Path, n_ctx: int) -> None:
    for path in (smollm2_path, gemma3_path):
        need = memory_need(check_model(path), n_ctx, swa_full=True)
        assert need.total_bytes / MIB == pytest.approx(resident_growth_mib(path, n_ctx=n_ctx), rel=0.1)
