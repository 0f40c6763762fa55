from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.engine.model import Model
from llmcli.engine.tokenizer import SpecialIds, Tokenizer

# In a scripted vocabulary: <unk> <s> </s>, then the 256 bytes, then <|im_start|> <|im_end|>, then the script.
BOS, EOS, BYTE0, IM_START, IM_END, FIRST = 1, 2, 3, 259, 260, 261


@pytest.fixture(scope="module")
def tokenizer(scripted_model: Callable[..., Path]) -> Iterator[Tokenizer]:
    with Model.load_vocabulary(scripted_model(["Hello", " world"])) as model:
        yield model.tokenizer


@pytest.fixture(scope="module")
def bos_tokenizer(scripted_model: Callable[..., Path]) -> Iterator[Tokenizer]:
    with Model.load_vocabulary(scripted_model(["Hello", " world"], add_bos=True)) as model:
        yield model.tokenizer


def test_characters_are_bytes_where_the_vocabulary_has_no_word(tokenizer: Tokenizer) -> None:
    assert tokenizer.tokenize("Go", parse_special=False) == [BYTE0 + ord("G"), BYTE0 + ord("o")]
    assert tokenizer.tokenize("é", parse_special=False) == [BYTE0 + 0xC3, BYTE0 + 0xA9]


def test_nul_is_a_character(tokenizer: Tokenizer) -> None:
    a, b, c, d = (BYTE0 + ord(ch) for ch in "abcd")
    assert tokenizer.tokenize("ab\0cd", parse_special=False) == [a, b, BYTE0, c, d]


def test_the_empty_text_has_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.tokenize("", parse_special=True) == []


def test_control_text_becomes_a_token_only_when_asked(tokenizer: Tokenizer) -> None:
    assert tokenizer.tokenize("<|im_end|>", parse_special=True) == [IM_END]
    as_text = tokenizer.tokenize("<|im_end|>", parse_special=False)
    assert IM_END not in as_text
    assert b"".join(tokenizer.piece(i) for i in as_text) == b"<|im_end|>"


def test_fragments_join_without_a_break(tokenizer: Tokenizer) -> None:
    ids = tokenizer.tokenize_fragments([("<|im_start|>", True), ("<|im_end|>", False), ("!", True)])
    assert ids[0] == IM_START
    assert ids[-1] == BYTE0 + ord("!")
    assert IM_END not in ids
    assert b"".join(tokenizer.piece(i, special=True) for i in ids) == b"<|im_start|><|im_end|>!"


@pytest.mark.parametrize("start", [[], [BOS], [BOS, BOS, BOS]])
def test_exactly_one_bos_where_the_model_wants_one(bos_tokenizer: Tokenizer, start: list[int]) -> None:
    assert bos_tokenizer.with_bos([*start, FIRST]) == [BOS, FIRST]


def test_no_bos_is_added_or_taken_where_the_model_wants_none(tokenizer: Tokenizer) -> None:
    assert tokenizer.with_bos([FIRST]) == [FIRST]
    assert tokenizer.with_bos([BOS, FIRST]) == [BOS, FIRST]


def test_control_tokens_leave_no_text_unless_asked(tokenizer: Tokenizer) -> None:
    assert tokenizer.piece(IM_END) == b""
    assert tokenizer.piece(IM_END, special=True) == b"<|im_end|>"
    assert tokenizer.piece(FIRST + 1) == b" world"
    assert tokenizer.piece(FIRST + 1, special=True) == b" world"


def test_what_the_vocabulary_tells_of_itself(tokenizer: Tokenizer) -> None:
    assert (tokenizer.n_vocab, tokenizer.bos, tokenizer.eos) == (FIRST + 2, BOS, EOS)
    assert tokenizer.is_end(EOS)
    assert tokenizer.is_end(IM_END)
    assert not tokenizer.is_end(FIRST)
    assert tokenizer.special == SpecialIds((0, BOS, EOS, IM_START, IM_END), ())
    assert tokenizer.control_texts == {"<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"}
    assert tokenizer.end_ids == (EOS, IM_END)
    assert tokenizer.text_of(IM_START) == "<|im_start|>"
    assert tokenizer.is_special(IM_START)
    assert not tokenizer.is_special(FIRST)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_characters=" ▁", exclude_categories=["Cs"]), max_size=60))
def test_any_text_comes_back_byte_for_byte(tokenizer: Tokenizer, text: str) -> None:
    # Spaces are left out: this vocabulary has no piece for the mark that SentencePiece puts in their place.
    ids = tokenizer.tokenize(text, parse_special=False)
    assert b"".join(tokenizer.piece(i) for i in ids) == text.encode("utf-8")


@pytest.mark.real_model
def test_smollm2_tokenizes_the_reference_prompts(smollm2_path: Path) -> None:
    cases = json.loads((Path(__file__).parent / "data" / "greedy.json").read_text())["cases"]
    with Model.load_vocabulary(smollm2_path) as model:
        for case in cases.values():
            ids = model.tokenizer.tokenize(case["prompt"], parse_special=True)
            assert model.tokenizer.with_bos(ids) == case["prompt_tokens"]
