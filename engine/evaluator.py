"""A model that is measured, not asked: windows of tokens go in, the logits of many positions come out.

Nothing is generated and nothing is kept between windows. What is done with the logits, and with what a watcher sees of
the products inside, is the caller's business.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmcli.base.errors import LlmcliError, ResourceError, UserInterruptError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes
from llmcli.engine import native
from llmcli.engine.context import FLASH_ATTENTION, KV_TYPES, AbortedError
from llmcli.engine.engine import Reporter, find_model, load_model, plan_for
from llmcli.engine.eval_callback import Watcher
from llmcli.engine.interrupt import StopFlag, poll_function, stop_on_interrupt
from llmcli.engine.model import Model
from llmcli.engine.native_context import NativeContext
from llmcli.engine.plan import Request, RunPlan
from llmcli.engine.preflight import check_build
from llmcli.models.identity import Inspected
from llmcli.models.resolve import ResolvedModel

_DONE, _ABORTED = 0, 2  # llama_decode (llama.h)
_SEQUENCE = 0
_LOGITS_BYTES, _STEP_TOKENS = 256 << 20, 64


class Evaluator(NativeContext):
    """A native context of one sequence. Use as a context manager, or call `close`; closing twice is harmless."""

    def __init__(
        self, model: Model, plan: RunPlan, *, watcher: Watcher | None = None, stop: StopFlag | None = None
    ) -> None:
        """Allocate as `plan` says, and the logits of n_ubatch positions. Raises ResourceError where it cannot."""
        self._lib = native.lib()
        self.model, self.plan, self.stop, self._watcher = model, plan, stop or StopFlag(), watcher
        self._poll = poll_function(self._lib.ggml_abort_callback)
        self._outputs = 0
        native.LOG.clear()
        self.handle = self._lib.llama_init_from_model(model.handle, self._params())
        if not self.handle:
            reason = native.LOG.last_error() or "no reason given"
            logits = format_bytes(4 * plan.n_ubatch * model.tokenizer.n_vocab)
            raise ResourceError(
                f"no context of {plan.n_ctx:,} tokens could be made (logits {logits}): {printable(reason)}",
                hint="a smaller -c or -ub",
            )
        self._memory = self._lib.llama_get_memory(self.handle)
        self._make_batch(plan.n_ubatch, _SEQUENCE)

    def _params(self) -> Any:
        plan, params = self.plan, self._lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = plan.n_ctx, plan.n_ubatch, plan.n_ubatch
        params.n_threads, params.n_threads_batch = plan.n_threads, plan.n_threads_batch
        params.flash_attn_type = FLASH_ATTENTION[plan.flash_attn]
        params.type_k, params.type_v = KV_TYPES[plan.type_k], KV_TYPES[plan.type_v]
        params.swa_full = plan.swa_full
        params.n_seq_max = 1
        params.n_outputs_max = plan.n_ubatch
        params.no_perf = True
        params.abort_callback, params.abort_callback_data = self._poll, self.stop.address
        if self._watcher:
            params.cb_eval = self._watcher.callback
        return params

    @property
    def n_piece(self) -> int:
        """The most tokens of one `decode`."""
        return self.plan.n_ubatch

    def decode(self, tokens: Sequence[int], position: int, *, wanted: int) -> None:
        """Compute `tokens` (at most n_piece) at `position` and those after it, with logits of the last `wanted`.

        Raises AbortedError where the stop flag was set, what a watcher has raised, LlmcliError where llama.cpp fails.
        """
        status = self._lib.llama_decode(self.handle, self._filled(tokens, position, wanted=wanted))
        if self._watcher:
            self._watcher.raise_failure()
        if status == _ABORTED or self.stop.is_set():
            raise AbortedError("interrupted")
        if status != _DONE:
            reason = native.LOG.last_error() or f"status {status}"
            raise LlmcliError(f"llama.cpp failed to decode: {printable(reason)}", hint="run again with -v for its log")
        self._outputs = wanted

    def logits(self) -> Any:
        """The logits that the last `decode` was asked for: a C array of [wanted][n_vocab] floats, valid until the next
        one.
        """
        row = ctypes.c_float * self.model.tokenizer.n_vocab
        pointer = self._lib.llama_get_logits(self.handle)
        return ctypes.cast(pointer, ctypes.POINTER(row * self._outputs)).contents

    def settle(self) -> None:
        """Wait until everything is computed, where a device works on its own."""
        self._lib.llama_synchronize(self.handle)

    def clear(self) -> None:
        """Forget the window."""
        self._lib.llama_memory_clear(self._memory, False)


@dataclass(frozen=True, slots=True)
class Measured:
    """An open model to measure. Valid inside the `with open_evaluator(…)` block alone."""

    resolved: ResolvedModel
    inspected: Inspected
    plan: RunPlan
    model: Model
    evaluator: Evaluator
    load_s: float


@contextlib.contextmanager
def open_evaluator(
    reference: str | None,
    request: Request,
    settings: Settings,
    reporter: Reporter,
    *,
    piece_tokens: int,
    watcher: Watcher | None = None,
    stop: StopFlag | None = None,
) -> Iterator[Measured]:
    """Find the model, check its file, plan, load.

    piece_tokens   the most tokens of one decode, where the request does not say; fewer with a large vocabulary, since
                   there is room for the logits of all of them
    Raises the LlmcliError of whichever step fails, UserInterruptError where `stop` is set, or Ctrl-C pressed, while
    llama.cpp loads.
    """
    flag = stop or StopFlag()
    check_build(settings)
    resolved, inspected = find_model(reference, settings, reporter)
    n_ubatch = request.n_ubatch or _piece(inspected.facts.n_vocab, piece_tokens)
    plan = plan_for(replace(request, n_ubatch=n_ubatch), inspected.facts)
    for note in plan.notes:
        reporter.notify(note)
    begun = time.perf_counter()
    with contextlib.ExitStack() as stack:
        with stop_on_interrupt(flag):
            model = stack.enter_context(load_model(resolved, inspected, plan, reporter, flag))
            evaluator = stack.enter_context(Evaluator(model, plan, watcher=watcher, stop=flag))
        if flag.is_set():
            raise UserInterruptError
        yield Measured(resolved, inspected, plan, model, evaluator, time.perf_counter() - begun)


def _piece(n_vocab: int, most: int) -> int:
    """Tokens of one decode: `most`, or as many as have their logits in _LOGITS_BYTES."""
    fit = _LOGITS_BYTES // (4 * max(n_vocab, 1)) // _STEP_TOKENS * _STEP_TOKENS
    return min(most, max(fit, _STEP_TOKENS))
