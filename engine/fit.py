"""What fits where: the bytes of a model's parts, the layers a GPU takes, and what the host's memory must hold.

The arithmetic behind `llmcli.engine.plan`; notes for the user are appended to the list that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llmcli.base.errors import ResourceError
from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.models.estimate import DEFAULT_UBATCH_TOKENS, MemoryNeed, kv_cache_bytes, memory_need, weights_bytes

if TYPE_CHECKING:
    from llmcli.engine.plan import Device, Request
    from llmcli.hardware.devices import Gpu
    from llmcli.hardware.memory import Memory
    from llmcli.models.facts import ModelFacts

# llama.cpp allocates the context in steps of this many tokens (llama-context.cpp, GGML_PAD).
CTX_STEP_TOKENS = 256
UNQUANTIZED = ("f32", "f16", "bf16")
# Elements per block of every quantized KV type (ggml-common.h).
KV_BLOCK = 32
# A GPU also holds compute buffers, the driver's own needs, and what other programs show on the screen.
_GPU_RESERVE = 1.1
# From this share of the free memory on a KV cache is worth a note: it is all written to at the start.
_LARGE_CACHE = 0.5
# Kinds worth a note when the build cannot use them. Vulkan alone is not: it would nag about every integrated GPU.
_WORTHWHILE_GPUS = ("cuda", "rocm", "metal")


def sequences_for(*, has_window: bool, swa_full: bool) -> int:
    """How many sequence ids a context has: each costs a recurrent state, or rows of a window that is not kept in full.

    One answers, blocks pass through the second, and the third keeps places in front of a restored window.
    """
    if not has_window:
        return 2
    return 3 if swa_full else 1


def run_need(
    facts: ModelFacts,
    n_ctx: int,
    type_k: str = "f16",
    type_v: str = "f16",
    *,
    n_parallel: int = 1,
    n_ubatch: int = DEFAULT_UBATCH_TOKENS,
    flash_attn: bool = True,
) -> MemoryNeed:
    """What a run takes, as llmcli makes its context: a window is kept in full. Every command tells this one estimate.

    n_parallel   answers at once
    """
    sequences = n_parallel - 1 + sequences_for(has_window=facts.sliding_window is not None, swa_full=True)
    return memory_need(
        facts, n_ctx, type_k, type_v, n_parallel=sequences, n_ubatch=n_ubatch, swa_full=True, flash_attn=flash_attn
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a model's parts for one request.

    layer       one repeating layer, on average
    output      the output layer
    kv_of       the KV cache for (tokens, type_k, type_v)
    smaller     KV types (K, V) that would make the cache smaller and that this model can have, None where none do
    """

    n_ctx: int
    weights: int
    kv: int
    layer: int
    output: int
    n_layer: int
    kv_of: Callable[[int, str, str], int]
    smaller: tuple[str, str] | None

    def on_device(self, n_gpu_layers: int) -> int:
        """What a GPU holds with so many layers: the output first, then layers from the last, each with its KV."""
        repeating = self._repeating(n_gpu_layers)
        return (self.output if n_gpu_layers > 0 else 0) + repeating * self.layer + self.kv * repeating // self.n_layer

    def on_host(self, n_gpu_layers: int) -> tuple[int, int]:
        """(weights, KV) that stay with the CPU; the token embedding always does."""
        repeating = self._repeating(n_gpu_layers)
        return self.weights - repeating * self.layer, self.kv - self.kv * repeating // self.n_layer

    def _repeating(self, n_gpu_layers: int) -> int:
        return min(max(n_gpu_layers - 1, 0), self.n_layer)


