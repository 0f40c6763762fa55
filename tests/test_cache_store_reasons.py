from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from llmcli.cache_store.keys import Fingerprint, Scalar
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.reasons import MissReason, other_reason, shares_too_little, too_short
from llmcli.cache_store.store import PrefixStore
from tests.cache_store_case import (  # noqa: F401
    FACTS,
    FINGERPRINT,
    Told,
    no_waiting_for_the_disk,
    open_store,
    put,
)

TOKENS = list(range(600))


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    store = open_store(tmp_path / "s", Policy(min_free_bytes=0, ttl_s=100, min_tokens=64, max_bytes=1 << 30))
    put(store, TOKENS)
    return store


def why(store: PrefixStore, tokens: list[int], **changes: Scalar) -> tuple[str, str]:
    found = store.match(Fingerprint.of({**FACTS, **changes}), tokens)
    assert found.miss_reason is not None
    return str(found.miss_reason), found.miss_detail


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"type_k": "q8_0"}, ("other_kv_type", "type_k: stored f16, now q8_0")),
        ({"build": "b2"}, ("other_build", "build: stored b1, now b2")),
        ({"model": "n" * 64}, ("other_model", "model: stored mmmmmmmmmmmm…, now nnnnnnnnnnnn…")),
        ({"flash_attn": False}, ("other_settings", "flash_attn: stored True, now False")),
        ({"lora": "x"}, ("other_settings", "lora: stored nothing, now x")),
        ({"type_v": "q8_0", "build": "b2"}, ("other_build", "build: stored b1, now b2; type_v: stored f16, now q8_0")),
        (
            {"a_digest": "d" * 64, "type_v": "q8_0"},
            ("other_kv_type", "type_v: stored f16, now q8_0; a_digest: stored nothing, now dddddddddddd…"),
        ),
    ],
)
def test_the_same_tokens_under_another_fingerprint(
    store: PrefixStore, changes: dict[str, Scalar], expected: tuple[str, str]
) -> None:
    assert why(store, TOKENS, **changes) == expected
    assert why(store, TOKENS[:200], **changes) == expected
    assert why(store, [7000, *TOKENS], **changes) == ("nothing_stored", "")


def test_the_nearest_other_fingerprint_is_named(store: PrefixStore) -> None:
    put(store, TOKENS, fingerprint=Fingerprint.of({**FACTS, "type_k": "q8_0", "build": "b0"}))
    assert why(store, TOKENS, type_k="q8_0", build="b2") == ("other_build", "build: stored b0, now b2")


def test_short_and_unknown_prompts(store: PrefixStore) -> None:
    assert why(store, TOKENS[:63]) == ("too_short", "63 tokens, the minimum is 64")
    assert why(store, list(range(5000, 5600))) == ("nothing_stored", "")


def test_a_short_common_run_is_a_miss_with_a_difference(store: PrefixStore) -> None:
    found = store.match(FINGERPRINT, [*TOKENS[:10], *([9] * 300)])
    assert (found.matched_tokens, found.miss_reason) == (10, "shares_too_little")
    assert found.miss_detail == "10 tokens with what is stored, the minimum is 64"
    assert found.difference is not None
    assert found.difference.position_tokens == 10


def test_what_cannot_be_restored_as_asked_is_told_apart(store: PrefixStore) -> None:
    put(store, list(range(2000, 2200)), exact=False)
    asked = [*range(2000, 2150), *([9] * 300)]
    assert why(store, asked) == (
        "shares_too_little",
        "150 tokens with what is stored, of which 0 may be restored, the minimum is 64",
    )


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (too_short(1, 64), "1 token, the minimum is 64"),
        (too_short(64, 64), "64 tokens, the last of which is always computed, the minimum is 64"),
        (shares_too_little(25, 64), "25 tokens with what is stored, the minimum is 64"),
        (shares_too_little(25, 64, usable=25), "25 tokens with what is stored, the minimum is 64"),
    ],
)
def test_sentences(sentence: str, expected: str) -> None:
    assert sentence == expected


def test_damaged(store: PrefixStore, tmp_path: Path) -> None:
    told = Told()
    store.close()
    store = open_store(tmp_path / "s", notify=told)
    (first, *_) = store.match(FINGERPRINT, TOKENS).blocks
    Path(first.path).write_bytes(b"junk")
    reason, detail = why(store, TOKENS)
    assert reason == "damaged"
    assert detail.endswith("not a block file")
    assert not Path(first.path).exists()
    store.flush()
    assert why(store, TOKENS)[0] == "damaged"  # remembered
    assert len(told) == 1


def test_expired(store: PrefixStore) -> None:
    for ref in store.match(FINGERPRINT, TOKENS).blocks:
        old = time.time() - 200
        os.utime(ref.path, (old, old))
    assert why(store, TOKENS)[0] == "expired"


def test_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    told = Told()
    with PrefixStore.open(tmp_path / "file", Policy(), notify=told) as store:
        assert store.match(FINGERPRINT, TOKENS).miss_reason is MissReason.OFF


def test_hostile_descriptions_are_shown_escaped() -> None:
    stored = Fingerprint.of({"model": "\x1b[31m"})
    assert other_reason(stored, Fingerprint.of({"model": None})) == (
        MissReason.OTHER_MODEL,
        "model: stored \\x1b[31m, now nothing",
    )
