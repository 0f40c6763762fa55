"""The run plan: what the user asked for, made to fit this machine and this model before anything is allocated.

A pure function of the request, the model's facts and the hardware's: no file, no library, no clock. It refuses what
cannot fit, and says in `notes` what the user would otherwise find out by a slow or bad answer.

The memory figures are weights and KV cache. llama.cpp's compute buffers come on top (on a GPU the reserve covers them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmcli.base.errors import UsageError
from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.base.units import format_count
from llmcli.engine.fit import CTX_STEP_TOKENS, KV_BLOCK, UNQUANTIZED, check_memory, measure, offload
from llmcli.models.estimate import DEFAULT_UBATCH_TOKENS, KV_TYPES

if TYPE_CHECKING:
    from llmcli.hardware.cores import Cores
    from llmcli.hardware.devices import Gpu
    from llmcli.hardware.memory import Memory
    from llmcli.models.facts import ModelFacts

DEFAULT_CTX_TOKENS = 4096
DEFAULT_BATCH_TOKENS = 2048
# Positions are 32-bit and signed (llama_pos); one step below that.
_MAX_CTX_TOKENS = (1 << 31) - CTX_STEP_TOKENS
_MAX_THREADS = 512  # GGML_MAX_N_THREADS
_MAX_LAYERS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for; None is "not asked". n_ctx 0 is the model's maximum, n_gpu_layers -1 is all.

    rope_scaled   the user scales the positions, so a context past the trained one is deliberate
    settled       fields that the user gave though they have their default: nothing tuned takes their place
    """

    n_ctx: int | None = None
    n_threads: int | None = None
    n_threads_batch: int | None = None
    n_batch: int | None = None
    n_ubatch: int | None = None
    n_gpu_layers: int | None = None
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    use_mmap: bool = True
    use_mlock: bool = False
    swa_full: bool = False
    rope_scaled: bool = False
    settled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that the engine's build can use; 0 of 0 bytes where it does not tell (llama.cpp then takes the host's)."""

    name: str
    description: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What will be done. n_gpu_layers counts as llama.cpp does: the output is one layer more than n_layer.

    n_ctx   tokens, exactly as asked; llama.cpp may allocate up to the next CTX_STEP_TOKENS, which kv_bytes counts in
    notes   lines for the user, one thing each
    """

    n_ctx: int
    n_threads: int
    n_threads_batch: int
    n_batch: int
    n_ubatch: int
    n_gpu_layers: int
    flash_attn: str
    type_k: str
    type_v: str
    use_mmap: bool
    use_mlock: bool
    swa_full: bool
    weights_bytes: int
    kv_bytes: int
    notes: tuple[str, ...] = ()


def make_plan(
    request: Request,
    facts: ModelFacts,
    cores: Cores,
    memory: Memory,
    devices: tuple[Device, ...],
    gpus: tuple[Gpu, ...],
) -> RunPlan:
    """Settle every figure. Raises UsageError for values out of range, ResourceError for what cannot fit."""
    _check_request(request, facts)
    notes: list[str] = []
    n_ctx = _context(request, facts, notes)
    n_threads = _threads(request.n_threads, "-t", cores, notes) or cores.usable
    n_threads_batch = _threads(request.n_threads_batch, "-tb", cores, notes) or n_threads
    n_batch = request.n_batch or DEFAULT_BATCH_TOKENS
    if request.n_ubatch and request.n_ubatch > n_batch:
        notes.append(f"-ub {request.n_ubatch} is more than the batch of {n_batch} (-b): {n_batch} is used")
    n_ubatch = min(request.n_ubatch or DEFAULT_UBATCH_TOKENS, n_batch)
    sizes = measure(request, facts, n_ctx, n_ubatch)
    n_gpu_layers = offload(request, sizes, memory, devices, gpus, notes)
    check_memory(request, sizes, n_gpu_layers, memory, gpus, notes)
    return RunPlan(
        n_ctx=n_ctx,
        n_threads=n_threads,
        n_threads_batch=n_threads_batch,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_gpu_layers=n_gpu_layers,
        flash_attn=request.flash_attn,
        type_k=request.type_k,
        type_v=request.type_v,
        use_mmap=request.use_mmap,
        use_mlock=request.use_mlock,
        swa_full=request.swa_full,
        weights_bytes=sizes.weights,
        kv_bytes=sizes.kv,
        notes=tuple(notes),
    )


