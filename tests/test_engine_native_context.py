"""A native context is freed once, however it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmcli.engine.native_context import NativeContext


class Made(NativeContext):
    """One on a library that writes down what it is asked to free."""

    def __init__(self, freed: list[Any], *, fails: bool = False) -> None:
        if fails:
            raise ValueError("no context")
        batch = SimpleNamespace(n_seq_id=[0] * 3, seq_id=[[9], [9], [9]], token=[9] * 3, pos=[9] * 3, logits=[9] * 3)
        self._lib = SimpleNamespace(
            llama_batch_init=lambda *_: batch, llama_batch_free=lambda _: freed.append("batch"), llama_free=freed.append
        )
        self.handle = 7
        self._make_batch(3, 2)


def test_it_is_freed_once() -> None:
    freed: list[Any] = []
    with Made(freed) as context:
        assert context._batch.n_seq_id == [1, 1, 1]
        assert context._batch.seq_id == [[2], [2], [2]]
    assert freed == ["batch", 7]
    context.close()
    del context
    assert freed == ["batch", 7]


def test_a_batch_asks_for_the_logits_of_the_last_ones() -> None:
    with Made([]) as context:
        batch = context._filled([5, 6], 40, wanted=1)
        assert (batch.n_tokens, batch.token, batch.pos, batch.logits) == (2, [5, 6, 9], [40, 41, 9], [False, True, 9])
        batch = context._filled([7, 8, 9], 42, wanted=2)
        assert (batch.token, batch.pos, batch.logits) == ([7, 8, 9], [42, 43, 44], [False, True, True])
        context._filled([1], 45, wanted=0)
        assert (batch.n_tokens, batch.logits[0]) == (1, False)


def test_one_that_was_never_made_is_not_freed() -> None:
    freed: list[Any] = []
    with pytest.raises(ValueError, match="no context"):
        Made(freed, fails=True)
    assert freed == []
