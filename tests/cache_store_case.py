"""What the tests of the prefix store share: one fingerprint, small blocks whose bytes follow from their tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmcli.cache_store.keys import BLOCK_TOKENS, Fingerprint, Scalar, pack_tokens
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore

FACTS: dict[str, Scalar] = {"model": "m" * 64, "build": "b1", "type_k": "f16", "type_v": "f16", "flash_attn": True}
FINGERPRINT = Fingerprint.of(FACTS)
POLICY = Policy(max_bytes=1 << 30, min_free_bytes=0, ttl_s=None, min_tokens=1)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import this into a test file that saves many blocks: fsync changes nothing that a test can see."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


class Told(list[str]):
    """Collects warnings."""

    def __call__(self, text: str) -> None:
        self.append(text)


def open_store(root: Path, policy: Policy = POLICY, **options: object) -> PrefixStore:
    """A store whose warnings fail the test unless it passes its own `notify`."""
    options.setdefault("notify", _unexpected)
    return PrefixStore.open(root, policy, **options)  # type: ignore[arg-type]


def _unexpected(text: str) -> None:
    raise AssertionError(f"unexpected warning: {text}")


def parts_for(tokens: Sequence[int], start: int) -> dict[str, bytes]:
    """Parts that only these tokens at this position have."""
    packed = start.to_bytes(4, "little") + pack_tokens(tokens)
    return {"attn": packed * 3, "window": packed[::-1]}


def put(
    store: PrefixStore,
    tokens: Sequence[int],
    *,
    cuts: Sequence[int] = (),
    fingerprint: Fingerprint = FINGERPRINT,
    after: BlockRef | None = None,
    state: bool = False,
    exact: bool = True,
    preview: str = "",
) -> list[BlockRef]:
    """Store `tokens` behind `after`, cut at `cuts` and every 256 tokens; all must be kept."""
    refs, parent, start = list[BlockRef](), after, 0
    ends = sorted({*cuts, *range(BLOCK_TOKENS, len(tokens), BLOCK_TOKENS), len(tokens)})
    for end in ends:
        piece = tokens[start:end]
        parts = parts_for(piece, parent.end_tokens if parent else 0)
        if state and end == len(tokens):
            parts["state"] = b"state" * 10
        stored = store.put(fingerprint, parent, piece, parts, exact=exact, preview=preview)
        assert stored.ref is not None, stored.refused
        parent, start = stored.ref, end
        refs.append(stored.ref)
    return refs


def assert_right(store: PrefixStore, refs: Sequence[BlockRef]) -> None:
    """Every part of these blocks is what was put for their tokens."""
    for ref in refs:
        for name, data in parts_for(ref.token_ids, ref.start_tokens).items():
            assert bytes(store.read(ref, name)) == data


def block_files(root: Path) -> list[Path]:
    """All block files."""
    return sorted((root / "v1" / "blocks").rglob("*.kv"))


def temp_files(root: Path) -> list[Path]:
    """All temp files."""
    return sorted(root.rglob(".tmp-*"))