def measure(request: Request, facts: ModelFacts, n_ctx: int, n_ubatch: int) -> Sizes:
    """The sizes for a context of `n_ctx` tokens, computed `n_ubatch` at a time, with the request's KV types."""
    sequences = sequences_for(has_window=facts.sliding_window is not None, swa_full=request.swa_full)

    def kv_of(tokens: int, type_k: str, type_v: str) -> int:
        return kv_cache_bytes(
            facts, tokens, type_k, type_v, swa_full=request.swa_full, n_seq_max=sequences, n_ubatch=n_ubatch
        )

    weights, n_layer = weights_bytes(facts), max(1, facts.n_layer)
    # The embedding is as large as the output; a model that ties the two puts a copy on the GPU. So one of them counts
    # as output and the rest as layers: never less than what a layer takes.
    output = min(weights, int(facts.n_vocab * facts.n_embd * facts.bpw / 8))
    return Sizes(
        n_ctx=n_ctx,
        weights=weights,
        kv=kv_of(n_ctx, request.type_k, request.type_v),
        layer=(weights - output) // n_layer,
        output=output,
        n_layer=n_layer,
        kv_of=kv_of,
        smaller=_smaller_types(request, facts),
    )


def _smaller_types(request: Request, facts: ModelFacts) -> tuple[str, str] | None:
    """q8_0, which costs no quality that is noticed; V can have it with flash attention only."""
    heads = (facts.n_embd_head_k, facts.n_embd_head_k_swa, facts.n_embd_head_v, facts.n_embd_head_v_swa)
    if request.type_k not in UNQUANTIZED or any(head % KV_BLOCK for head in heads):
        return None
    type_v = "q8_0" if request.type_v in UNQUANTIZED and request.flash_attn != "off" else request.type_v
    return None if facts.mla and type_v != "q8_0" else ("q8_0", type_v)


def offload(
    request: Request,
    sizes: Sizes,
    memory: Memory,
    devices: tuple[Device, ...],
    gpus: tuple[Gpu, ...],
    notes: list[str],
) -> int:
    """Layers for the GPU: as many as asked, else as many as fit."""
    if not devices:
        _note_unused_gpu(request.n_gpu_layers, gpus, notes)
        return 0
    every = sizes.n_layer + 1
    free = sum(device.free_bytes if device.total_bytes else memory.available_bytes for device in devices)
    fitting = _largest(lambda n: sizes.on_device(n) * _GPU_RESERVE <= free, every)
    if request.n_gpu_layers is None:
        if fitting < every:
            notes.append(
                f"{fitting} of {every} layers fit the {format_bytes(free)} free on {_names(devices)}: "
                "the CPU computes the rest"
            )
        return fitting
    wanted = every if request.n_gpu_layers < 0 else min(request.n_gpu_layers, every)
    if wanted > fitting:
        notes.append(
            f"-ngl {request.n_gpu_layers} needs about {format_bytes(int(sizes.on_device(wanted) * _GPU_RESERVE))} on "
            f"{_names(devices)}, where {format_bytes(free)} are free: -ngl {fitting} would fit"
        )
    return wanted


def _note_unused_gpu(asked: int | None, gpus: tuple[Gpu, ...], notes: list[str]) -> None:
    """One line at most: a GPU asked for in vain, or one that is there and idle; none after -ngl 0."""
    idle = [gpu.name for gpu in gpus if gpu.kind in _WORTHWHILE_GPUS and gpu.driver]
    there = f"{printable(', '.join(idle))} is not used" if idle else ""
    if asked:
        notes.append(
            f"-ngl {asked} has no effect: this llama.cpp build finds no GPU it can use"
            + (f", so {there} (see: llmcli doctor)" if there else "; the CPU computes everything")
        )
    elif asked is None and there:
        notes.append(f"{there}: this llama.cpp build finds no GPU it can use (see: llmcli doctor; -ngl 0 hides this)")


def _names(devices: tuple[Device, ...]) -> str:
    return printable(", ".join(device.description or device.name for device in devices))


