"""A loaded model: weights and vocabulary in memory, freed for certain.

The file has been checked by llmcli.models before it comes here; what libllama still refuses is reported with its own
last error line.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from llmcli.base.errors import ModelError, UserInterruptError
from llmcli.base.text import printable
from llmcli.engine import native
from llmcli.engine.lora import Lora
from llmcli.engine.plan import RunPlan
from llmcli.engine.tokenizer import Tokenizer

# enum llama_load_mode (llama.h), by (mmap, mlock); mmap alone is left to llama.cpp's own choice for the device.
_LOAD_MODES = {(True, False): -1, (False, False): 0, (False, True): 2, (True, True): 3}
_ALL_LAYERS = -1
_META_BYTES = 512


class Model:
    """A model in memory. Use as a context manager, or call `close`; closing twice is harmless."""

    def __init__(self, handle: Any, path: Path) -> None:
        self._lib = native.lib()
        self.handle = handle
        self.path = path
        self.tokenizer = Tokenizer(self._lib.llama_model_get_vocab(handle))
        self._adapters: list[tuple[Any, float]] = []

    @classmethod
    def load(
        cls,
        path: Path,
        plan: RunPlan,
        *,
        n_layer: int | None = None,
        on_progress: Callable[[float], bool] | None = None,
    ) -> Model:
        """Load the model at `path` (its first shard) as `plan` says.

        n_layer       the model's layers as the plan counts them: a plan for more than these means the whole model,
                      of which llama.cpp may count more (those of multi-token prediction)
        on_progress   told the loaded share, 0 to 1; returning False stops the load
        Raises ModelError where llama.cpp refuses the file, UserInterruptError after a stop, what `on_progress` raises.
        """
        lib, stopped, failed = native.lib(), False, None
        params = lib.llama_model_default_params()
        whole = n_layer is not None and plan.n_gpu_layers > n_layer
        params.n_gpu_layers = _ALL_LAYERS if whole else plan.n_gpu_layers
        params.load_mode = _LOAD_MODES[plan.use_mmap, plan.use_mlock]

        def report(share: float, _data: object) -> bool:
            nonlocal stopped, failed
            try:
                stopped = on_progress is not None and not on_progress(share)
            except BaseException as error:  # noqa: BLE001  # ctypes would print it; a second Ctrl-C comes this way
                stopped, failed = True, error
            return not stopped

        callback = lib.llama_progress_callback(report)
        params.progress_callback = callback
        native.LOG.clear()
        handle = lib.llama_model_load_from_file(bytes(path.absolute()), params)
        if stopped:
            lib.llama_model_free(handle)  # of NULL too, as free() is
            raise failed or UserInterruptError("interrupted while loading the model")
        model = cls._checked(handle, path)
        if lib.llama_model_has_encoder(handle) or not lib.llama_model_has_decoder(handle):
            model.close()
            raise ModelError(f"{printable(str(path))} is an encoder model: it cannot generate text")
        return model

    @classmethod
    def load_vocabulary(cls, path: Path) -> Model:
        """Load the vocabulary alone: tokenizing works, contexts do not. Raises ModelError."""
        lib = native.lib()
        params = lib.llama_model_default_params()
        params.vocab_only = True
        native.LOG.clear()
        return cls._checked(lib.llama_model_load_from_file(bytes(path.absolute()), params), path)

    @classmethod
    def _checked(cls, handle: Any, path: Path) -> Model:
        if handle:
            return cls(handle, path)
        reason = native.LOG.last_error() or "no reason given"
        raise ModelError(
            f"llama.cpp cannot load {printable(str(path))}: {printable(reason)}", hint="run again with -v for its log"
        )

    def add_loras(self, loras: Sequence[Lora]) -> None:
        """Load the adapters; contexts made from now on apply them. Raises ModelError naming the file that fails."""
        for lora in loras:
            native.LOG.clear()
            adapter = self._lib.llama_adapter_lora_init(self.handle, bytes(lora.path.absolute()))
            if not adapter:
                reason = native.LOG.last_error() or "it is no adapter for this model"
                raise ModelError(f"cannot apply the LoRA {printable(str(lora.path))}: {printable(reason)}")
            self._adapters.append((adapter, lora.scale))

    def apply_loras(self, context: Any) -> None:
        """Apply the loaded adapters to a native context."""
        if not self._adapters:
            return
        count = len(self._adapters)
        handles = (self._lib.llama_adapter_lora_p_ctypes * count)(*(handle for handle, _ in self._adapters))
        scales = (ctypes.c_float * count)(*(scale for _, scale in self._adapters))
        if self._lib.llama_set_adapters_lora(context, handles, count, scales) != 0:
            raise ModelError("llama.cpp refused the LoRA adapters for this context")

    @property
    def n_ctx_train(self) -> int:
        """The context length the model was trained for, in tokens."""
        return int(self._lib.llama_model_n_ctx_train(self.handle))

    @property
    def window_tokens(self) -> int:
        """The sliding window in tokens, 0 where there is none."""
        return max(0, int(self._lib.llama_model_n_swa(self.handle)))

    @property
    def is_recurrent(self) -> bool:
        """Whether the memory is a recurrent state alone."""
        return bool(self._lib.llama_model_is_recurrent(self.handle))

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers have a recurrent state and others attention."""
        return bool(self._lib.llama_model_is_hybrid(self.handle))

    def metadata(self, key: str) -> str | None:
        """A value of the file's metadata as llama.cpp writes it, None where the key is missing."""
        buffer = ctypes.create_string_buffer(_META_BYTES)
        if self._lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, _META_BYTES) < 0:
            return None
        return buffer.value.decode("utf-8", "replace")

    @property
    def chat_template(self) -> str | None:
        """The default chat template in the file, None where there is none."""
        found = self._lib.llama_model_chat_template(self.handle, None)
        return found.decode("utf-8", "replace") if found else None

    @property
    def description(self) -> str:
        """llama.cpp's short description, such as `llama ?B Q4_1`."""
        buffer = ctypes.create_string_buffer(_META_BYTES)
        self._lib.llama_model_desc(self.handle, buffer, _META_BYTES)
        return buffer.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Free adapters and weights. Contexts made from the model must be closed before."""
        if self.handle:
            for adapter, _ in self._adapters:
                self._lib.llama_adapter_lora_free(adapter)
            self._lib.llama_model_free(self.handle)
            self._adapters, self.handle = [], None

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # an instance whose __init__ failed
            self.close()
