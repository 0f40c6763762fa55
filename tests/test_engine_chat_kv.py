"""Every prompt of a conversation has the logits of a cold run, whatever memory the model has, however it got there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.settings import load
from llmcli.engine.chat_kv import ChatKv
from llmcli.engine.engine import Engine
from llmcli.engine.prefix import open_prefix_cache
from llmcli.engine.prefix_report import CacheOptions
from llmcli.engine.prefix_turns import TurnCache
from tests.fixtures.engines import open_tiny_engine
from tests.prefix_case import KINDS, block_files, cold, store_options, tokens

__all__ = ["store_options"]
N_CTX = 2048


class Chat:
    """A conversation of token ids: asks, decodes greedily, and holds each prompt's logits against a cold run's."""

    def __init__(self, engine: Engine, reference: Engine, prefix: TurnCache | None, *, inexact: bool = False) -> None:
        self.engine, self._reference, self._inexact = engine, reference, inexact
        self.kv = ChatKv(engine, prefix, inexact=inexact)
        self.ids: list[int] = []
        self.kept, self.restored, self.computed = 0, 0, 0

    def turn(self, ids: list[int], answer_tokens: int = 70) -> list[int]:
        """Ask, check, answer; the conversation is `ids` and the answer then."""
        session, kv = self.engine.session, self.kv
        self.kept = kv.begin(ids, stable_tokens=len(ids))
        self.restored = len(session.tokens) - self.kept
        self.computed = len(ids) - len(session.tokens)
        assert session.tokens == ids[: len(session.tokens)]
        session.prefill(ids[len(session.tokens) :], cuts=kv.cuts, on_progress=lambda _done, _total: kv.advanced())
        kv.computed(len(ids))
        logits = bytes(self.engine.context.logits())
        if kv.prefix:
            kv.prefix.prefilled()
        answer = self._decode(answer_tokens)
        if kv.prefix:
            kv.prefix.finish(1000.0, self.computed)
        if not self._inexact:
            assert logits == cold(self._reference, ids)
        self.ids = [*ids, *answer]
        return answer

    def _decode(self, count: int) -> list[int]:
        answer: list[int] = []
        while len(answer) < count:
            logits = list(self.engine.context.logits())
            answer.append(logits.index(max(logits)))
            self.engine.session.decode(answer[-1])
        return answer

    def ahead(self) -> int:
        computed = self.kv.ahead(self.ids, lambda: True)
        if self.kv.prefix:
            self.kv.prefix.finish(1000.0, computed)
        return computed


@contextmanager
def chat(path: Path, options: CacheOptions | None, *, inexact: bool = False, **changes: Any) -> Iterator[Chat]:
    """A chat on a fresh engine, as after a break; with a second engine for the cold runs."""
    changes = {"n_ctx": N_CTX, **changes}
    with open_tiny_engine(path, **changes) as engine, open_tiny_engine(path, **changes) as reference:
        if options is None:
            yield Chat(engine, reference, None, inexact=inexact)
            return
        told: list[str] = []
        with open_prefix_cache(engine, options, load(), told.append, TurnCache) as prefix:
            assert prefix is not None, told
            yield Chat(engine, reference, prefix, inexact=inexact)
        assert told == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_store", [False, True])
def test_each_turn_has_the_logits_of_a_cold_run(
    kind: str, with_store: bool, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    with chat(random_model(kind), options if with_store else None) as live:
        live.turn(tokens(300))
        for seed in range(2, 6):
            live.turn([*live.ids, *tokens(33, seed=seed)])
            if seed > 2:  # after the first turn the self-test of a new fingerprint empties the memory
                assert live.kept > 0
                assert live.computed <= 64 + 70 + 33 + 64


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_computed_ahead_leaves_a_grid_at_most(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    with chat(random_model(kind), options) as live:
        live.turn(tokens(300))
        live.ahead()
        live.turn([*live.ids, *tokens(33, seed=2)])
        assert live.ahead() >= 64
        live.turn([*live.ids, *tokens(33, seed=3)])
        assert live.computed <= 64 + 33


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_that_comes_back_restores_and_answers_the_same(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    path = random_model(kind)
    with chat(path, options) as live:
        live.turn(tokens(300))
        live.turn([*live.ids, *tokens(33, seed=2)])
        live.ahead()
        ids = [*live.ids, *tokens(20, seed=3)]
        expected = live.turn(ids)
    with chat(path, options) as back:
        assert back.turn(ids) == expected
        assert back.kept == 0
        assert back.restored >= (len(ids) - 20 - 1) // 64 * 64
        assert back.computed <= 64 + 20


@pytest.mark.parametrize("kind", KINDS)
def test_taking_turns_back_goes_on_from_what_is_shared(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    with chat(random_model(kind), options) as live:
        live.turn(tokens(300))
        first = live.ids
        live.turn([*first, *tokens(40, seed=2)])
        second = live.ids
        live.turn([*second, *tokens(40, seed=3)])
        live.turn([*second, *tokens(41, seed=4)])
        assert live.kept + live.restored >= (len(second) - 70 - 1) // 64 * 64
        live.turn([*first, *tokens(42, seed=5)])
        assert live.kept + live.restored >= 256


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_that_went_while_the_chat_was_open_are_saved_again(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    path = random_model(kind)
    with chat(path, options) as live:
        live.turn(tokens(300))
        live.turn([*live.ids, *tokens(33, seed=2)])
        for block in block_files(options):
            block.unlink()
        live.turn([*live.ids, *tokens(33, seed=3)])
        assert live.kept > 0
        live.ahead()
        ids = [*live.ids, *tokens(20, seed=4)]
    with chat(path, options) as back:
        back.turn(ids)
        assert back.restored >= (len(ids) - 20 - 1) // 64 * 64


def test_a_window_that_is_not_kept_whole_goes_back_to_its_snapshot(random_model: Callable[[str], Path]) -> None:
    with chat(random_model("iswa"), None, swa_full=False) as live:
        live.turn(tokens(300))
        live.turn([*live.ids, *tokens(33, seed=2)])
        assert live.kept == 256
        live.ahead()
        live.turn([*live.ids, *tokens(33, seed=3)])
        assert live.computed <= 64 + 33


@pytest.mark.parametrize("kind", ["plain", "mamba"])
def test_cache_max_keeps_what_was_decoded(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    path = random_model(kind)
    options = CacheOptions("max", options.folder, options.policy)
    with chat(path, options, inexact=True) as live:
        live.turn(tokens(300))
        live.turn([*live.ids, *tokens(33, seed=2)])
        live.turn([*live.ids, *tokens(33, seed=3)])
        assert live.computed == 33
        assert live.kept == len(live.ids) - 70 - 33
        live.ahead()
        ids = [*live.ids, *tokens(20, seed=4)]
    with chat(path, options, inexact=True) as back:
        back.turn(ids)
        if kind == "plain":
            assert back.computed <= 21
        assert back.restored > 0  # a recurrent state is kept at the grid points that a prefill passes
        back.turn([*back.ids, *tokens(20, seed=5)])
        assert back.computed == 20


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_batch_makes_its_own_grid(kind: str, random_model: Callable[[str], Path]) -> None:
    with chat(random_model(kind), None, n_ubatch=100) as live:
        live.turn(tokens(300))
        live.turn([*live.ids, *tokens(33, seed=2)])
        assert live.kept == 200
        assert live.ahead() == 0
        live.turn([*live.ids, *tokens(33, seed=3)])


def test_blocks_of_one_conversation_are_one_chain(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    with chat(random_model("plain"), options) as live:
        for seed in range(1, 5):
            live.turn([*live.ids, *tokens(100, seed=seed)])
            live.ahead()
        ids = [*live.ids, 1]
        prefix = live.kv.prefix
        assert prefix is not None
        stored = prefix.store.match(prefix.fingerprint, ids)
        assert stored.matched_tokens == len(live.ids) // 64 * 64
        assert [ref.end_tokens for ref in stored.blocks][-1] == stored.matched_tokens
        assert len(block_files(options)) == len(stored.blocks)
