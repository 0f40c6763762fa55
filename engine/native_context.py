"""The handle of a llama_context with its batch, freed for certain: what answering and measuring have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import Self

C = TypeVar("C", bound="NativeContext")


class NativeContext:
    """A native context of one batch. Use as a context manager, or call `close`; closing twice is harmless."""

    _lib: Any
    _batch: Any
    _fields: tuple[Any, Any, Any]
    handle: Any

    def _make_batch(self, n_tokens: int, sequence: int) -> None:
        """Room for so many tokens of one sequence."""
        self._batch = batch = self._lib.llama_batch_init(n_tokens, 0, 1)
        for i in range(n_tokens):
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
        # Each look at a field of a C structure makes a new pointer object: three for every token.
        self._fields = batch.token, batch.pos, batch.logits

    def _filled(self, tokens: Sequence[int], position: int, *, wanted: int) -> Any:
        """The batch with `tokens` at `position` and those after it, logits of the last `wanted` asked for."""
        ids, positions, logits = self._fields
        count = self._batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            ids[i], positions[i], logits[i] = token, position + i, i >= count - wanted
        return self._batch

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
