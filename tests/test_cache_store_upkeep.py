from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore
from tests.cache_store_case import FINGERPRINT, POLICY, Told, block_files, open_store, put

TOKENS = list(range(600))


def column(root: Path, name: str) -> list[object]:
    with sqlite3.connect(root / "v1" / "index.sqlite") as connection:
        return [row[0] for row in connection.execute(f"SELECT {name} FROM blocks ORDER BY start_tokens")]


def test_uses_are_written_late_and_in_the_files_at_once(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        refs = put(store, TOKENS)
        for ref in refs:
            os.utime(ref.path, (1000, 1000))
        store.used(refs[:2], hit_tokens=512, miss_tokens=88, saved_s=1, read_bytes=1)
        assert [os.stat(ref.path).st_mtime > 1000 for ref in refs] == [True, True, False]
        assert column(tmp_path / "s", "hits") == [0, 0, 0]
        store.flush()
        assert column(tmp_path / "s", "hits") == [1, 1, 0]


def test_a_damaged_block_that_is_saved_again_before_the_index_hears_of_it_keeps_its_row(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", notify=Told()) as store:
        put(store, TOKENS)
        damaged, gone = store.match(FINGERPRINT, TOKENS).blocks[1:]
        store.reject(damaged, "for the test")
        store.reject(gone, "for the test")
        put(store, TOKENS[:512])
        store.flush()
        assert column(tmp_path / "s", "start_tokens") == [0, 256]
        assert store.match(FINGERPRINT, TOKENS).matched_tokens == 512
        assert store.keeper().stats().stored_bytes == sum(file.stat().st_size for file in block_files(tmp_path / "s"))


def test_each_folder_is_made_durable_once_and_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(_is_folder(handle))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with open_store(tmp_path / "s") as store:
        put(store, [1, 2, 3])
        put(store, [4, 5, 6])  # behind the same root: the same folder
        synced.clear()
        store.flush()
        assert synced == [True]
        put(store, [1, 2, 3])
        store.flush()
        assert synced == [True]  # nothing new: nothing to wait for


def _is_folder(handle: int) -> bool:
    return os.path.isdir(f"/proc/self/fd/{handle}")


def test_flush_expires(tmp_path: Path) -> None:
    policy = Policy(ttl_s=100, min_free_bytes=0, min_tokens=1)
    with open_store(tmp_path / "s", policy) as store:
        refs = put(store, TOKENS)
        old = time.time() - 500
        with store._context.index.writing() as connection:
            assert connection is not None
            connection.execute("UPDATE blocks SET used_s = ?", (old,))
        for ref in refs:
            os.utime(ref.path, (old, old))
        put(store, [1])
        store.flush()
        assert len(block_files(tmp_path / "s")) == 1
        assert store.keeper().stats().usage.expired_bytes == sum(ref.file_bytes for ref in refs)


def test_what_the_index_missed_is_found_by_the_next_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is busy while a block is saved: the block is there, the row comes later."""
    store = open_store(tmp_path / "s")
    put(store, [1])
    blocker = sqlite3.connect(tmp_path / "s" / "v1" / "index.sqlite", isolation_level=None)
    with store._context.index.reading() as connection:
        assert connection is not None
        connection.execute("PRAGMA busy_timeout=50")
    blocker.execute("BEGIN IMMEDIATE")
    refs = put(store, TOKENS)
    assert store.match(FINGERPRINT, TOKENS).matched_tokens == 600
    blocker.execute("ROLLBACK")
    blocker.close()
    store.close()
    assert len(column(tmp_path / "s", "key")) == 1
    with open_store(tmp_path / "s") as store:
        store.flush()
        assert {bytes(key) for key in column(tmp_path / "s", "key")} >= {ref.key for ref in refs}  # type: ignore[call-overload]
        assert store.keeper().stats().blocks == 4
    assert list((tmp_path / "s" / "v1" / "writers").iterdir()) == []


def test_rows_of_vanished_files_go(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    refs = put(store, TOKENS)
    Path(refs[2].path).unlink()
    store._context.writer.end(keep_marker=True)  # as if killed
    with PrefixStore.open(tmp_path / "s", POLICY, notify=print) as store:
        store.flush()
        assert store.keeper().stats().stored_bytes == refs[0].file_bytes + refs[1].file_bytes


def test_a_closed_store_opens_itself_again(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    put(store, [1])
    store.close()
    put(store, [2])
    store.close()
    store.close()
    assert len(column(tmp_path / "s", "key")) == 2
    assert list((tmp_path / "s" / "v1" / "writers").iterdir()) == []
