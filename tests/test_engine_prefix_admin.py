"""Filling, keeping, loading and comparing prefixes, for every kind of memory; the ids stand in for a vocabulary."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError, ModelError, ResourceError, UsageError
from llmcli.base.settings import load
from llmcli.cache_store.cost import Rates
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore
from llmcli.engine.engine import Engine
from llmcli.engine.prefix import open_prefix_cache
from llmcli.engine.prefix_admin import Bench
from llmcli.engine.prefix_recipe import RECIPE_PART, Recipe, StablePrefix
from llmcli.engine.prefix_report import CacheOptions
from llmcli.engine.prompt import PromptPart
from llmcli.models.progress import ProgressFactory, silent
from tests.fixtures.engines import open_tiny_engine

KINDS = ["plain", "iswa", "hybrid", "mamba"]
WHEN = datetime(2024, 5, 1, 12, 0)  # noqa: DTZ001  naive, as templates get it
RECIPE = Recipe((PromptPart("file", "a.txt", "text"),), "system", raw=False, template=None, made_at=WHEN)


class Quiet:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def notify(self, line: str) -> None:
        self.lines.append(line)

    @property
    def progress(self) -> ProgressFactory:
        return silent


def tokens(count: int, *, seed: int = 1) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(64), k=count))


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models compute faster than a disk is read: measured rates would make restoring a matter of luck."""
    monkeypatch.setattr(Rates, "worth_restoring", lambda *_: True)
    monkeypatch.setattr(Rates, "worth_saving", lambda *_: True)


@pytest.fixture
def options(tmp_path: Path) -> CacheOptions:
    return CacheOptions(folder=tmp_path / "store", policy=Policy(max_bytes=1 << 30, min_free_bytes=0))


@contextlib.contextmanager
def open_store(options: CacheOptions) -> Iterator[PrefixStore]:
    assert options.folder is not None
    with PrefixStore.open(options.folder, options.policy, notify=pytest.fail) as store:
        yield store


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, options: CacheOptions) -> Callable[..., Bench]:
    """A bench for an engine; every recipe is a prefix of these ids."""

    def make(engine: Engine, ids: tuple[int, ...], options: CacheOptions = options) -> Bench:
        monkeypatch.setattr(Bench, "_stable", lambda self, recipe: StablePrefix(ids, (100,), "the text", ()))
        return Bench(engine, options, load(), Quiet())

    return make


