from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore
from tests.cache_store_case import (  # noqa: F401
    FINGERPRINT,
    assert_right,
    block_files,
    no_waiting_for_the_disk,
    open_store,
    put,
)

TOKENS = list(range(600))


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return open_store(tmp_path / "s")


def test_names_and_keys_find_chains(store: PrefixStore) -> None:
    refs = put(store, TOKENS, preview="The contract")
    keeper = store.keeper()
    keeper.name(refs[1], "half", pin=True)
    assert keeper.chain("half") == tuple(refs[:2])
    assert keeper.chain(refs[2].key.hex()[:12]) == tuple(refs)
    assert keeper.chain(refs[2].key.hex().upper()) == tuple(refs)
    for unknown in ("nothing", "00", "zzzz", "", "f" * 65, "\x1b"):
        with pytest.raises(LlmcliError, match="no stored prefix is called") as caught:
            keeper.find(unknown)
        assert caught.value.hint == "llmcli cache ls"
    assert [name.name for name in keeper.names()] == ["half"]
    assert keeper.unname("half")
    with pytest.raises(LlmcliError):
        keeper.chain("half")


def test_an_ambiguous_key_is_refused(store: PrefixStore) -> None:
    many = [put(store, [n])[0] for n in range(700)]
    starts = [ref.key.hex()[:4] for ref in many]
    twice = next((start for start in starts if starts.count(start) > 1), None)
    if twice is None:
        pytest.fail("700 keys without a common start of 4 digits: the birthday paradox failed")
    with pytest.raises(LlmcliError, match="more than one stored prefix starts with"):
        store.keeper().find(twice)


def test_a_name_outlives_the_index_and_tells_when_its_blocks_are_gone(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        refs = put(store, TOKENS)
        store.keeper().name(refs[-1], "doc", pin=True)
    for file in (tmp_path / "s" / "v1").glob("index*"):
        file.unlink()
    with open_store(tmp_path / "s") as store:
        assert_right(store, store.keeper().chain("doc"))
        (entry,) = store.keeper().entries()
        assert (entry.names, entry.pinned, entry.tokens, entry.blocks) == (("doc",), True, 600, 3)
        Path(refs[0].path).unlink()
        with pytest.raises(LlmcliError, match="no longer whole"):
            store.keeper().chain("doc")
        assert store.keeper().end("doc") == refs[-1]
        Path(refs[-1].path).unlink()
        with pytest.raises(LlmcliError, match="no longer there"):
            store.keeper().end("doc")


def test_rm_frees_what_was_announced_and_never_shared_blocks(store: PrefixStore, tmp_path: Path) -> None:
    shared = put(store, TOKENS[:512])
    one = put(store, [1, 2, 3], after=shared[-1])
    two = put(store, [4, 5, 6], after=shared[-1])
    keeper = store.keeper()
    keeper.name(one[-1], "one", pin=True)
    plan = keeper.plan_rm("one")
    assert (plan.nbytes, plan.names) == (one[0].file_bytes, ("one",))
    assert len(block_files(tmp_path / "s")) == 4  # a plan removes nothing
    assert keeper.carry_out(plan) == (1, one[0].file_bytes)
    assert keeper.names() == []
    found = store.match(FINGERPRINT, [*TOKENS[:512], 4, 5, 6])
    assert found.matched_tokens == 515
    assert_right(store, found.blocks)
    plan = keeper.plan_rm(two[-1].key.hex())
    assert plan.nbytes == sum(ref.file_bytes for ref in (*shared, *two))
    assert keeper.carry_out(plan)[0] == 3
    assert block_files(tmp_path / "s") == []
    assert keeper.stats().stored_bytes == 0


def test_a_plan_that_is_no_longer_true_removes_less(store: PrefixStore, tmp_path: Path) -> None:
    refs = put(store, TOKENS)
    plan = store.keeper().plan_rm(refs[-1].key.hex())
    put(store, [7], after=refs[1])
    assert store.keeper().carry_out(plan)[0] == 1
    assert store.match(FINGERPRINT, [*TOKENS[:512], 7]).matched_tokens == 513


def test_prune_by_policy_and_by_size(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        put(store, TOKENS)
        last = put(store, [9, 9])
    policy = Policy(max_bytes=last[0].file_bytes, min_free_bytes=0, ttl_s=None, min_tokens=1)
    with open_store(tmp_path / "s", policy) as store:
        plan = store.keeper().plan_prune()
        assert len(plan.blocks) == 3
        assert plan.kept_bytes == last[0].file_bytes
        store.keeper().carry_out(plan)
        assert store.match(FINGERPRINT, TOKENS).miss_reason == "removed"
        assert store.match(FINGERPRINT, [9, 9]).matched_tokens == 2
        assert store.keeper().plan_prune().blocks == ()
        assert len(store.keeper().plan_prune(fingerprints=frozenset({FINGERPRINT.digest})).blocks) == 1


def test_stats(store: PrefixStore) -> None:
    put(store, TOKENS)
    found = store.match(FINGERPRINT, TOKENS)
    store.used(found.blocks, hit_tokens=512, miss_tokens=88, saved_s=1.5, read_bytes=1000)
    store.used((), hit_tokens=0, miss_tokens=400, saved_s=0.0, read_bytes=0)
    stats = store.keeper().stats()
    usage = stats.usage
    assert (stats.entries, stats.blocks, stats.pinned, stats.dedupe_ratio) == (1, 3, 0, 1.0)
    assert stats.stored_bytes == usage.written_bytes
    assert (usage.lookups, usage.hits, usage.hit_tokens, usage.miss_tokens) == (2, 1, 512, 488)
    assert (usage.saved_s, usage.read_bytes, usage.hit_rate) == (1.5, 1000, 0.512)
    assert stats.budget_bytes == 1 << 30
    (entry,) = store.keeper().entries()
    assert entry.hits == 1


def test_clear_removes_all_of_this_format(store: PrefixStore, tmp_path: Path) -> None:
    refs = put(store, TOKENS)
    store.keeper().name(refs[0], "a", pin=True)
    (tmp_path / "s" / "v2").mkdir()
    assert store.keeper().clear() == (3, sum(ref.file_bytes for ref in refs))
    assert block_files(tmp_path / "s") == []
    assert (store.keeper().names(), store.keeper().fingerprints()) == ([], [])
    assert (tmp_path / "s" / "v2").exists()
    put(store, TOKENS)
    assert store.keeper().fingerprints() == [FINGERPRINT]
    assert store.keeper().stats().blocks == 3


def test_a_readonly_store_lists_and_refuses_changes(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        refs = put(store, TOKENS)
    before = sorted(tmp_path.rglob("*"))
    with open_store(tmp_path / "s", readonly=True) as store:
        keeper = store.keeper()
        assert [entry.tokens for entry in keeper.entries()] == [600]
        assert keeper.verify(repair=True).problems == ()
        plan = keeper.plan_rm(refs[-1].key.hex())
        for change in (
            lambda: keeper.name(refs[0], "x", pin=True),
            lambda: keeper.unname("x"),
            lambda: keeper.carry_out(plan),
            keeper.clear,
        ):
            with pytest.raises(UsageError, match="read-only"):
                change()
    assert sorted(tmp_path.rglob("*")) == before
