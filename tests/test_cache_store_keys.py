from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.cache_store.keys import (
    Fingerprint,
    Namespace,
    common_tokens,
    pack_tokens,
    salt_digest,
    sortable,
    unpack_tokens,
)

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=40)
NAMESPACE = Namespace(b"f" * 32, b"s" * 32)


def by_hand(*fields: bytes) -> bytes:
    fields = (b"llmcli prefix store", struct.pack("<I", 1), *fields)
    return hashlib.sha256(b"".join(struct.pack("<I", len(field)) + field for field in fields)).digest()


def test_keys_are_what_the_format_says() -> None:
    root = by_hand(b"root", b"f" * 32, b"s" * 32)
    assert NAMESPACE.root == root
    tokens = struct.pack("<3i", 1, 2, 70_000)
    assert pack_tokens([1, 2, 70_000]) == tokens
    assert NAMESPACE.key(NAMESPACE.root, tokens, exact=True) == by_hand(
        b"block", b"f" * 32, b"s" * 32, root, b"\1", tokens
    )
    assert salt_digest("") == by_hand(b"salt", b"")
    assert Fingerprint.of({"b": 1, "a": "x"}).digest == by_hand(b"fingerprint", b'{"a":"x","b":1}')


def test_every_input_changes_the_key() -> None:
    tokens = pack_tokens([1, 2])
    other_parent = NAMESPACE.key(NAMESPACE.root, tokens, exact=True)
    keys = {
        NAMESPACE.key(NAMESPACE.root, tokens, exact=True),
        NAMESPACE.key(NAMESPACE.root, tokens, exact=False),
        NAMESPACE.key(NAMESPACE.root, pack_tokens([1, 3]), exact=True),
        NAMESPACE.key(NAMESPACE.root, pack_tokens([1]), exact=True),
        NAMESPACE.key(other_parent, tokens, exact=True),
        Namespace(b"g" * 32, b"s" * 32).key(NAMESPACE.root, tokens, exact=True),
        Namespace(b"f" * 32, b"t" * 32).key(NAMESPACE.root, tokens, exact=True),
    }
    assert len(keys) == 7


def test_fingerprint_order_does_not_matter_and_differences_are_named() -> None:
    one, two = Fingerprint.of({"a": 1, "b": 2.5}), Fingerprint.of({"b": 2.5, "a": 1})
    assert one.digest == two.digest
    assert one.differences(Fingerprint.of({"a": 2, "c": None, "d": "x"})) == (
        ("a", 1, 2),
        ("b", 2.5, None),
        ("d", None, "x"),
    )
    with pytest.raises(ValueError, match="JSON"):
        Fingerprint.of({"a": float("nan")})


@given(IDS)
def test_packing_round_trip(ids: list[int]) -> None:
    assert unpack_tokens(pack_tokens(ids)) == tuple(ids)


def test_packing_refuses_what_does_not_fit() -> None:
    with pytest.raises(OverflowError):
        pack_tokens([2**31])


@given(IDS, IDS, IDS)
def test_common_tokens_counts_like_a_loop(shared: list[int], one: list[int], two: list[int]) -> None:
    left, right = shared + one, shared + two
    expected = next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    assert common_tokens(pack_tokens(left), pack_tokens(right)) == expected


@given(IDS, IDS)
def test_sortable_orders_like_the_ids(one: list[int], two: list[int]) -> None:
    assert (sortable(pack_tokens(one)) < sortable(pack_tokens(two))) == (one < two)