def _check_request(request: Request, facts: ModelFacts) -> None:
    _in_range("-c", request.n_ctx, 0, _MAX_CTX_TOKENS)
    _in_range("-t", request.n_threads, 1, _MAX_THREADS)
    _in_range("-tb", request.n_threads_batch, 1, _MAX_THREADS)
    _in_range("-b", request.n_batch, 1, _MAX_CTX_TOKENS)
    _in_range("-ub", request.n_ubatch, 1, _MAX_CTX_TOKENS)
    _in_range("-ngl", request.n_gpu_layers, -1, _MAX_LAYERS)
    if request.flash_attn not in ("auto", "on", "off"):
        raise UsageError(f"-fa {printable(request.flash_attn)}: expected auto, on or off")
    _check_kv_type("-ctk", request.type_k, (facts.n_embd_head_k, facts.n_embd_head_k_swa))
    _check_kv_type("-ctv", request.type_v, (facts.n_embd_head_v, facts.n_embd_head_v_swa))
    if facts.mla and request.type_k != request.type_v:
        raise UsageError(
            f"-ctk {request.type_k} and -ctv {request.type_v}: this model caches both as one and needs one type",
            hint=f"-ctk {request.type_k} -ctv {request.type_k}",
        )
    if request.type_v not in UNQUANTIZED and request.flash_attn == "off":
        raise UsageError(
            f"-ctv {request.type_v} needs flash attention, which -fa off forbids", hint="-fa on, or -ctv f16"
        )


def _check_kv_type(flag: str, name: str, heads: tuple[int, ...]) -> None:
    if name not in KV_TYPES:
        raise UsageError(f"{flag} {printable(name)}: expected one of {', '.join(KV_TYPES)}")
    odd = [head for head in heads if head % KV_BLOCK]
    if name not in UNQUANTIZED and odd:
        raise UsageError(
            f"{flag} {name} needs heads of a multiple of {KV_BLOCK} elements; this model has heads of {odd[0]}",
            hint=f"{flag} f16",
        )


def _in_range(flag: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise UsageError(f"{flag} {value} is out of range: expected {least} to {most}")


def _context(request: Request, facts: ModelFacts, notes: list[str]) -> int:
    trained = facts.n_ctx_train
    # Learned position embeddings are a table: a position past its end is read from whatever lies behind it.
    most = min(filter(None, (trained, facts.n_positions)), default=0)
    if request.n_ctx is None:
        return min(DEFAULT_CTX_TOKENS, most or DEFAULT_CTX_TOKENS)
    if request.n_ctx == 0:
        if not most:
            raise UsageError("-c 0 asks for the model's own maximum, which this model does not state", hint="-c 4096")
        return most
    if facts.n_positions and request.n_ctx > facts.n_positions:
        raise UsageError(
            f"-c {request.n_ctx}: this model has positions for {format_count(facts.n_positions, 'token')} only",
            hint=f"-c {facts.n_positions}",
        )
    if (note := past_training(request.n_ctx, facts)) and not request.rope_scaled:
        notes.append(note)
    return request.n_ctx


def past_training(n_ctx: int, facts: ModelFacts) -> str | None:
    """What there is to know of a context that is longer than the model was trained on; None for any other."""
    trained = facts.n_ctx_train
    if not trained or n_ctx <= trained:
        return None
    return (
        f"-c {n_ctx} is more than the {format_count(trained, 'token')} this model was trained on: "
        "beyond them answers get worse, unless positions are scaled (--rope-scaling)"
    )


def _threads(asked: int | None, flag: str, cores: Cores, notes: list[str]) -> int | None:
    if asked is not None and asked > cores.usable:
        why = f"the CPU quota is {cores.quota:g}" if _quota_binds(cores) else "the threads will wait for each other"
        notes.append(
            f"{flag} {asked} is more than the {format_count(cores.usable, 'core')} this process can use, "
            f"which is slower: {why}"
        )
    return asked


def _quota_binds(cores: Cores) -> bool:
    return cores.quota is not None and max(1, int(cores.quota)) == cores.usable
