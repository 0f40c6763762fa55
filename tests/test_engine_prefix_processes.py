"""Several engines on one store: killed while they save, side by side, with pruning, checks and clearing beside them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.cache_store import writers
from llmcli.cache_store.store import PrefixStore
from llmcli.engine.engine import Engine
from llmcli.engine.prefix_report import CacheOptions
from tests.fixtures.children import child, wait_all
from tests.prefix_case import (  # noqa: F401
    P1,
    P2,
    P3,
    block_files,
    cold,
    store_options,
    temp_files,
    tiny,
    tokens,
    warm,
)

KILLS = 200
_KILLS_S = 12.0  # a slow machine makes fewer


def prompt_of(number: int) -> list[int]:
    """300 tokens that all share, 300 of its own."""
    return [*tokens(300), *tokens(300, seed=1000 + number)]


def test_killed_while_saving(
    random_model: Callable[[str], Path], options: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At random moments: the next run is right, and no temp file is older than it."""
    path, draw, begun = random_model("plain"), random.Random(11), time.monotonic()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(writers, "_MAKING_S", 0.0)  # nobody else is making a marker: what is there was left

    def slow_fsync(handle: int) -> None:
        """What is killed is killed while it writes, more often than not."""
        time.sleep(0.003)
        real(handle)

    left_behind = attempts = 0
    with tiny(path) as engine:
        shared = cold(engine, P1)
        own = {number: cold(engine, prompt_of(number)) for number in range(8)}
        while attempts < KILLS and (attempts < 20 or time.monotonic() - begun < _KILLS_S):
            ready, tell = os.pipe()

            def save_until_killed(tell: int = tell, first: int = attempts * 100) -> None:
                monkeypatch.setattr(os, "fsync", slow_fsync)
                with tiny(path) as mine:
                    os.write(tell, b".")
                    for number in range(first, first + 100):
                        warm(mine, prompt_of(number), options, [])

            pid = child(save_until_killed)
            os.close(tell)
            assert os.read(ready, 1) == b"."
            time.sleep(draw.random() * 0.08)
            os.kill(pid, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
            os.close(ready)
            left_behind += len(temp_files(options)) if options.folder and options.folder.exists() else 0
            number = attempts % 8
            assert warm(engine, prompt_of(number), options)[0] == own[number]
            assert temp_files(options) == []
            if attempts % 10 == 0:
                assert warm(engine, P1, options)[0] == shared
            attempts += 1
        assert options.folder is not None
        with PrefixStore.open(options.folder, options.policy, notify=print) as store:
            keeper = store.keeper()
            assert keeper.verify(repair=False).problems == ()
            assert keeper.stats().stored_bytes == sum(file.stat().st_size for file in block_files(options))
        assert list((options.folder / "v1" / "writers").iterdir()) == []
    assert (left_behind > 0, len(block_files(options)) > 20) == (True, True)  # it was killed in the middle


def ask(engine: Engine, options: CacheOptions, prompts: Sequence[list[int]], expected: Sequence[bytes]) -> None:
    """Every prompt, in an order of this process's own: the cold answer, whatever the others do meanwhile."""
    order = list(zip(prompts, expected, strict=True))
    random.Random(os.getpid()).shuffle(order)
    for ids, logits in order:
        warnings: list[str] = []
        assert warm(engine, ids, options, warnings)[0] == logits
        assert warnings == []


def test_eight_at_once_on_the_same_and_on_different_prompts(
    random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    path = random_model("iswa")
    with tiny(path) as engine:
        prompts = [P1, P2, P3, P1, *(prompt_of(number) for number in range(8))]
        expected = [cold(engine, ids) for ids in prompts]

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            mine = [0, 1, 2, 3, 4 + number]
            with tiny(path) as engine:
                ask(engine, options, [prompts[i] for i in mine], [expected[i] for i in mine])

        return run

    wait_all([child(work(number)) for number in range(8)])
    assert temp_files(options) == []
    whole = [512, 512, 192, 512, *[576] * 8]
    with tiny(path) as engine:
        for ids, logits, kept in zip(prompts, expected, whole, strict=True):
            answer, report = warm(engine, ids, options)
            assert (answer, report.restored_tokens) == (logits, kept)
    assert options.folder is not None
    with PrefixStore.open(options.folder, options.policy, notify=print) as store:
        assert store.keeper().verify(repair=False).problems == ()


def test_pruning_checking_and_clearing_while_others_save(
    random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    path = random_model("plain")
    with tiny(path) as engine:
        prompts = [P1, P2, P3, *(prompt_of(number) for number in range(6))]
        expected = [cold(engine, ids) for ids in prompts]

    def save() -> None:
        with tiny(path) as engine:
            for _ in range(2):
                ask(engine, options, prompts, expected)

    def tend() -> None:
        assert options.folder is not None
        draw = random.Random(3)
        for turn in range(12):
            with PrefixStore.open(options.folder, options.policy, notify=lambda text: None) as store:
                keeper = store.keeper()
                assert keeper.verify(repair=True).problems == ()
                keeper.carry_out(keeper.plan_prune(max_bytes=draw.randrange(400_000)))
                try:
                    if entries := keeper.entries():
                        keeper.carry_out(keeper.plan_rm(draw.choice(entries).key.hex()))
                except LlmcliError:
                    pass  # removed by the other one meanwhile
                if turn % 5 == 4:
                    keeper.clear()
            time.sleep(0.03)

    wait_all([*(child(save) for _ in range(3)), child(tend), child(tend)])
    assert options.folder is not None
    with PrefixStore.open(options.folder, options.policy, notify=print) as store:
        assert store.keeper().verify(repair=True).problems == ()
        assert store.keeper().stats().stored_bytes == sum(file.stat().st_size for file in block_files(options))
    assert temp_files(options) == []
    with tiny(path) as engine:
        for ids, logits in zip(prompts, expected, strict=True):
            assert [warm(engine, ids, options)[0] for _ in range(2)] == [logits] * 2
