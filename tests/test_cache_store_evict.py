from __future__ import annotations

import os
import random
import sqlite3
import time
from pathlib import Path

import pytest

from llmcli.cache_store.evict import delete_leaves, expire, make_room, neighbours, stored_bytes
from llmcli.cache_store.index import Index
from llmcli.cache_store.index_schema import delete_block
from llmcli.cache_store.keys import Key, pack_tokens, sortable
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.store import PrefixStore
from tests.cache_store_case import (  # noqa: F401
    FINGERPRINT,
    block_files,
    no_waiting_for_the_disk,
    open_store,
    put,
)

NONE: frozenset[Key] = frozenset()


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return open_store(tmp_path / "s")


def index_of(store: PrefixStore) -> Index:
    store.flush()
    return store._context.index


def age(store: PrefixStore, refs: list[BlockRef], seconds: float) -> None:
    """Make these blocks look unused for that long."""
    then = time.time() - seconds
    with index_of(store).writing() as connection:
        assert connection is not None
        for ref in refs:
            os.utime(ref.path, (then, then))
            connection.execute("UPDATE blocks SET used_s = ? WHERE key = ?", (then, ref.key))


def room(store: PrefixStore, nbytes: int, kept: frozenset[Key] = NONE) -> int:
    with index_of(store).writing() as connection:
        assert connection is not None
        return make_room(connection, store._context.layout, nbytes, kept)
    raise AssertionError


def test_least_recently_used_ends_go_first_and_chains_stay_whole(store: PrefixStore, tmp_path: Path) -> None:
    old, new = put(store, list(range(600))), put(store, list(range(1000, 1600)))
    age(store, new, 50)
    age(store, old, 100)
    assert room(store, 1) == old[-1].file_bytes
    assert room(store, old[1].file_bytes + old[0].file_bytes) == old[1].file_bytes + old[0].file_bytes
    assert room(store, 1) == new[-1].file_bytes
    assert [Path(ref.path).exists() for ref in (*old, *new)] == [False] * 3 + [True, True, False]
    assert store.keeper().verify(repair=False).problems == ()


def test_a_shared_beginning_outlives_its_ends(store: PrefixStore) -> None:
    first = put(store, list(range(256)))
    ends = [put(store, [n], after=first[-1])[-1] for n in range(5)]
    age(store, first, 500)
    freed = room(store, sum(ref.file_bytes for ref in ends))
    assert freed == sum(ref.file_bytes for ref in ends)
    assert Path(first[0].path).exists()


def test_pinned_chains_stay_even_if_room_is_not_found(store: PrefixStore, tmp_path: Path) -> None:
    pinned, other = put(store, list(range(600))), put(store, [7, 7])
    store.keeper().name(pinned[1], "keep", pin=True)
    age(store, pinned, 1000)
    kept = store._context.names.pinned()
    total = sum(ref.file_bytes for ref in (*pinned, *other))
    assert room(store, total, kept) == 0  # not to be had: nothing goes
    assert len(block_files(tmp_path / "s")) == 4
    free = pinned[2].file_bytes + other[0].file_bytes
    assert room(store, free, kept) == free
    assert [Path(ref.path).exists() for ref in pinned] == [True, True, False]


def test_a_use_that_the_index_has_not_heard_of_counts(store: PrefixStore) -> None:
    one, two = put(store, [1, 1]), put(store, [2, 2])
    age(store, one, 100)
    age(store, two, 50)
    os.utime(one[0].path)  # another process restored it just now
    assert room(store, 1) == two[0].file_bytes
    assert Path(one[0].path).exists()


def test_expire(store: PrefixStore) -> None:
    old, new = put(store, list(range(300))), put(store, [5])
    age(store, old, 100)
    with index_of(store).writing() as connection:
        assert connection is not None
        assert expire(connection, store._context.layout, time.time() - 200, NONE, 10) == 0
        assert expire(connection, store._context.layout, time.time() - 60, NONE, 1) == old[1].file_bytes
        assert expire(connection, store._context.layout, time.time() - 60, frozenset({old[0].key}), 9) == 0
        assert expire(connection, store._context.layout, time.time() - 60, NONE, 9) == old[0].file_bytes
        assert stored_bytes(connection) == new[0].file_bytes
    assert store.match(FINGERPRINT, list(range(256))).miss_reason == "expired"


def test_delete_leaves_passes_over_what_others_need(store: PrefixStore) -> None:
    chain = put(store, list(range(600)))
    wanted = [(ref.key, ref.parent) for ref in chain]
    with index_of(store).writing() as connection:
        assert connection is not None
        assert delete_leaves(connection, store._context.layout, wanted, NONE, "removed") == (1, chain[2].file_bytes)
        kept = frozenset({chain[0].key})
        backwards = wanted[::-1]
        assert delete_leaves(connection, store._context.layout, backwards, kept, "removed")[0] == 1
    assert [Path(ref.path).exists() for ref in chain] == [True, False, False]


def test_what_a_block_has_behind_it_counts_though_the_index_does_not_know(store: PrefixStore) -> None:
    """Its writer was killed after the file had its name and before the row was committed."""
    chain = put(store, list(range(600)))
    with index_of(store).writing() as connection:
        assert connection is not None
        delete_block(connection, chain[2].key, None, 0)
        assert delete_leaves(connection, store._context.layout, [(chain[1].key, chain[0].key)], NONE, "removed") == (
            0,
            0,
        )
        assert make_room(connection, store._context.layout, 1, NONE) == 0
        assert expire(connection, store._context.layout, time.time() + 60, NONE, 9) == 0
    assert [Path(ref.path).exists() for ref in chain] == [True] * 3


def test_neighbours_against_all_children(tmp_path: Path) -> None:
    """The nearest by order is the nearest by comparison, for random families of prefixes."""
    source = random.Random(3)
    index = Index(tmp_path / "i", lambda: (), print)
    layout = Layout(tmp_path)
    assert layout.root == tmp_path
    parent = Key(b"p" * 32)
    with index.writing() as connection:
        assert connection is not None
        for family in range(60):
            children: dict[Key, bytes] = {}
            for number in range(source.randrange(1, 30)):
                ids = [source.choice([0, 1, 255, 256, 70_000]) for _ in range(source.randrange(1, 9))]
                children[Key(bytes([family, number]) * 16)] = sortable(pack_tokens(ids))
            connection.execute("DELETE FROM children")
            connection.executemany(
                "INSERT INTO children VALUES (?, ?, ?)", [(parent, ids, key) for key, ids in children.items()]
            )
            query = sortable(pack_tokens([source.choice([0, 1, 255, 256, 70_000]) for _ in range(8)]))
            _check(connection, parent, children, query)
    index.close()


def _check(connection: sqlite3.Connection, parent: Key, children: dict[Key, bytes], query: bytes) -> None:
    def shared(ids: bytes) -> int:
        return next((n for n in range(0, len(ids), 4) if ids[n : n + 4] != query[n : n + 4]), len(ids))

    found = dict(neighbours(connection, parent, query))
    assert all(shared(children[key]) == count for key, count in found.items())
    assert max(found.values(), default=0) == max(map(shared, children.values()))
    prefixes = {ids for ids in children.values() if query.startswith(ids)}
    assert prefixes <= {children[key] for key in found}
