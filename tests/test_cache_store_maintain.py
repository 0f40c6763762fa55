from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmcli.cache_store import chain, index_file, maintain
from llmcli.cache_store.block_format import BlockHeader
from llmcli.cache_store.context import Context
from llmcli.cache_store.index import Index
from llmcli.cache_store.keys import Key
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.store import PrefixStore
from tests.cache_store_case import (  # noqa: F401
    FINGERPRINT,
    assert_right,
    block_files,
    no_waiting_for_the_disk,
    open_store,
    put,
    temp_files,
)

TOKENS = list(range(900))


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    store = open_store(tmp_path / "s")
    put(store, TOKENS)
    return store


def problems(store: PrefixStore, *, repair: bool = False) -> list[tuple[str, bool]]:
    return [(problem.what, problem.removed) for problem in store.keeper().verify(repair=repair).problems]


def test_a_sound_store(store: PrefixStore, tmp_path: Path) -> None:
    seen: list[int] = []
    verified = store.keeper().verify(repair=False, on_bytes=seen.append)
    total = sum(file.stat().st_size for file in block_files(tmp_path / "s"))
    assert (verified.blocks, verified.nbytes, verified.problems) == (4, total, ())
    assert seen[-1] == total
    assert len(seen) == 4


def test_damage_in_the_middle_is_found_and_repair_takes_what_hangs_on_it(store: PrefixStore, tmp_path: Path) -> None:
    second = Path(store.match(FINGERPRINT, TOKENS).blocks[1].path)
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    assert problems(store) == [("a part's checksum does not match", False)]
    assert len(block_files(tmp_path / "s")) == 4
    assert problems(store, repair=True) == [
        ("a part's checksum does not match", True),
        ("its beginning is gone", True),
        ("its beginning is gone", True),
    ]
    assert problems(store) == []
    assert store.keeper().stats().blocks == len(block_files(tmp_path / "s")) == 1
    assert store.match(FINGERPRINT, TOKENS).matched_tokens == 256


def test_what_is_not_a_block_is_reported_and_left(store: PrefixStore, tmp_path: Path) -> None:
    blocks = tmp_path / "s" / "v1" / "blocks"
    one = block_files(tmp_path / "s")[0]
    (one.parent / "notes.txt").write_text("mine")
    (blocks / "stray").write_text("x")
    (blocks / "11").mkdir(exist_ok=True)
    os.mkfifo(blocks / "11" / f"{'1' * 64}-{'2' * 64}.kv")
    assert sorted(problems(store, repair=True)) == [
        ("cannot be read: not a regular file", False),
        ("not a block file", False),
        ("not a block file", False),
    ]
    assert (one.parent / "notes.txt").exists()


def test_misplaced_swapped_and_foreign_blocks(store: PrefixStore, tmp_path: Path) -> None:
    refs = store.match(FINGERPRINT, TOKENS).blocks
    one, two = Path(refs[0].path), Path(refs[1].path)
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    elsewhere = tmp_path / "s" / "v1" / "blocks" / "zz"
    elsewhere.mkdir()
    (elsewhere / one.name).write_bytes(data)
    newer = bytearray(Path(refs[2].path).read_bytes())
    newer[8] = 9
    Path(refs[2].path).write_bytes(newer)
    words = [what for what, _ in problems(store, repair=True)]
    assert sorted(words) == sorted(
        [
            "holds another block",
            "holds another block",
            "in the wrong folder",
            "format 9, this llmcli reads 1",
            "its beginning is gone",
        ]
    )
    assert block_files(tmp_path / "s") == []


def test_temp_files_of_the_living_are_left(store: PrefixStore, tmp_path: Path) -> None:
    folder = block_files(tmp_path / "s")[0].parent
    mine = store._context.writer.temp_path(folder)
    mine.touch()
    (folder / ".tmp-dead-1-0").touch()
    assert problems(store) == [("left by a process that was ended", False)]
    assert problems(store, repair=True) == [("left by a process that was ended", True)]
    assert temp_files(tmp_path / "s") == [mine]


def test_repair_brings_the_index_in_line(store: PrefixStore, tmp_path: Path) -> None:
    refs = put(store, [5, 5])
    store.flush()
    with store._context.index.writing() as connection:
        assert connection is not None
        connection.execute("DELETE FROM blocks WHERE n_tokens = 256")
    Path(refs[0].path).unlink()
    verified = store.keeper().verify(repair=True)
    assert (verified.index_added, verified.index_dropped, verified.problems) == (3, 1, ())
    assert store.keeper().stats().stored_bytes == sum(file.stat().st_size for file in block_files(tmp_path / "s"))
    assert_right(store, store.match(FINGERPRINT, TOKENS).blocks)


@pytest.mark.parametrize("repair", [False, True])
def test_a_chain_that_others_remove_and_save_again_meanwhile_is_whole(
    store: PrefixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, repair: bool
) -> None:
    monkeypatch.setitem(index_file._OPTIONS, "timeout", 0.05)  # what the other may not do is not waited for
    headers, climb, tried = Context.headers, chain.climb, list[int]()
    end = store.match(FINGERPRINT, TOKENS).blocks[-1].key.hex()

    def before_the_first_was_saved(context: Context) -> Iterator[tuple[BlockHeader, float]]:
        yield from (found for found in headers(context) if found[0].start_tokens)

    def while_they_go_and_come(layout: Layout, key: Key, parent: Key) -> list[BlockRef] | None:
        with open_store(tmp_path / "s") as other:
            keeper = other.keeper()
            tried.append(keeper.carry_out(keeper.plan_rm(end))[0])
            found = climb(layout, key, parent)
            put(other, TOKENS)
        return found

    monkeypatch.setattr(Context, "headers", before_the_first_was_saved)
    monkeypatch.setattr(maintain, "climb", while_they_go_and_come)
    assert problems(store, repair=repair) == []
    assert set(tried) == {0}
    monkeypatch.undo()
    assert [path.exists() for path in block_files(tmp_path / "s")] == [True] * 4
    assert problems(store) == []


def test_damage_that_is_mended_before_it_is_removed_stays(
    store: PrefixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(store.match(FINGERPRINT, TOKENS).blocks[0].path)
    good = first.read_bytes()
    first.write_bytes(good[:-1])

    @contextlib.contextmanager
    def after_the_other(index: Index) -> Iterator[object]:
        """The other process had its turn while this one waited for the lock."""
        first.write_bytes(good)
        with writing(index) as connection:
            yield connection

    writing = Index.writing
    monkeypatch.setattr(Index, "writing", after_the_other)
    assert problems(store, repair=True) == []
    assert len(block_files(tmp_path / "s")) == 4
