"""The handle of a llama_context with its batch, freed for certain: what answering and measuring have in common."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import Self

C = TypeVar("C", bound="NativeContext")


class NativeContext:
    """A native context of one batch. Use as a context manager, or call `close`; closing twice is harmless."""

    _lib: Any
    _batch: Any
    handle: Any

    def _make_batch(self, n_tokens: int, sequence: int) -> None:
        """Room for so many tokens of one sequence."""
        self._batch = self._lib.llama_batch_init(n_tokens, 0, 1)
        for i in range(n_tokens):
            self._batch.n_seq_id[i] = 1
            self._batch.seq_id[i][0] = sequence

    def close(self) -> None:
        """Free the native context."""
        if self.handle:
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self.handle)
            self.handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # an instance whose __init__ failed
            self.close()
