"""The run plan: every default, every refusal and every note, word for word.

The model is an 8B Llama in Q4_K_M: 128 KiB of KV cache per token (32 layers x 8 heads x 128 x 2 caches x 2 bytes).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import ResourceError, UsageError
from llmcli.engine.plan import Device, Request, RunPlan, make_plan
from llmcli.hardware.cores import Cores
from llmcli.hardware.devices import Gpu
from llmcli.hardware.memory import Memory
from llmcli.models.estimate import kv_cache_bytes
from llmcli.models.facts import ModelFacts
from tests.fixtures.facts import LLAMA_8B

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

LLAMA = replace(
    LLAMA_8B,
    name="Llama 8B",
    n_ctx_train=131072,
    n_vocab=131072,
    n_params=8 * GIB,
    tensor_bytes=4608 * MIB,
    file_bytes=4616 * MIB,
)
EIGHT = Cores(logical=16, physical=8, performance=None, affinity=16, quota=None, quota_source=None, usable=8)
H200 = Gpu("cuda", "NVIDIA H200", None, "nvidia")
METAL = Gpu("metal", "Apple M3 GPU", 16 * GIB, "AGX")


def memory(available: int, **fields: Any) -> Memory:
    return replace(Memory(64 * GIB, available, None, None, 0, 0, None), **fields)


def plan(
    facts: ModelFacts = LLAMA,
    *,
    available: int = 32 * GIB,
    cores: Cores = EIGHT,
    devices: tuple[Device, ...] = (),
    gpus: tuple[Gpu, ...] = (),
    memory_fields: dict[str, Any] | None = None,
    **request: Any,
) -> RunPlan:
    return make_plan(Request(**request), facts, cores, memory(available, **(memory_fields or {})), devices, gpus)


def refused(kind: type[ResourceError | UsageError], **arguments: Any) -> tuple[str, str | None]:
    with pytest.raises(kind) as caught:
        plan(**arguments)
    return caught.value.message, caught.value.hint


# --- defaults -------------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    assert plan() == RunPlan(
        n_ctx=4096,
        n_threads=8,
        n_threads_batch=8,
        n_batch=2048,
        n_ubatch=256,
        n_gpu_layers=0,
        flash_attn="auto",
        type_k="f16",
        type_v="f16",
        use_mmap=True,
        use_mlock=False,
        swa_full=False,
        weights_bytes=4608 * MIB,
        kv_bytes=512 * MIB,
        notes=(),
    )


def test_what_was_asked_is_what_is_planned() -> None:
    asked = Request(
        n_ctx=1000,
        n_threads=3,
        n_threads_batch=5,
        n_batch=512,
        n_ubatch=128,
        flash_attn="on",
        type_k="q8_0",
        type_v="q4_0",
        use_mmap=False,
        swa_full=True,
    )
    found = make_plan(asked, LLAMA, EIGHT, memory(32 * GIB), (), ())
    for name in ("n_ctx", "n_threads", "n_threads_batch", "n_batch", "n_ubatch", "flash_attn", "type_k", "type_v"):
        assert getattr(found, name) == getattr(asked, name)
    assert (found.use_mmap, found.use_mlock, found.swa_full, found.notes) == (False, False, True, ())
    assert found.kv_bytes == 1024 * 32 * 8 * 128 * (34 + 18) // 32  # llama.cpp rounds 1000 up to 1024


@pytest.mark.parametrize(
    ("trained", "positions", "asked", "n_ctx"),
    [
        (131072, None, None, 4096),
        (2048, None, None, 2048),
        (0, None, None, 4096),
        (2048, 1024, None, 1024),
        (131072, None, 0, 131072),
        (4096, 1024, 0, 1024),
        (131072, None, 1, 1),
    ],
)
def test_context(trained: int, positions: int | None, asked: int | None, n_ctx: int) -> None:
    facts = replace(LLAMA, n_ctx_train=trained, n_positions=positions)
    found = plan(facts, n_ctx=asked)
    assert (found.n_ctx, found.notes) == (n_ctx, ())


def test_context_past_the_trained_one_is_a_note() -> None:
    facts = replace(LLAMA, n_ctx_train=2048)
    found = plan(facts, n_ctx=8192)
    assert found.n_ctx == 8192
    assert found.notes == (
        (
            "-c 8192 is more than the 2,048 tokens this model was trained on: "
            "beyond them answers get worse, unless positions are scaled (--rope-scaling)"
        ),
    )
    assert plan(facts, n_ctx=8192, rope_scaled=True).notes == ()
    assert plan(facts, n_ctx=2048).notes == ()


def test_context_past_learned_positions_is_refused() -> None:
    facts = replace(LLAMA, n_ctx_train=1024, n_positions=1024)
    assert refused(UsageError, facts=facts, n_ctx=1025, rope_scaled=True) == (
        "-c 1025: this model has positions for 1,024 tokens only",
        "-c 1024",
    )


def test_maximum_of_a_model_that_states_none() -> None:
    assert refused(UsageError, facts=replace(LLAMA, n_ctx_train=0), n_ctx=0) == (
        "-c 0 asks for the model's own maximum, which this model does not state",
        "-c 4096",
    )


# --- threads and batches --------------------------------------------------------------------------------------------


def test_a_cache_that_takes_most_of_the_memory_is_a_note() -> None:
    found = make_plan(Request(n_ctx=65536), LLAMA, EIGHT, memory(14 * GIB), (), ())
    assert found.notes == (
        "a context of 65,536 tokens takes 8.0 GiB for its KV cache, with 14.0 GiB free; -c sets another one",
    )
    assert make_plan(Request(n_ctx=65536), LLAMA, EIGHT, memory(17 * GIB), (), ()).notes == ()


def test_prompt_threads_follow_the_generation_threads() -> None:
    found = plan(n_threads=2)
    assert (found.n_threads, found.n_threads_batch) == (2, 2)
    found = plan(n_threads_batch=4)
    assert (found.n_threads, found.n_threads_batch) == (8, 4)


def test_more_threads_than_cores_is_a_note() -> None:
    found = plan(n_threads=16, n_threads_batch=9)
    assert (found.n_threads, found.n_threads_batch) == (16, 9)
    assert found.notes == (
        "-t 16 is more than the 8 cores this process can use, which is slower: the threads will wait for each other",
        "-tb 9 is more than the 8 cores this process can use, which is slower: the threads will wait for each other",
    )


@pytest.mark.parametrize(("quota", "usable", "text"), [(2.5, 2, "2 cores"), (0.5, 1, "1 core")])
def test_more_threads_than_the_quota_names_the_quota(quota: float, usable: int, text: str) -> None:
    cores = replace(EIGHT, quota=quota, quota_source="/sys/fs/cgroup/cpu.max", usable=usable)
    assert plan(cores=cores, n_threads=4).notes == (
        f"-t 4 is more than the {text} this process can use, which is slower: the CPU quota is {quota}",
    )


def test_a_quota_that_does_not_bind_is_not_named() -> None:
    cores = replace(EIGHT, quota=12.0, quota_source="/sys/fs/cgroup/cpu.max")
    assert "wait for each other" in plan(cores=cores, n_threads=9).notes[0]


def test_batches() -> None:
    assert plan(n_batch=64).n_ubatch == 64
    assert plan(n_batch=64).notes == ()
    found = plan(n_batch=64, n_ubatch=128)
    assert (found.n_batch, found.n_ubatch) == (64, 64)
    assert found.notes == ("-ub 128 is more than the batch of 64 (-b): 64 is used",)


# --- values out of range --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("n_ctx", -1, "-c -1 is out of range: expected 0 to 2147483392"),
        ("n_ctx", 1 << 31, "-c 2147483648 is out of range: expected 0 to 2147483392"),
        ("n_threads", 0, "-t 0 is out of range: expected 1 to 512"),
        ("n_threads", -3, "-t -3 is out of range: expected 1 to 512"),
        ("n_threads", 513, "-t 513 is out of range: expected 1 to 512"),
        ("n_threads_batch", 0, "-tb 0 is out of range: expected 1 to 512"),
        ("n_batch", 0, "-b 0 is out of range: expected 1 to 2147483392"),
        ("n_ubatch", 0, "-ub 0 is out of range: expected 1 to 2147483392"),
        ("n_gpu_layers", -2, "-ngl -2 is out of range: expected -1 to 2147483647"),
        ("flash_attn", "yes", "-fa yes: expected auto, on or off"),
        ("flash_attn", "\x1b[2J", "-fa \\x1b[2J: expected auto, on or off"),
        ("type_k", "q3_k", "-ctk q3_k: expected one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl"),
        ("type_v", "F16", "-ctv F16: expected one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl"),
    ],
)
def test_out_of_range(field: str, value: int | str, message: str) -> None:
    assert refused(UsageError, **{field: value}) == (message, None)


def test_quantized_values_need_flash_attention() -> None:
    assert refused(UsageError, type_v="q8_0", flash_attn="off") == (
        "-ctv q8_0 needs flash attention, which -fa off forbids",
        "-fa on, or -ctv f16",
    )
    assert plan(type_k="q8_0", flash_attn="off").type_k == "q8_0"
    assert plan(type_v="q8_0", flash_attn="auto").type_v == "q8_0"


@pytest.mark.parametrize(
    ("facts", "flag", "field"),
    [
        (replace(LLAMA, n_embd_head_k=80), "-ctk", "type_k"),
        (replace(LLAMA, n_embd_head_v_swa=80), "-ctv", "type_v"),
    ],
)
def test_quantized_cache_needs_whole_blocks(facts: ModelFacts, flag: str, field: str) -> None:
    assert refused(UsageError, facts=facts, **{field: "q4_0"}) == (
        f"{flag} q4_0 needs heads of a multiple of 32 elements; this model has heads of 80",
        f"{flag} f16",
    )


def test_latent_attention_needs_one_type() -> None:
    assert refused(UsageError, facts=replace(LLAMA, mla=True), type_k="q8_0") == (
        "-ctk q8_0 and -ctv f16: this model caches both as one and needs one type",
        "-ctk q8_0 -ctv q8_0",
    )


# --- what does not fit ----------------------------------------------------------------------------------------------


def test_context_that_does_not_fit() -> None:
    assert refused(ResourceError, n_ctx=131072, available=3 * GIB) == (
        (
            "a context of 131,072 tokens does not fit into memory: its KV cache takes 16.0 GiB, the weights 4.5 GiB, "
            "with 3.0 GiB free"
        ),
        "-c 24576, or -c 46080 -ctk q8_0 -ctv q8_0",
    )


def test_context_that_a_smaller_type_makes_fit() -> None:
    assert refused(ResourceError, n_ctx=16384, available=1536 * MIB, memory_fields={"limit_bytes": 2 * GIB}) == (
        (
            "a context of 16,384 tokens does not fit into memory: its KV cache takes 2.0 GiB, the weights 4.5 GiB, "
            "with 1.5 GiB free under a limit of 2.0 GiB"
        ),
        "-c 12288, or -ctk q8_0 -ctv q8_0 (a KV cache of 1.1 GiB)",
    )


def test_exit_code_is_6() -> None:
    assert ResourceError.exit_code == 6


@pytest.mark.parametrize(
    ("request_", "hint"),
    [
        ({"flash_attn": "off", "available": 1568 * MIB}, "-c 12544, or -ctk q8_0 (a KV cache of 1.5 GiB)"),
        ({"type_v": "q8_0", "available": 1567 * MIB}, "-c 16128, or -ctk q8_0 (a KV cache of 1.1 GiB)"),
        ({"type_k": "q8_0", "available": 1567 * MIB}, "-c 16128"),
    ],
)
def test_hints_name_only_what_helps(request_: dict[str, Any], hint: str) -> None:
    assert refused(ResourceError, n_ctx=16384, **request_)[1] == hint


def test_odd_heads_get_no_advice_to_quantize() -> None:
    facts = replace(LLAMA, n_embd_head_k=80, n_embd_head_v=80, n_embd_head_k_swa=80, n_embd_head_v_swa=80)
    assert refused(ResourceError, facts=facts, n_ctx=16384, available=GIB)[1] == "-c 13056"


def test_nothing_fits() -> None:
    assert refused(ResourceError, available=MIB) == (
        (
            "a context of 4,096 tokens does not fit into memory: its KV cache takes 512.0 MiB, the weights 4.5 GiB, "
            "with 1.0 MiB free"
        ),
        "free some memory, or take a smaller model",
    )


def test_it_just_fits_and_just_does_not() -> None:
    assert plan(available=512 * MIB).kv_bytes == 512 * MIB
    refused(ResourceError, available=512 * MIB - 1)


def test_mapped_weights_larger_than_memory_are_a_note() -> None:
    assert plan(available=4 * GIB).notes == (
        (
            "weights of 4.5 GiB and a KV cache of 512.0 MiB are more than the 4.0 GiB free: "
            "parts of the model are read from disk again for every token, which is slow"
        ),
    )
    assert plan(available=5 * GIB).notes == ()


@pytest.mark.parametrize(("request_", "flag"), [({"use_mmap": False}, "--no-mmap"), ({"use_mlock": True}, "--mlock")])
def test_weights_that_have_to_stay(request_: dict[str, Any], flag: str) -> None:
    assert refused(ResourceError, available=4 * GIB, **request_) == (
        f"{flag} keeps the weights in memory, where they do not fit: 4.5 GiB, with 4.0 GiB free",
        f"leave out {flag}, or take a smaller quantization",
    )
    # The weights alone fit, the default context does not beside them.
    assert refused(ResourceError, available=4864 * MIB, **request_) == (
        (
            "a context of 4,096 tokens does not fit into memory: its KV cache takes 512.0 MiB, the weights 4.5 GiB, "
            "with 4.8 GiB free"
        ),
        f"-c 2048, or -c 3840 -ctk q8_0 -ctv q8_0, or leave out {flag}",
    )
    assert plan(available=5 * GIB, **request_).notes == ()


def test_memory_that_is_not_known_refuses_nothing() -> None:
    assert plan(available=0, memory_fields={"total_bytes": 0}, use_mlock=True).notes == ()


def test_lock_limit() -> None:
    assert plan(use_mlock=True, memory_fields={"lock_bytes": 64 * KIB}).notes == (
        (
            "--mlock: at most 64.0 KiB may be locked (ulimit -l) and the weights take 4.5 GiB: "
            "the rest may be swapped out, unless this user is exempt from the limit"
        ),
    )
    assert plan(use_mlock=True, memory_fields={"lock_bytes": 8 * GIB}).notes == ()
    assert plan(use_mlock=True, memory_fields={"lock_bytes": None}).notes == ()
    assert plan(use_mlock=False, memory_fields={"lock_bytes": 64 * KIB}).notes == ()


@given(
    n_ctx=st.integers(1, 200_000),
    available=st.integers(1, 40 * GIB),
    types=st.sampled_from([("f16", "f16"), ("q8_0", "q8_0"), ("f32", "f16")]),
)
def test_the_context_in_the_hint_fits_and_the_next_does_not(n_ctx: int, available: int, types: tuple[str, str]) -> None:
    facts = replace(LLAMA, n_ctx_train=1 << 20)
    arguments: dict[str, Any] = {"type_k": types[0], "type_v": types[1]}
    if kv_cache_bytes(facts, n_ctx, *types) <= available:
        assert plan(facts, n_ctx=n_ctx, available=available, **arguments).n_ctx == n_ctx
        return
    _, hint = refused(ResourceError, facts=facts, n_ctx=n_ctx, available=available, **arguments)
    found = re.match(r"-c ([0-9]+)(?:,|\Z)", hint or "")
    fitting = int(found[1]) if found else 0
    assert fitting % 256 == 0
    assert fitting < n_ctx
    assert not fitting or kv_cache_bytes(facts, fitting, *types) <= available
    assert fitting + 256 >= n_ctx or kv_cache_bytes(facts, fitting + 256, *types) > available


# --- GPUs -----------------------------------------------------------------------------------------------------------

# output: 131072 x 4096 weights at 4.5 bits = 288 MiB; a layer: (4608 - 288) / 32 = 135 MiB, with 16 MiB of KV at 4096
OUTPUT, LAYER, LAYER_KV = 288 * MIB, 135 * MIB, 16 * MIB


def device(free: int, total: int = 96 * GIB) -> Device:
    return Device("CUDA0", "NVIDIA H200", free, total)


def test_everything_on_the_gpu_where_it_fits() -> None:
    found = plan(devices=(device(80 * GIB),), gpus=(H200,))
    assert (found.n_gpu_layers, found.notes) == (33, ())


def test_as_many_layers_as_fit() -> None:
    ten = int((OUTPUT + 10 * (LAYER + LAYER_KV)) * 1.1) + 1
    found = plan(devices=(device(ten),))
    assert found.n_gpu_layers == 11
    assert found.notes == ("11 of 33 layers fit the 1.9 GiB free on NVIDIA H200: the CPU computes the rest",)
    assert plan(devices=(device(ten - MIB),)).n_gpu_layers == 10


def test_two_gpus_count_together() -> None:
    half = int((OUTPUT + 32 * (LAYER + LAYER_KV)) * 1.1 / 2) + 1
    assert plan(devices=(device(half), device(half))).n_gpu_layers == 33
    assert plan(devices=(device(half),)).n_gpu_layers < 33


def test_a_gpu_with_no_room() -> None:
    found = plan(devices=(device(MIB),))
    assert found.n_gpu_layers == 0
    assert found.notes == ("0 of 33 layers fit the 1.0 MiB free on NVIDIA H200: the CPU computes the rest",)


def test_a_gpu_that_does_not_tell_its_memory_takes_the_hosts() -> None:
    assert plan(devices=(device(0, 0),)).n_gpu_layers == 33
    assert plan(devices=(device(0, 96 * GIB),)).n_gpu_layers == 0


@pytest.mark.parametrize(("asked", "planned"), [(0, 0), (7, 7), (33, 33), (99, 33), (-1, 33)])
def test_layers_as_asked(asked: int, planned: int) -> None:
    found = plan(devices=(device(80 * GIB),), n_gpu_layers=asked)
    assert (found.n_gpu_layers, found.notes) == (planned, ())


def test_more_layers_asked_than_fit() -> None:
    found = plan(devices=(device(2 * GIB),), n_gpu_layers=99)
    assert found.n_gpu_layers == 33
    assert found.notes == ("-ngl 99 needs about 5.5 GiB on NVIDIA H200, where 2.0 GiB are free: -ngl 11 would fit",)


def test_offloaded_layers_leave_the_hosts_memory() -> None:
    # 16 GiB of KV cache and the weights are on the GPU; what stays is the token embedding.
    assert plan(devices=(device(80 * GIB),), n_ctx=131072, available=GIB, use_mlock=True).notes == ()
    refused(ResourceError, devices=(device(80 * GIB),), n_gpu_layers=0, n_ctx=131072, available=GIB)


def test_hint_counts_the_hosts_share_of_the_cache() -> None:
    # Half of the layers are on the GPU, so half of a cache has to fit the host.
    message, hint = refused(ResourceError, devices=(device(80 * GIB),), n_gpu_layers=17, n_ctx=32768, available=GIB)
    assert message == (
        "a context of 32,768 tokens does not fit into memory: its KV cache takes 2.0 GiB, the weights 2.4 GiB, "
        "with 1.0 GiB free"
    )
    assert hint == "-c 16384, or -c 30720 -ctk q8_0 -ctv q8_0"


def test_apples_gpu_shares_the_hosts_memory() -> None:
    metal = (Device("MTL0", "Apple M3", 12 * GIB, 12 * GIB),)
    refused(ResourceError, devices=metal, gpus=(METAL,), n_ctx=65536, available=6 * GIB)
    assert plan(devices=metal, gpus=(METAL,), available=6 * GIB).n_gpu_layers == 33


@pytest.mark.parametrize(
    ("asked", "gpus", "notes"),
    [
        (None, (), ()),
        (0, (), ()),
        (0, (H200,), ()),
        (
            99,
            (),
            ("-ngl 99 has no effect: this llama.cpp build finds no GPU it can use; the CPU computes everything",),
        ),
        (
            -1,
            (H200,),
            (
                (
                    "-ngl -1 has no effect: this llama.cpp build finds no GPU it can use, so NVIDIA H200 is not used "
                    "(see: llmcli doctor)"
                ),
            ),
        ),
        (
            None,
            (H200, H200),
            (
                (
                    "NVIDIA H200, NVIDIA H200 is not used: this llama.cpp build finds no GPU it can use "
                    "(see: llmcli doctor; -ngl 0 hides this)"
                ),
            ),
        ),
        (None, (Gpu("vulkan", "Intel GPU (0x46a6)", None, "i915"),), ()),
        (None, (Gpu("cuda", "NVIDIA GPU (0x2684)", None, None),), ()),
    ],
)
def test_a_build_without_a_gpu(asked: int | None, gpus: tuple[Gpu, ...], notes: tuple[str, ...]) -> None:
    found = plan(gpus=gpus, n_gpu_layers=asked)
    assert (found.n_gpu_layers, found.notes) == (0, notes)


def test_a_recurrent_state_counts_for_every_sequence_of_the_context() -> None:
    facts = replace(LLAMA, n_head_kv=(0,) * 32, recurrent_state_bytes=1 << 20)
    assert plan(facts).kv_bytes == 2 << 20
    window = replace(facts, sliding_window=512, window_layers=(True,) * 32)
    assert plan(window).kv_bytes == 1 << 20
    assert plan(window, swa_full=True).kv_bytes == 3 << 20
