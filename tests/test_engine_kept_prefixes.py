"""What the store keeps of each model, and that it goes with the model: on a store filled without any model."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.base.settings import Settings, load
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore
from llmcli.engine.kept_prefixes import kept_bytes, plan_removal, remove
from llmcli.engine.prefix_report import CacheOptions, store_folder
from tests.library_case import fill_store

ONE, TWO = "1" * 64, "2" * 64


@pytest.fixture
def settings(llmcli_home: Path) -> Settings:
    return load()


def quiet(_line: str) -> None:
    pytest.fail(_line)


def kept(settings: Settings) -> dict[str, int]:
    return kept_bytes(settings, quiet, cache=CacheOptions())


def test_no_store_is_not_made(settings: Settings) -> None:
    assert kept(settings) == {}
    assert plan_removal({ONE}, settings, quiet, cache=CacheOptions()) is None
    assert remove({ONE}, settings, quiet, cache=CacheOptions()) == (0, 0)
    assert not store_folder(CacheOptions(), settings).exists()
    assert kept_bytes(settings, quiet, cache=CacheOptions(folder=Path("n" * 300))) == {}


def test_bytes_by_model_and_their_removal(settings: Settings) -> None:
    first = fill_store(settings, ONE, blocks=3) + fill_store(settings, ONE, blocks=1, type_k="q8_0")
    second = fill_store(settings, TWO, blocks=2, name="mine")
    assert kept(settings) == {ONE: first, TWO: second}
    plan = plan_removal({TWO}, settings, quiet, cache=CacheOptions())
    assert plan is not None
    assert (len(plan.blocks), plan.nbytes, plan.names) == (2, second, ("mine",))
    assert kept(settings) == {ONE: first, TWO: second}
    assert remove({TWO, "3" * 64}, settings, quiet, cache=CacheOptions()) == (2, second)
    assert kept(settings) == {ONE: first}
    assert remove({ONE}, settings, quiet, cache=CacheOptions()) == (4, first)
    assert kept(settings) == {}


def test_a_name_that_goes_is_forgotten(settings: Settings) -> None:
    fill_store(settings, ONE, blocks=1, name="mine")
    remove({ONE}, settings, quiet, cache=CacheOptions())
    with PrefixStore.open(store_folder(CacheOptions(), settings), Policy(), notify=quiet) as store:
        assert store.keeper().names() == []
