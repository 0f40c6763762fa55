"""What the tests of the prefix store's seat in the engine share: prompts, and a run with the store and without it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.settings import load
from llmcli.cache_store.policy import Policy
from llmcli.engine.engine import Engine
from llmcli.engine.prefix import PrefixCache, open_prefix_cache
from llmcli.engine.prefix_report import CacheOptions, CacheReport
from tests.fixtures.engines import open_tiny_engine

KINDS = ["plain", "iswa", "hybrid", "mamba"]
N_CTX = 2048


def tokens(count: int, *, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(64), k=count)


# The same text with two questions, half of the text, and a long text with a question.
P1 = [*tokens(500), *tokens(40, seed=2)]
P2 = [*tokens(500), *tokens(33, seed=3)]
P3 = tokens(250)
BOUNDARIES = (100, 500)


@pytest.fixture(name="options")
def store_options(tmp_path: Path) -> CacheOptions:
    return CacheOptions(folder=tmp_path / "store", policy=Policy(max_bytes=1 << 30, min_free_bytes=0))


@contextlib.contextmanager
def tiny(path: Path, **changes: Any) -> Iterator[Engine]:
    with open_tiny_engine(path, **{"n_ctx": N_CTX, **changes}) as engine:
        yield engine


def cold(engine: Engine, ids: Sequence[int]) -> bytes:
    """The logits of `ids` as a run without the store gets them."""
    engine.session.forget()
    engine.session.prefill(ids)
    logits = bytes(engine.context.logits())
    engine.session.forget()
    return logits


@contextlib.contextmanager
def opened(engine: Engine, options: CacheOptions, warnings: list[str] | None = None) -> Iterator[PrefixCache]:
    """The store for an empty session; a warning fails the test unless there is a list for it."""
    told: list[str] = []
    engine.session.forget()
    with open_prefix_cache(engine, options, load(), told.append) as prefix:
        assert prefix is not None, told
        yield prefix
    if warnings is None:
        assert told == []
    else:
        warnings += told


def prefill(engine: Engine, prefix: PrefixCache, ids: Sequence[int]) -> tuple[bytes, int]:
    """Restore and compute the rest: the logits, and how many tokens were computed."""
    prefix.restore(ids, BOUNDARIES)
    restored = len(engine.session.tokens)
    assert restored == prefix.report.restored_tokens
    engine.session.prefill(ids[restored:], cuts=prefix.cuts, on_progress=prefix.advance)
    prefix.prefilled()
    return bytes(engine.context.logits()), len(ids) - restored


def warm(
    engine: Engine, ids: Sequence[int], options: CacheOptions, warnings: list[str] | None = None
) -> tuple[bytes, CacheReport]:
    """The logits of `ids` as a run with the store gets them, and what the store reports."""
    with opened(engine, options, warnings) as prefix:
        logits, computed = prefill(engine, prefix, ids)
        prefix.finish(1000.0, computed)
        return logits, prefix.report


def block_files(options: CacheOptions) -> list[Path]:
    assert options.folder is not None
    return sorted((options.folder / "v1" / "blocks").rglob("*.kv"))


def temp_files(options: CacheOptions) -> list[Path]:
    assert options.folder is not None
    return sorted(options.folder.rglob(".tmp-*"))
