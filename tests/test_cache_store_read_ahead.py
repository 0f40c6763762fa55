"""Reading ahead: the same bytes in the same order, and a bad part raises where it is asked for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from llmcli.cache_store import read_ahead
from llmcli.cache_store.block_file import read_part
from llmcli.cache_store.block_format import DamagedError
from llmcli.cache_store.keys import BLOCK_TOKENS
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.read_ahead import ReadAhead, Wanted
from tests.cache_store_case import Told, open_store, parts_for, put

TOKENS = list(range(6 * BLOCK_TOKENS))


def reader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefix store reader"]


def stored(root: Path) -> list[BlockRef]:
    with open_store(root) as store:
        return put(store, TOKENS)


def test_parts_come_in_the_order_asked_for(tmp_path: Path) -> None:
    refs = stored(tmp_path)
    wanted = [(ref, name) for ref in reversed(refs) for name in ("window", "attn")]
    with open_store(tmp_path) as store:
        found = [bytes(part) for part in store.read_all(wanted)]
    assert found == [parts_for(ref.token_ids, ref.start_tokens)[name] for ref, name in wanted]
    assert reader_threads() == []


def test_nothing_wanted_is_nothing_read(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        assert list(store.read_all([])) == []


def test_a_damaged_part_raises_in_its_turn_and_its_file_goes(tmp_path: Path) -> None:
    refs, told = stored(tmp_path), Told()
    victim = Path(refs[3].path)
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    with open_store(tmp_path, notify=told) as store:
        parts = store.read_all([(ref, "window") for ref in refs])
        assert len([next(parts) for _ in range(3)]) == 3
        assert victim.exists()
        assert told == []
        with pytest.raises(DamagedError, match="checksum"):
            next(parts)
    assert not victim.exists()
    assert len(told) == 1
    assert reader_threads() == []


def test_a_file_that_is_gone_raises_and_the_others_stay(tmp_path: Path) -> None:
    refs = stored(tmp_path)
    Path(refs[0].path).unlink()
    with open_store(tmp_path) as store, pytest.raises(DamagedError, match="removed in the meantime"):
        list(store.read_all([(ref, "attn") for ref in refs]))
    assert all(Path(ref.path).exists() for ref in refs[1:])


def test_closing_early_ends_the_thread_and_reads_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = stored(tmp_path)
    read: list[str] = []

    def counted(path: str, key: bytes, name: str) -> memoryview:
        read.append(path)
        return read_part(path, key, name)

    monkeypatch.setattr(read_ahead, "read_part", counted)
    with open_store(tmp_path) as store:
        parts = store.read_all([(ref, "attn") for ref in refs])
        next(parts)
        deadline = time.monotonic() + 10
        while len(read) < 3 and time.monotonic() < deadline:  # the one given out, and two that wait
            time.sleep(0.001)
        time.sleep(0.02)
        assert read == [ref.path for ref in refs[:3]]
        parts.close()
        assert reader_threads() == []
    assert read == [ref.path for ref in refs[:3]]


def test_a_bug_in_the_reader_is_raised_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = stored(tmp_path)[0]

    def broken(*_: object) -> memoryview:
        raise ZeroDivisionError

    monkeypatch.setattr(read_ahead, "read_part", broken)
    with ReadAhead([Wanted(ref.path, ref.key, "attn")]) as ahead, pytest.raises(ZeroDivisionError):
        ahead.take()
    assert reader_threads() == []
