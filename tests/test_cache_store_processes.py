"""Several processes on one store: killed in the middle, side by side, with eviction and repair going on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.cache_store import writers
from llmcli.cache_store.block_format import DamagedError
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore
from tests.cache_store_case import (  # noqa: F401
    FINGERPRINT,
    POLICY,
    assert_right,
    block_files,
    no_waiting_for_the_disk,
    open_store,
    parts_for,
    put,
    temp_files,
)
from tests.fixtures.children import child, wait_all

SHARED = list(range(512))


def prompt_of(number: int) -> list[int]:
    return [*SHARED, *random.Random(number).choices(range(1000), k=200)]


def save_like_an_engine(store: PrefixStore, tokens: list[int]) -> None:
    """Look up, check what was found, save the rest; a refusal ends the chain."""
    found = store.match(FINGERPRINT, tokens)
    try:
        assert_right(store, found.blocks)
    except DamagedError as error:
        if "removed in the meantime" not in error.message:  # evicted by another process: a miss
            raise
    store.used(found.blocks, hit_tokens=found.matched_tokens, miss_tokens=1, saved_s=0, read_bytes=0)
    parent = found.whole_blocks[-1] if found.whole_blocks else None
    start = parent.end_tokens if parent else 0
    for begin in range(start, len(tokens), 256):
        piece = tokens[begin : begin + 256]
        parent = store.put(FINGERPRINT, parent, piece, parts_for(piece, begin)).ref
        if parent is None:
            break
    store.flush()


def test_killed_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 times: the next opening works, no temp file stays, nothing wrong is found, the index is brought in line."""
    monkeypatch.setattr(writers, "_MAKING_S", 0.0)  # nobody else is making a marker: what is there was left
    root, source = tmp_path / "s", random.Random(7)
    for attempt in range(200):
        ready, tell = os.pipe()

        def write_until_killed(attempt: int = attempt, tell: int = tell) -> None:
            if attempt % 4:
                os.write(tell, b".")
            store = open_store(root)
            save_like_an_engine(store, prompt_of(attempt * 1000))
            os.write(tell, b".")
            for number in range(1, 1000):
                save_like_an_engine(store, prompt_of(attempt * 1000 + number))

        pid = child(write_until_killed)
        os.read(ready, 1)  # it runs; in every fourth attempt it has saved one prompt, too
        time.sleep(source.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(tell)
        store = open_store(root)
        assert temp_files(root) == []
        found = store.match(FINGERPRINT, prompt_of(attempt * 1000))
        assert_right(store, found.blocks)
        store.close()
        if attempt % 40 == 39:
            with open_store(root) as store:
                assert store.keeper().verify(repair=False).problems == ()
                assert store.keeper().stats().stored_bytes == sum(file.stat().st_size for file in block_files(root))
            assert list((root / "v1" / "writers").iterdir()) == []
    assert len(block_files(root)) > 50  # it did get to write


@pytest.mark.parametrize("same", [True, False])
def test_eight_processes(tmp_path: Path, same: bool) -> None:
    root = tmp_path / "s"

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            with open_store(root) as store:
                for turn in range(6):
                    save_like_an_engine(store, prompt_of(turn if same else number * 100 + turn))

        return run

    wait_all([child(work(number)) for number in range(8)])
    with open_store(root) as store:
        for number in [0] if same else range(8):
            for turn in range(6):
                tokens = prompt_of(turn if same else number * 100 + turn)
                found = store.match(FINGERPRINT, tokens)
                assert found.matched_tokens == len(tokens)
                assert_right(store, found.blocks)
        stats = store.keeper().stats()
        assert stats.blocks == len(block_files(root)) == 2 + (6 if same else 48)
        assert stats.stored_bytes == sum(file.stat().st_size for file in block_files(root))
        assert stats.usage.lookups == 48
        assert store.keeper().verify(repair=False).problems == ()
    assert temp_files(root) == []


def test_eviction_repair_and_pruning_while_others_write(tmp_path: Path) -> None:
    """Every process evicts for its own writes while others prune and repair: no chain is ever orphaned."""
    root = tmp_path / "s"
    policy = Policy(max_bytes=1_300_000, min_free_bytes=0, ttl_s=None, min_tokens=1)

    def write(number: int) -> Callable[[], None]:
        def run() -> None:
            with PrefixStore.open(root, policy, notify=lambda text: None) as store:
                for turn in range(25):
                    save_like_an_engine(store, [number, *prompt_of(number * 100 + turn)])

        return run

    def tend() -> None:
        with PrefixStore.open(root, policy, notify=lambda text: None) as store:
            for turn in range(12):
                problems = store.keeper().verify(repair=True).problems
                assert problems == (), problems
                store.keeper().carry_out(store.keeper().plan_prune(max_bytes=100_000 * (turn % 3)))

    wait_all([*(child(write(number)) for number in range(5)), child(tend), child(tend)])
    with PrefixStore.open(root, policy, notify=print) as store:
        assert store.keeper().verify(repair=False).problems == ()
        assert store.keeper().stats().stored_bytes == sum(file.stat().st_size for file in block_files(root))
    assert temp_files(root) == []


def test_saving_in_a_thread_while_looking_up(tmp_path: Path) -> None:
    import threading

    finished: list[bool] = []
    with open_store(tmp_path / "s", POLICY) as store:

        def write() -> None:
            for number in range(40):
                save_like_an_engine(store, prompt_of(number))
            finished.append(True)

        thread = threading.Thread(target=write)
        thread.start()
        while thread.is_alive():
            for number in range(40):
                assert_right(store, store.match(FINGERPRINT, prompt_of(number)).blocks)
        thread.join()
        assert finished == [True]
        assert store.match(FINGERPRINT, prompt_of(39)).matched_tokens == 712
