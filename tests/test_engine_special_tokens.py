from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.settings import load
from llmcli.engine.model import Model
from llmcli.engine.preflight import EngineBuild
from llmcli.engine.special_tokens import _expand, _ranges, recall_special_ids
from llmcli.engine.tokenizer import SpecialIds

BUILD = EngineBuild("b" * 64)
FOUND = SpecialIds((0, 1, 2, 259, 260), ())


@given(st.sets(st.integers(0, 300)))
def test_ranges_hold_the_same_ids(ids: set[int]) -> None:
    assert list(_expand(list(_ranges(sorted(ids))), 301)) == sorted(ids)


def test_the_second_time_the_memo_answers(scripted_model: Callable[..., Path]) -> None:
    settings = load()
    for _ in range(2):
        with Model.load_vocabulary(scripted_model(["Hello"])) as model:
            recall_special_ids(model.tokenizer, settings, "a" * 64, BUILD)
            assert model.tokenizer.special == FOUND
    (memo,) = (settings.cache_dir / "vocabularies").iterdir()
    memo.write_text('{"control": [[5, 7]], "defined": [[9, 10]]}')
    with Model.load_vocabulary(scripted_model(["Hello"])) as model:
        recall_special_ids(model.tokenizer, settings, "a" * 64, BUILD)
        assert model.tokenizer.special == SpecialIds((5, 6), (9,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"control": [[0, 99999]], "defined": []}',
        '{"control": [[3, 1]], "defined": []}',
        '{"control": 1}',
    ],
)
def test_a_damaged_memo_is_made_anew(scripted_model: Callable[..., Path], text: str) -> None:
    settings = load()
    with Model.load_vocabulary(scripted_model(["Hello"])) as model:
        recall_special_ids(model.tokenizer, settings, "a" * 64, BUILD)
        (memo,) = (settings.cache_dir / "vocabularies").iterdir()
        memo.write_text(text)
        del model.tokenizer.special
        recall_special_ids(model.tokenizer, settings, "a" * 64, BUILD)
        assert model.tokenizer.special == FOUND


def test_another_model_or_build_has_another_memo(scripted_model: Callable[..., Path]) -> None:
    settings = load()
    with Model.load_vocabulary(scripted_model(["Hello"])) as model:
        recall_special_ids(model.tokenizer, settings, "a" * 64, BUILD)
        recall_special_ids(model.tokenizer, settings, "c" * 64, BUILD)
        recall_special_ids(model.tokenizer, settings, "a" * 64, EngineBuild("d" * 64))
    assert len(list((settings.cache_dir / "vocabularies").iterdir())) == 3


def test_a_folder_that_cannot_be_written_is_no_error(scripted_model: Callable[..., Path]) -> None:
    settings = load()
    settings.cache_dir.parent.mkdir(parents=True, exist_ok=True)
    settings.cache_dir.write_text("a file in the way")
    with Model.load_vocabulary(scripted_model(["Hello"])) as model:
        recall_special_ids(model.tokenizer, settings, "a" * 64, BUILD)
        assert model.tokenizer.special == FOUND
