"""Why what was stored is gone: a miss says it, for whatever began like it."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from llmcli.cache_store import gone
from llmcli.cache_store.keys import Fingerprint, Namespace, pack_tokens
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore
from tests.cache_store_case import (  # noqa: F401
    FACTS,
    FINGERPRINT,
    no_waiting_for_the_disk,
    open_store,
    put,
)

SYSTEM = list(range(25))
TEXT = [*SYSTEM, *range(1000, 1300)]
OTHER = [*SYSTEM, *range(3000, 3300)]
LIMITS = Policy(min_free_bytes=0, ttl_s=None, min_tokens=64, max_bytes=1 << 30)


@pytest.fixture(name="store")
def two_texts(tmp_path: Path) -> PrefixStore:
    """Two prompts that share fewer tokens than the minimum."""
    store = open_store(tmp_path / "s", LIMITS)
    put(store, OTHER)
    return store


def why(store: PrefixStore, tokens: list[int], *, exact_only: bool = True) -> str:
    return str(store.match(FINGERPRINT, tokens, exact_only=exact_only).miss_reason)


@pytest.mark.parametrize("stored", [325, 256, 200, 128, 64])
@pytest.mark.parametrize("exact_only", [True, False])
def test_a_removed_prompt_whatever_its_length(store: PrefixStore, stored: int, exact_only: bool) -> None:
    end = put(store, TEXT[:stored])[-1]
    store.keeper().name(end, "x", pin=True)
    assert store.keeper().carry_out(store.keeper().plan_rm("x"))[0] == len(range(0, stored, 256))
    assert why(store, TEXT, exact_only=exact_only) == "removed"
    asked = [*TEXT[: min(stored, 200)], 7, 8, 9]  # another question behind the same text
    assert why(store, [*asked, *asked], exact_only=exact_only) == "removed"
    assert why(store, [*TEXT[:63], *([7] * 200)], exact_only=exact_only) == "shares_too_little"
    assert why(store, [7, *TEXT], exact_only=exact_only) == "nothing_stored"
    assert store.keeper().stats().usage.removed_bytes > 0


def test_a_reader_that_may_not_write_is_told_too(store: PrefixStore, tmp_path: Path) -> None:
    end = put(store, TEXT[:200])[-1]
    store.keeper().carry_out(store.keeper().plan_rm(end.key.hex()))
    store.close()
    files = sorted(path.name for path in (tmp_path / "s" / "v1").iterdir())
    with open_store(tmp_path / "s", LIMITS, readonly=True) as reader:
        assert why(reader, TEXT) == "removed"
    assert sorted(path.name for path in (tmp_path / "s" / "v1").iterdir()) == files
    (tmp_path / "s" / "v1" / "index.sqlite").write_bytes(b"junk" * 3000)
    with open_store(tmp_path / "s", LIMITS, readonly=True) as reader:
        assert why(reader, TEXT) == "shares_too_little"
    (tmp_path / "s" / "v1" / "index.sqlite").unlink()
    (tmp_path / "s" / "v1" / "index.sqlite").mkdir()
    with open_store(tmp_path / "s", LIMITS, readonly=True) as reader:
        assert why(reader, TEXT) == "shares_too_little"


def test_pruned_by_size(store: PrefixStore) -> None:
    put(store, TEXT[:200])
    now = store.keeper().stats()
    plan = store.keeper().plan_prune(max_bytes=1)
    store.keeper().carry_out(plan)
    assert (why(store, TEXT), why(store, OTHER)) == ("removed", "removed")
    assert store.keeper().stats().usage.removed_bytes == now.stored_bytes


def test_evicted(tmp_path: Path) -> None:
    small = Policy(min_free_bytes=0, ttl_s=None, min_tokens=64, max_bytes=140_000)
    with open_store(tmp_path / "t", small, notify=lambda text: None) as store:
        first = put(store, TEXT[:200])
        os.utime(first[0].path, (1, 1))
        for number in range(40):
            store.put(FINGERPRINT, None, [number, *range(200)], {"attn": bytes(8000)})
        assert not Path(first[0].path).exists()
        assert why(store, TEXT) == "evicted"
        assert store.keeper().stats().usage.evicted_bytes > 0


def test_expired_before_and_after_the_file_goes(tmp_path: Path) -> None:
    short = Policy(min_free_bytes=0, ttl_s=100, min_tokens=64, max_bytes=1 << 30)
    with open_store(tmp_path / "t", short) as store:
        for ref in put(store, TEXT[:200]):
            os.utime(ref.path, (time.time() - 200,) * 2)
            path = Path(ref.path)
        assert why(store, TEXT) == "expired"
        assert why(store, OTHER) == "nothing_stored"  # what is too old shares 25 tokens with it, too few to matter
        store.flush()
        with store._context.index.writing() as connection:
            assert connection is not None
            connection.execute("UPDATE blocks SET used_s = used_s - 200")
        store.flush()
        assert not path.exists()
        assert why(store, TEXT) == "expired"


def test_what_is_stored_again_is_not_gone(store: PrefixStore) -> None:
    for _ in range(2):
        end = put(store, TEXT[:200])[-1]
        plan = store.keeper().plan_rm(end.key.hex())
        store.keeper().carry_out(plan)
    put(store, TEXT[:200])
    with store._context.index.reading() as connection:
        assert connection is not None
        assert connection.execute("SELECT count(*) FROM gone").fetchone() == (0,)


def test_other_tenants_and_models_see_nothing_of_it(store: PrefixStore, tmp_path: Path) -> None:
    end = put(store, TEXT[:200])[-1]
    store.keeper().carry_out(store.keeper().plan_rm(end.key.hex()))
    store.close()
    with open_store(tmp_path / "s", LIMITS, salt="other") as other:
        assert why(other, TEXT) == "nothing_stored"
        found = other.match(Fingerprint.of({**FACTS, "model": "n" * 64}), TEXT)
        assert found.miss_reason == "nothing_stored"


def test_no_token_outlives_its_block(store: PrefixStore, tmp_path: Path) -> None:
    secret = [*range(70_000, 70_200)]
    end = put(store, secret)[-1]
    store.keeper().carry_out(store.keeper().plan_rm(end.key.hex()))
    with store._context.index.reading() as connection:
        assert connection is not None
        rows = connection.execute("SELECT * FROM gone").fetchall()
    assert len(rows) == 4
    assert all(len(key) == 32 and isinstance(gone_s, float) for key, _, gone_s in rows)


def test_the_oldest_marks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone, "MAX_MARKS", 20)
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE gone (key BLOB PRIMARY KEY, reason TEXT NOT NULL, gone_s REAL NOT NULL)")
    namespace = Namespace.of(FINGERPRINT, "")
    for number in range(9):
        tokens = pack_tokens([number] * 130)
        gone.remember(
            connection, namespace, namespace.root, 0, tokens, exact=True, reason="evicted", now_s=float(number)
        )
    gone.trim(connection)

    def reason(number: int) -> str | None:
        parents = [(namespace.root, 0)]
        prompt = pack_tokens([number] * 130)
        return gone.reason_of(connection, namespace, parents, prompt, exact_only=True, min_tokens=64)

    assert connection.execute("SELECT count(*) FROM gone").fetchone() == (10,)
    assert (reason(0), reason(8)) == (None, "evicted")
    connection.close()


def test_marks_count_from_the_start_of_the_prompt() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE gone (key BLOB PRIMARY KEY, reason TEXT NOT NULL, gone_s REAL NOT NULL)")
    namespace = Namespace.of(FINGERPRINT, "")
    tokens = pack_tokens(list(range(100)))
    gone.remember(connection, namespace, namespace.root, 30, tokens, exact=True, reason="x", now_s=1.0)
    found = connection.execute("SELECT count(*) FROM gone").fetchone()
    assert found == (3,)  # at 64, at 128, and its own end at 130
    gone.forget(connection, namespace, namespace.root, 30, tokens, exact=True)
    assert connection.execute("SELECT count(*) FROM gone").fetchone() == (0,)
    connection.close()
