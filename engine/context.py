"""A llama.cpp context: the KV cache and the compute graph of one model, freed for certain.

Thin and typed: one method per native call, with the return values checked. Which tokens are in the cache is the
session's business.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from llmcli.base.errors import LlmcliError, ResourceError
from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.base.units import format_bytes
from llmcli.engine import native
from llmcli.engine.buffers import address_of
from llmcli.engine.fit import sequences_for
from llmcli.engine.interrupt import StopFlag, poll_function
from llmcli.engine.kv_layout import SCRATCH
from llmcli.engine.model import Model
from llmcli.engine.native_context import NativeContext
from llmcli.engine.plan import RunPlan

# The sequence that answers, and the owner of cells that only keep a place in front of a restored window. Blocks pass
# through kv_layout.SCRATCH, which is empty between two calls of state_io. All three share one KV buffer (kv_unified).
SEQUENCE, PLACEHOLDER = 0, 2
_PARTIAL_ONLY = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY in llama.h
# llama_decode (llama.h): 0 done, 1 no room in the cache, 2 aborted, negative: failed
_DONE, _NO_ROOM, _ABORTED = 0, 1, 2
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_ROPE_SCALING = {None: -1, "none": 0, "linear": 1, "yarn": 2}
# enum ggml_type (ggml.h), for the KV cache
KV_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}


@dataclass(frozen=True, slots=True)
class Rope:
    """Overrides of the model's rotary position embedding; None keeps what the file says (llama.cpp's --rope-*,
    --yarn-*).
    """

    scaling: str | None = None
    freq_base: float | None = None
    freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None


class AbortedError(LlmcliError):
    """The stop flag ended a decode; the cache holds what was finished before it."""

    exit_code = 130


class Context(NativeContext):
    """The state of one running model. Use as a context manager, or call `close`; closing twice is harmless."""

    def __init__(self, model: Model, plan: RunPlan, *, rope: Rope | None = None, stop: StopFlag | None = None) -> None:
        """Allocate as `plan` says. Raises ResourceError where the memory cannot be had."""
        self._lib = native.lib()
        self.model, self.plan, self.stop = model, plan, stop or StopFlag()
        self._poll = poll_function(self._lib.ggml_abort_callback)
        native.LOG.clear()
        self.handle = self._lib.llama_init_from_model(model.handle, self._params(rope or Rope()))
        if not self.handle:
            reason = native.LOG.last_error() or "no reason given"
            raise ResourceError(
                f"no context of {plan.n_ctx:,} tokens could be made (KV cache {format_bytes(plan.kv_bytes)}): "
                f"{printable(reason)}",
                hint="a smaller -c, or -ctk q8_0 -ctv q8_0",
            )
        # The tokens that fit: what the plan asked for (llama.cpp may round its own figure up, never down).
        self.n_ctx = min(plan.n_ctx, int(self._lib.llama_n_ctx(self.handle)))
        self._memory = self._lib.llama_get_memory(self.handle)
        self._make_batch(plan.n_ubatch, SEQUENCE)
        model.apply_loras(self.handle)

    def _params(self, rope: Rope) -> Any:
        plan, params = self.plan, self._lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = plan.n_ctx, max(plan.n_batch, plan.n_ubatch), plan.n_ubatch
        params.n_threads, params.n_threads_batch = plan.n_threads, plan.n_threads_batch
        params.flash_attn_type = FLASH_ATTENTION[plan.flash_attn]
        params.type_k, params.type_v = KV_TYPES[plan.type_k], KV_TYPES[plan.type_v]
        params.swa_full = plan.swa_full
        params.n_seq_max = self._sequences()
        # Logits of one token per sequence. By default llama.cpp keeps room for those of a whole u-batch: 257 MiB in
        # place of 13 with a vocabulary of 262,144.
        params.n_outputs_max = self._sequences()
        params.kv_unified = True
        params.no_perf = True
        params.abort_callback, params.abort_callback_data = self._poll, self.stop.address
        _set_rope(params, rope)
        return params

    def _sequences(self) -> int:
        return sequences_for(has_window=bool(self.model.window_tokens), swa_full=self.plan.swa_full)

    def decode(self, tokens: Sequence[int], position: int, *, want_logits: bool) -> None:
        """Compute `tokens` (at most n_ubatch) at `position` and those after it; logits of the last one on request.

        Raises AbortedError where the stop flag was set, LlmcliError where llama.cpp fails. After either, the cells of
        this call are removed again, so the cache holds exactly the `position` tokens before it, or, with recurrent
        memory, nothing: `length` tells.
        """
        batch = self._filled(tokens, position, wanted=int(want_logits))
        if (status := self._lib.llama_decode(self.handle, batch)) == _DONE:
            return
        if not self.remove_from(position):  # recurrent memory cannot step back: nothing of it is left to trust
            self.clear()
        if status == _ABORTED or self.stop.is_set():
            raise AbortedError("interrupted")
        if status == _NO_ROOM:
            raise LlmcliError(f"the KV cache has no room for {len(tokens)} tokens at position {position}")
        reason = native.LOG.last_error() or f"status {status}"
        raise LlmcliError(f"llama.cpp failed to decode: {printable(reason)}", hint="run again with -v for its log")

    def synchronize(self) -> None:
        """Wait until everything that was asked for is computed: on a GPU, `decode` returns before that."""
        self._lib.llama_synchronize(self.handle)

    def logits(self) -> Any:
        """The logits of the last decoded token: a C float array of n_vocab elements, valid until the next decode."""
        pointer = self._lib.llama_get_logits_ith(self.handle, -1)
        return ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * self.model.tokenizer.n_vocab)).contents

    def length(self) -> int:
        """How many tokens the cache holds (its last position + 1)."""
        return int(self._lib.llama_memory_seq_pos_max(self._memory, SEQUENCE)) + 1

    def first_position(self, sequence: int = SEQUENCE) -> int:
        """The first position from which everything is there: of the window where there is one, -1 where nothing is."""
        return int(self._lib.llama_memory_seq_pos_min(self._memory, sequence))

    def remove_from(self, position: int) -> bool:
        """Forget every token at `position` and after it.

        False, with nothing changed, where this kind of memory cannot (recurrent), and where rows of the window before
        `position` are gone or were never restored: what is computed on such a window is wrong, and looks right.
        """
        if not self._window_reaches(position, self.first_position()):
            return False
        return bool(self._lib.llama_memory_seq_rm(self._memory, SEQUENCE, position, -1))

    def _window_reaches(self, length: int, first: int) -> bool:
        """Whether window rows from position `first` on are enough to go on after `length` tokens."""
        window = self.model.window_tokens
        return not window or first <= max(0, length - window)

    def clear(self) -> None:
        """Forget everything."""
        self._lib.llama_memory_clear(self._memory, False)

    def can_shift(self) -> bool:
        """Whether old tokens can be dropped and the later ones moved down."""
        return bool(self._lib.llama_memory_can_shift(self._memory))

    def drop_range(self, start: int, end: int) -> None:
        """Forget the tokens at [start, end) and move the later ones down by end - start (needs `can_shift`)."""
        first = self.first_position()
        first_after = first + start - end if first >= end else min(first, start)
        reaches = self._window_reaches(self.length() + start - end, first_after)
        if not reaches or not self._lib.llama_memory_seq_rm(self._memory, SEQUENCE, start, end):
            raise LlmcliError("this model's memory cannot drop a range of tokens")
        if self._sequences() > PLACEHOLDER:
            self.drop_sequence(PLACEHOLDER)  # places are kept for answers as a cold run's, which a shift ends
        self._lib.llama_memory_seq_add(self._memory, SEQUENCE, end, -1, start - end)

    @property
    def can_move_blocks(self) -> bool:
        """Whether the state can be taken out and put back in blocks of positions."""
        return self._sequences() > SCRATCH

    def copy_range(self, source: int, target: int, start: int, end: int) -> None:
        """Let `target` hold the cells of `source` at [start, end) too; nothing is moved. A recurrent state has no
        positions and is shared whatever the range.
        """
        self._lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def drop_sequence(self, sequence: int) -> bool:
        """Forget all of one sequence; False where llama.cpp refuses."""
        return bool(self._lib.llama_memory_seq_rm(self._memory, sequence, -1, -1))

    def state_bytes(self, sequence: int, *, partial: bool) -> int:
        """The size of what `read_state` gives now."""
        return int(self._lib.llama_state_seq_get_size_ext(self.handle, sequence, _PARTIAL_ONLY * partial))

    def read_state(self, target: bytearray | memoryview, sequence: int, *, partial: bool) -> int:
        """Write the state of `sequence` to `target`; the bytes written, 0 if there are more of them.

        partial   without the attention section, where there is another one
        """
        pointer = ctypes.cast(address_of(target), ctypes.POINTER(ctypes.c_uint8))
        flags = _PARTIAL_ONLY * partial
        return int(self._lib.llama_state_seq_get_data_ext(self.handle, pointer, len(target), sequence, flags))

    def write_state(self, data: bytes | bytearray | memoryview, sequence: int, *, partial: bool) -> int:
        """Set the state of `sequence` from `data`; the bytes used, 0 if llama.cpp refuses them.

        llama.cpp trusts what it reads: `data` must have passed `kv_state.check_part`.
        """
        pointer = ctypes.cast(address_of(data), ctypes.POINTER(ctypes.c_uint8))
        flags = _PARTIAL_ONLY * partial
        return int(self._lib.llama_state_seq_set_data_ext(self.handle, pointer, len(data), sequence, flags))


def _set_rope(params: Any, rope: Rope) -> None:
    params.rope_scaling_type = _ROPE_SCALING[rope.scaling]
    for field, value in (
        ("rope_freq_base", rope.freq_base),
        ("rope_freq_scale", rope.freq_scale),
        ("yarn_orig_ctx", rope.yarn_orig_ctx),
        ("yarn_ext_factor", rope.yarn_ext_factor),
        ("yarn_attn_factor", rope.yarn_attn_factor),
        ("yarn_beta_fast", rope.yarn_beta_fast),
        ("yarn_beta_slow", rope.yarn_beta_slow),
    ):
        if value is not None:
            setattr(params, field, value)