def check_memory(
    request: Request, sizes: Sizes, n_gpu_layers: int, memory: Memory, gpus: tuple[Gpu, ...], notes: list[str]
) -> None:
    """Refuse what must stay in memory and cannot; note what will be slow.

    Mapped weights may be dropped and read again, so they never refuse a run; the KV cache and weights that are locked
    or not mapped have to stay.
    """
    # Apple's GPU works in the same memory: whatever is offloaded still has to fit there.
    shared = any(gpu.kind == "metal" for gpu in gpus)
    weights, kv = sizes.on_host(0 if shared else n_gpu_layers)
    resident = weights if request.use_mlock or not request.use_mmap else 0
    available = memory.available_bytes if memory.total_bytes else None
    if available is not None and resident + kv > available:
        raise _refusal(request, sizes, weights, kv, resident, memory)
    if available is not None and weights + kv > available:
        notes.append(
            f"weights of {format_bytes(weights)} and a KV cache of {format_bytes(kv)} are more than the "
            f"{_free(memory)}: parts of the model are read from disk again for every token, which is slow"
        )
    elif available is not None and kv > available * _LARGE_CACHE:
        notes.append(
            f"a context of {format_count(sizes.n_ctx, 'token')} takes {format_bytes(kv)} for its KV cache, with "
            f"{_free(memory)}; -c sets another one"
        )
    if request.use_mlock and memory.lock_bytes is not None and memory.lock_bytes < weights:
        notes.append(
            f"--mlock: at most {format_bytes(memory.lock_bytes)} may be locked (ulimit -l) and the weights take "
            f"{format_bytes(weights)}: the rest may be swapped out, unless this user is exempt from the limit"
        )


def _refusal(request: Request, sizes: Sizes, weights: int, kv: int, resident: int, memory: Memory) -> ResourceError:
    flag = "--mlock" if request.use_mlock else "--no-mmap"
    if resident > memory.available_bytes:
        return ResourceError(
            f"{flag} keeps the weights in memory, where they do not fit: {format_bytes(weights)}, with {_free(memory)}",
            hint=f"leave out {flag}, or take a smaller quantization",
        )
    message = (
        f"a context of {format_count(sizes.n_ctx, 'token')} does not fit into memory: its KV cache takes "
        f"{format_bytes(kv)}, the weights {format_bytes(weights)}, with {_free(memory)}"
    )
    # Only a share of the KV cache may be on the host; what is left there is the same share of any other cache.
    ways = _smaller_caches(request, sizes, (memory.available_bytes - resident) * sizes.kv // kv)
    if resident:
        ways.append(f"leave out {flag}")
    return ResourceError(message, hint=", or ".join(ways) or "free some memory, or take a smaller model")


def _smaller_caches(request: Request, sizes: Sizes, room: int) -> list[str]:
    """The flags that make the whole KV cache fit `room` bytes: a smaller context, a smaller type, or both."""

    def context_that_fits(type_k: str, type_v: str) -> int:
        steps = (sizes.n_ctx - 1) // CTX_STEP_TOKENS
        return CTX_STEP_TOKENS * _largest(lambda n: sizes.kv_of(n * CTX_STEP_TOKENS, type_k, type_v) <= room, steps)

    n_ctx = context_that_fits(request.type_k, request.type_v)
    ways = [f"-c {n_ctx}"] if n_ctx else []
    if not sizes.smaller:
        return ways
    type_k, type_v = sizes.smaller
    flags = f"-ctk {type_k}" + (f" -ctv {type_v}" if type_v != request.type_v else "")
    whole = sizes.kv_of(sizes.n_ctx, type_k, type_v)
    if whole <= room:
        ways.append(f"{flags} (a KV cache of {format_bytes(whole)})")
    elif n_ctx := context_that_fits(type_k, type_v):
        ways.append(f"-c {n_ctx} {flags}")
    return ways


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` that fits, 0 where none does. What fits must get rarer with size."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _free(memory: Memory) -> str:
    limit = f" under a limit of {format_bytes(memory.limit_bytes)}" if memory.limit_bytes else ""
    return f"{format_bytes(memory.available_bytes)} free{limit}"