def logits_of(engine: Engine, ids: tuple[int, ...], options: CacheOptions) -> tuple[bytes, int]:
    engine.session.cut(0)
    with open_prefix_cache(engine, options, load(), pytest.fail) as prefix:
        assert prefix is not None
        prefix.restore(ids)
        restored = len(engine.session.tokens)
        engine.session.prefill(ids[restored:], cuts=prefix.cuts, on_progress=prefix.advance)
        logits = bytes(engine.context.logits())
        prefix.finish(1000.0, len(ids) - restored)
    return logits, restored


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [300, 320, 256])
def test_what_is_saved_is_whole_and_a_run_restores_it(
    kind: str, count: int, random_model: Callable[[str], Path], bench: Callable[..., Bench], options: CacheOptions
) -> None:
    ids, question = tokens(count), tokens(20, seed=2)
    with open_tiny_engine(random_model(kind), n_ctx=1024) as engine:
        filled, end = bench(engine, ids).save(RECIPE)
        assert (filled.tokens, filled.computed_tokens, end.end_tokens) == (count, count, count)
        assert filled.stored_tokens == (count - 1) // 64 * 64
        # The first time, the last grid point is not yet known to be exact where the prompt ends on it.
        assert bench(engine, ids).save(RECIPE)[1].key == end.key
        again, same = bench(engine, ids).save(RECIPE)
        assert (again.report.written_bytes, same.key) == (0, end.key)
        assert again.report.restored_tokens == (count - 1) // 64 * 64
        with open_store(options) as store:
            chain = store.keeper().chain(end.key.hex())
            assert tuple(token for ref in chain for token in ref.token_ids) == ids
            recipe = Recipe.from_bytes(bytes(store.read(chain[-1], RECIPE_PART)))
        assert recipe.makes_the_same(
            Recipe(RECIPE.parts, "system", raw=False, template=None, made_at=WHEN, text="the text")
        )
    with open_tiny_engine(random_model(kind), n_ctx=1024) as engine:
        engine.session.prefill((*ids, *question))
        expected = bytes(engine.context.logits())
        logits, restored = logits_of(engine, (*ids, *question), options)
    assert (logits == expected, restored) == (True, again.stored_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_load_restores_the_whole_chain(
    kind: str, random_model: Callable[[str], Path], bench: Callable[..., Bench], options: CacheOptions
) -> None:
    with open_tiny_engine(random_model(kind), n_ctx=1024) as engine:
        work = bench(engine, tokens(300))
        _, end = work.save(RECIPE)
        with open_store(options) as store:
            chain = store.keeper().chain(end.key.hex())
        loaded = work.load(chain)
        assert (loaded.tokens, engine.session.tokens, engine.context.length()) == (300, list(tokens(300)), 300)
        assert 0 < loaded.read_bytes <= sum(ref.file_bytes for ref in chain)


@pytest.mark.parametrize("kind", KINDS)
def test_compare_finds_equal_logits_and_a_changed_model(
    kind: str, random_model: Callable[[str], Path], bench: Callable[..., Bench], options: CacheOptions
) -> None:
    with open_tiny_engine(random_model(kind), n_ctx=1024) as engine:
        work = bench(engine, tokens(300))
        _, end = work.save(RECIPE)
        with open_store(options) as store:
            chain = store.keeper().chain(end.key.hex())
        same = work.compare(chain)
        assert same is not None
        assert (same.is_equal, same.tokens, same.largest_logit_difference) == (True, 256, 0.0)
        damage(chain[-2])
        broken = work.compare(chain)
        assert broken is not None
        assert (broken.is_equal, broken.largest_logit_difference) == (False, None)
        assert broken.trouble
        assert work.compare(chain[-1:]) is None  # the end of a prefix lies off the grid


def test_compare_tells_a_difference(
    random_model: Callable[[str], Path], bench: Callable[..., Bench], options: CacheOptions
) -> None:
    """Blocks of other tokens under these: what a wrong restore would look like."""
    with open_tiny_engine(random_model("plain"), n_ctx=1024) as engine:
        _, end = bench(engine, tokens(300)).save(RECIPE)
        _, other = bench(engine, tokens(300, seed=2)).save(RECIPE)
        with open_store(options) as store:
            chain = list(store.keeper().chain(end.key.hex()))
            wrong = store.keeper().chain(other.key.hex())
        swapped = BlockRef(
            wrong[0].key, chain[0].parent, chain[0].grandparent, 0, chain[0].tokens, True, wrong[0].part_bytes,
            wrong[0].file_bytes, "", 0.0, wrong[0].path,
        )  # fmt: skip
        found = bench(engine, tokens(300)).compare([swapped, *chain[1:]])
        assert found is not None
        assert found.largest_logit_difference is not None and found.largest_logit_difference > 0.01
        assert not found.is_equal


def damage(ref: BlockRef) -> None:
    data = bytearray(Path(ref.path).read_bytes())
    data[-1] ^= 1
    Path(ref.path).write_bytes(data)


def test_fill_keeps_nothing_off_the_grid(
    random_model: Callable[[str], Path], bench: Callable[..., Bench], options: CacheOptions
) -> None:
    with open_tiny_engine(random_model("plain"), n_ctx=1024) as engine:
        filled = bench(engine, tokens(300)).fill(RECIPE)
    assert (filled.tokens, filled.stored_tokens, filled.computed_tokens) == (300, 256, 300)
    with open_store(options) as store:
        assert [entry.tokens for entry in store.keeper().entries()] == [256]


def test_too_short_and_no_room(
    random_model: Callable[[str], Path], bench: Callable[..., Bench], options: CacheOptions, tmp_path: Path
) -> None:
    with open_tiny_engine(random_model("plain"), n_ctx=1024) as engine:
        with pytest.raises(UsageError, match="this prefix has 1 token, and the store keeps from 64 on"):
            bench(engine, tokens(1)).fill(RECIPE)
        small = CacheOptions(folder=tmp_path / "small", policy=Policy(max_bytes=1000, min_free_bytes=0))
        with pytest.raises(ResourceError, match="could not be kept"):
            bench(engine, tokens(300), small).save(RECIPE)


def test_the_same_tokens_of_another_make(random_model: Callable[[str], Path], bench: Callable[..., Bench]) -> None:
    """One end can say one thing about how a prompt goes on behind it."""
    other = Recipe(RECIPE.parts, None, raw=True, template=None, made_at=WHEN)
    with open_tiny_engine(random_model("plain"), n_ctx=1024) as engine:
        bench(engine, tokens(300)).save(RECIPE)
        with pytest.raises(LlmcliError, match="saved already, as the beginning of other prompts"):
            bench(engine, tokens(300)).save(other)


def test_require_fits(random_model: Callable[[str], Path], bench: Callable[..., Bench]) -> None:
    with open_tiny_engine(random_model("plain"), n_ctx=1024) as engine:
        stored = bench(engine, tokens(300)).fingerprint()
        bench(engine, tokens(300)).require_fits(stored, "x")
    with (
        open_tiny_engine(random_model("plain"), n_ctx=1024, type_k="q8_0", type_v="q8_0") as engine,
        pytest.raises(ModelError, match="x does not fit: other kv type"),
    ):
        bench(engine, tokens(300)).require_fits(stored, "x")
