from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from llmcli.cache_store import save
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.save import Stored
from tests.cache_store_case import (  # noqa: F401
    FINGERPRINT,
    Told,
    assert_right,
    block_files,
    no_waiting_for_the_disk,
    open_store,
    parts_for,
    put,
    temp_files,
)

TOKENS = list(range(100))


def total_bytes(root: Path) -> int:
    return sum(file.stat().st_size for file in block_files(root))


def test_put_is_idempotent(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        one = store.put(FINGERPRINT, None, TOKENS, parts_for(TOKENS, 0))
        two = store.put(FINGERPRINT, None, TOKENS, parts_for(TOKENS, 0))
    assert one.ref == two.ref
    assert (two.written_bytes, two.refused) == (0, None)
    (file,) = block_files(tmp_path / "s")
    assert one.written_bytes == file.stat().st_size
    assert one.written_bytes - sum(map(len, parts_for(TOKENS, 0).values())) <= 800


def test_a_part_that_was_missing_is_added(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        (plain,) = put(store, TOKENS)
        stored = store.put(FINGERPRINT, None, TOKENS, {"state": b"snapshot"})
        assert stored.ref is not None
        assert stored.ref.key == plain.key
        assert set(stored.ref.part_bytes) == {"attn", "window", "state"}
        assert bytes(store.read(stored.ref, "state")) == b"snapshot"
        assert_right(store, [stored.ref])
        (entry,) = store.keeper().entries()
        assert entry.chain_bytes == total_bytes(tmp_path / "s")
        assert store.keeper().stats().stored_bytes == total_bytes(tmp_path / "s")


def test_a_damaged_copy_is_replaced(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        (ref,) = put(store, TOKENS)
        Path(ref.path).write_bytes(b"junk")
        put(store, TOKENS)
        assert_right(store, [ref])
    assert len(block_files(tmp_path / "s")) == 1


@pytest.mark.parametrize("at", [-1, -100])
def test_a_copy_whose_parts_are_damaged_is_replaced(tmp_path: Path, at: int) -> None:
    """Its header is sound, so that a look-up finds it; whoever computed it again can put it right."""
    with open_store(tmp_path / "s") as store:
        put(store, TOKENS)
        (file,) = block_files(tmp_path / "s")
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)
        assert store.put(FINGERPRINT, None, TOKENS, parts_for(TOKENS, 0)).written_bytes == len(data)
        assert_right(store, store.match(FINGERPRINT, TOKENS).blocks)
        longer = {name: part + b"x" for name, part in parts_for(TOKENS, 0).items()}
        assert store.put(FINGERPRINT, None, TOKENS, longer).written_bytes > len(data)  # another size is no copy


def test_a_block_folder_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    told, outside = Told(), tmp_path / "outside"
    outside.mkdir()
    with open_store(tmp_path / "s", notify=told) as store:
        put(store, TOKENS)
        (file,) = block_files(tmp_path / "s")
        file.unlink()
        file.parent.rmdir()
        file.parent.symlink_to(outside)
        assert store.put(FINGERPRINT, None, TOKENS, parts_for(TOKENS, 0)).refused == "cannot write"
    assert (len(told), list(outside.iterdir())) == (1, [])


def test_a_chain_goes_on_behind_a_tail_that_another_process_saved_longer_meanwhile(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as one, open_store(tmp_path / "s") as other:
        tail = put(one, TOKENS[:50])[-1]
        longer = put(other, TOKENS[:80])[-1]
        end = put(one, TOKENS[50:], after=tail)[-1]
        assert [ref.key for ref in one.match(FINGERPRINT, TOKENS).blocks] == [tail.key, end.key]
        assert [ref.key for ref in one.match(FINGERPRINT, TOKENS[:80]).blocks] == [longer.key]  # rather whole than cut
        assert_right(one, [tail, longer, end])


def test_the_budget_holds_and_the_oldest_ends_go(tmp_path: Path) -> None:
    budget = 3_000_000
    policy = Policy(max_bytes=budget, min_free_bytes=0, ttl_s=None, min_tokens=1)
    with open_store(tmp_path / "s", policy) as store:
        for number in range(60):
            parent = None
            for start in (0, 256):
                tokens = [number, *range(start, start + 240)]
                parent = store.put(FINGERPRINT, parent, tokens, {"attn": bytes(50_000)}).ref
                index_bytes = sum(file.stat().st_size for file in (tmp_path / "s" / "v1").glob("index.sqlite*"))
                assert total_bytes(tmp_path / "s") + index_bytes <= budget + 200_000  # what this put adds to the index
        assert total_bytes(tmp_path / "s") > budget / 2
        assert store.match(FINGERPRINT, [59, *range(240)]).matched_tokens == 241
        missed = store.match(FINGERPRINT, [0, *range(240)])
        assert missed.matched_tokens == 0
        assert missed.miss_reason == "evicted"
        usage = store.keeper().stats().usage
        assert usage.evicted_bytes > 100_000
        assert store.keeper().verify(repair=False).problems == ()


def test_a_chain_longer_than_the_budget_keeps_its_beginning(tmp_path: Path) -> None:
    told = Told()
    policy = Policy(max_bytes=300_000, min_free_bytes=0, min_tokens=1)
    with open_store(tmp_path / "s", policy, notify=told) as store:
        parent, kept = None, 0
        for start in range(0, 256 * 50, 256):
            tokens = list(range(start, start + 256))
            stored = store.put(FINGERPRINT, parent, tokens, parts_for(tokens, start))
            if stored.ref is None:
                assert stored.refused == "over the budget"
                break
            parent, kept = stored.ref, kept + 1
        assert 5 < kept < 50
        assert store.match(FINGERPRINT, list(range(256 * 50))).matched_tokens == 256 * kept
    assert told == ["the prefix store kept less than it could: over the budget"]


def test_too_little_free_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [10_000_000]
    monkeypatch.setattr(save, "free_bytes", lambda folder: free[0])
    told = Told()
    policy = Policy(max_bytes=1 << 40, min_free_bytes=1_000_000, min_tokens=1)
    with open_store(tmp_path / "s", policy, notify=told) as store:
        put(store, TOKENS)
        free[0] = 1_000_000
        put(store, TOKENS[1:])  # the older one makes way
        assert len(block_files(tmp_path / "s")) == 1
        free[0] = 10
        assert store.put(FINGERPRINT, None, [1], {"attn": b""}) == Stored(None, 0, "the disk is nearly full")
        assert len(block_files(tmp_path / "s")) == 1  # what cannot help is not thrown away
    assert told == ["the prefix store kept less than it could: the disk is nearly full"]


def test_other_formats_count_and_stay(tmp_path: Path) -> None:
    (tmp_path / "s" / "v2").mkdir(parents=True)
    (tmp_path / "s" / "v2" / "theirs").write_bytes(b"x" * 290_000)
    told = Told()
    policy = Policy(max_bytes=300_000, min_free_bytes=0, min_tokens=1)
    with open_store(tmp_path / "s", policy, notify=told) as store:
        assert store.put(FINGERPRINT, None, TOKENS, {"attn": b"x" * 11_000}).refused == "over the budget"
    assert (tmp_path / "s" / "v2" / "theirs").stat().st_size == 290_000


def test_a_parent_that_went_refuses_the_child(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        (parent,) = put(store, TOKENS)
        Path(parent.path).unlink()
        stored = store.put(FINGERPRINT, parent, [1], {"attn": b"x"})
        assert stored == Stored(None, 0, "its beginning is gone")
    assert block_files(tmp_path / "s") == []
    assert temp_files(tmp_path / "s") == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_refuses_gives_one_warning_and_no_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    told = Told()
    store = open_store(tmp_path / "s", notify=told)
    put(store, TOKENS)
    left = [1]

    def failing(handle: int, some: list[memoryview]) -> int:
        if left[0]:
            left[0] -= 1
            return os.write(handle, some[0][:10])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "writev", failing)
    assert store.put(FINGERPRINT, None, [1, 2], {"attn": b"x" * 1000}).refused == "cannot write"
    assert store.put(FINGERPRINT, None, [3, 4], {"attn": b"x" * 1000}).refused == "readonly"
    monkeypatch.undo()
    assert store.mode == "readonly"
    assert store.match(FINGERPRINT, TOKENS).matched_tokens == 100
    store.close()
    assert told == [f"the prefix store cannot be written ({os.strerror(code)}); nothing more is saved"]
    assert temp_files(tmp_path / "s") == []
    assert len(block_files(tmp_path / "s")) == 1


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    told = Told()
    store = open_store(tmp_path / "s", notify=told)
    put(store, TOKENS)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, old[1]))
    try:
        assert store.put(FINGERPRINT, None, [1, 2], {"attn": b"x" * 300_000}).refused == "cannot write"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    store.close()
    assert len(told) == 1
    assert temp_files(tmp_path / "s") == []


def test_what_the_format_cannot_hold_is_the_callers_mistake(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        for tokens in ([], list(range(257))):
            with pytest.raises(ValueError, match="a block of"):
                store.put(FINGERPRINT, None, tokens, {"attn": b"x"})
        with pytest.raises(OverflowError):
            store.put(FINGERPRINT, None, [2**40], {"attn": b"x"})
    assert temp_files(tmp_path / "s") == []


def test_sixty_four_new_tokens_write_only_their_own_bytes(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        tokens = list(range(4000))
        last = put(store, tokens)[-1]
        before = total_bytes(tmp_path / "s")
        stored = store.put(FINGERPRINT, last, list(range(64)), {"attn": b"x" * 64 * 2000})
        assert stored.written_bytes == total_bytes(tmp_path / "s") - before
        assert stored.written_bytes <= 1.02 * 64 * 2000


def test_a_shared_beginning_is_stored_once(tmp_path: Path) -> None:
    per_token, shared = 2000, list(range(2048))
    with open_store(tmp_path / "s") as store:
        for question in range(8):
            prompt = [*shared, *range(10_000 * (question + 1), 10_000 * (question + 1) + 64)]
            found = store.match(FINGERPRINT, prompt)
            parent = found.whole_blocks[-1] if found.whole_blocks else None
            for start in range(parent.end_tokens if parent else 0, 2112, 256):
                piece = prompt[start : start + 256]
                parent = store.put(FINGERPRINT, parent, piece, {"attn": b"x" * per_token * len(piece)}).ref
        dedupe = store.keeper().stats().dedupe_ratio
    assert total_bytes(tmp_path / "s") <= 1.10 * 2560 * per_token
    assert 6.5 < dedupe < 8
