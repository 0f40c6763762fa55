from __future__ import annotations

import threading

from llmcli.cache_store.counters import Pending, Usage


def test_pending_adds_up_and_is_taken_once() -> None:
    pending = Pending()
    assert not pending
    pending.count("a")
    pending.count("a", 2.5)
    pending.use(b"k", 10.0)
    pending.use(b"k", 20.0)
    pending.damaged(b"d")
    assert pending
    assert pending.take() == ({"a": 3.5}, {b"k": (20.0, 2)}, {b"d"})
    assert not pending
    assert pending.take() == ({}, {}, set())


def test_no_count_is_lost_between_threads() -> None:
    pending, total = Pending(), [0.0]

    def count() -> None:
        for _ in range(2000):
            pending.count("a")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        total[0] += pending.take()[0].get("a", 0)
    total[0] += pending.take()[0].get("a", 0)
    assert total == [8000]


def test_usage() -> None:
    usage = Usage.of({"hit_tokens": 30.0, "miss_tokens": 10.0, "saved_s": 1.5, "unknown": 7.0})
    assert (usage.hit_tokens, usage.saved_s, usage.hit_rate, usage.lookups) == (30, 1.5, 0.75, 0)
    assert Usage.of({}).hit_rate == 0.0
