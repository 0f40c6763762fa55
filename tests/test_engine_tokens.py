from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.base.settings import load
from llmcli.engine.model import Model
from llmcli.engine.prompt import PromptPart
from llmcli.engine.tokens import Piece, Tokens, tokenize_text
from tests.fixtures.notes import Notes

BYTE0, IM_END, FIRST = 3, 260, 261


def tokenize(model: Path, *texts: str, **options: bool) -> Tokens:
    parts = [PromptPart("argument", "prompt", text) for text in texts]
    return tokenize_text(parts, str(model), load(), Notes(), **options)


def test_pieces(scripted_model: Callable[..., Path]) -> None:
    model = scripted_model(["Hello", " world"])
    found = tokenize(model, "aé\n<|im_end|>\0")
    assert found.pieces == (
        Piece(BYTE0 + ord("a"), "a", special=False),
        Piece(BYTE0 + 0xC3, "<0xC3>", special=False),
        Piece(BYTE0 + 0xA9, "<0xA9>", special=False),
        Piece(BYTE0 + 10, "\n", special=False),
        Piece(IM_END, "<|im_end|>", special=True),
        Piece(BYTE0, "\0", special=False),
    )
    assert found.model == model.stem
    assert found.content_id == hashlib.sha256(model.read_bytes()).hexdigest()


def test_bos_and_special_texts(scripted_model: Callable[..., Path]) -> None:
    model = scripted_model(["Hello", " world"], add_bos=True)
    assert [p.id for p in tokenize(model, "<s>a").pieces] == [1, 100]
    assert [p.id for p in tokenize(model, "a", with_bos=False).pieces] == [100]
    as_text = tokenize(model, "<|im_end|>", parse_special=False, with_bos=False).pieces
    assert "".join(p.text for p in as_text) == "<|im_end|>"
    assert not any(p.special for p in as_text)


def test_parts_are_joined_as_raw_ones(scripted_model: Callable[..., Path]) -> None:
    found = tokenize(scripted_model(["Hello", " world"]), "a\n", "b")
    assert "".join(p.text for p in found.pieces) == "a\n\nb"


def test_json(scripted_model: Callable[..., Path]) -> None:
    found = tokenize(scripted_model(["Hello", " world"]), "a<|im_end|>")
    assert found.as_json() == {
        "model": {"name": found.model, "content_id": found.content_id},
        "n_tokens": 2,
        "tokens": [
            {"id": 100, "piece": "a", "special": False},
            {"id": IM_END, "piece": "<|im_end|>", "special": True},
        ],
    }


def test_the_weights_are_not_loaded(scripted_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "load", None)
    assert len(tokenize(scripted_model(["Hello", " world"]), "abc").pieces) == 3


def test_a_model_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_text("<!DOCTYPE html><html></html>")
    with pytest.raises(ModelError, match="HTML"):
        tokenize(tmp_path / "x.gguf", "a")
