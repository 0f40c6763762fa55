"""Sessions that somebody edited: the model is given the words that stand in the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chat_case import OPENS, STRICT, ask, library, talk
from tests.cli_run_case import engine_memo, known_engine
from tests.fixtures.notes import Notes

__all__ = ["engine_memo", "known_engine"]
Scripted = Callable[..., Path]
SAID = "session s has words that its token ids do not fit (edited by hand?): its words are tokenized again"


def edit(old: bytes, new: bytes, *, sums: bool) -> None:
    """Change the file of the session; without `sums` it is as an earlier version wrote it."""
    path = library().path("s")
    data = path.read_bytes()
    assert old in data
    data = data.replace(old, new)
    path.write_bytes(data if sums else re.sub(rb'"words_sum": "[0-9a-f]+", ', b"", data))


def given(model: Path) -> tuple[str, list[str]]:
    """What the model reads before the next answer, from its tokens; what is said."""
    notes = Notes()
    with talk(model, "s", notes=notes) as conversation:
        tokenizer = conversation.engine.model.tokenizer
        ask(conversation, "three")
        ids = conversation.history.turns[-1].prompt_ids
        text = b"".join(tokenizer.piece(one, special=True) for one in ids).decode().replace("▁", " ")
        return text, [line for line in notes.lines if "token ids" in line]


@pytest.fixture(name="model")
def greeter(scripted_model: Scripted) -> Path:
    model = scripted_model(["Hello", " world", "!"], chat_template=STRICT, n_ctx=2048)
    with talk(model, "s", system="Be kind.") as conversation:
        ask(conversation, "one")
        ask(conversation, "two")
    return model


@pytest.mark.parametrize("sums", [True, False], ids=["now", "earlier version"])
@pytest.mark.parametrize(
    ("old", "new"),
    [("one", "Uno"), ("Hello world", "Good night"), ("Be kind.", "Be rude.")],
    ids=["question", "answer", "system prompt"],
)
def test_words_that_were_edited_are_given_to_the_model(old: str, new: str, sums: bool, model: Path) -> None:
    edit(old.encode(), new.encode(), sums=sums)
    text, said = given(model)
    assert (new in text, old in text, said) == (True, False, [SAID])
    text, said = given(model)  # what was said since then has the right tokens
    assert (new in text, said) == (True, [])


@pytest.mark.parametrize("sums", [True, False], ids=["now", "earlier version"])
def test_words_that_were_not_edited_keep_their_tokens(sums: bool, model: Path) -> None:
    with talk(model, "s") as conversation:
        ids = conversation.history.turns[-1].ids
    edit(b"one", b"one", sums=sums)
    notes = Notes()
    with talk(model, "s", notes=notes) as conversation:
        assert conversation.history.turns[-1].ids == ids
    assert notes.lines == []


@pytest.mark.parametrize("sums", [True, False], ids=["now", "earlier version"])
@pytest.mark.parametrize(
    ("steps", "stops"),
    [
        (["hmm", "</think>", "\n\n answer"], ()),
        (["hmm</think>", "answer. ", "STO", "P more"], ("STOP",)),
        (["hmm</think>", b"\xf0\x9f", b"\x9a"], ()),
    ],
    ids=["thinking", "stop", "half a character"],
)
def test_what_stops_and_thinking_cut_off_is_no_edit(
    steps: list[str | bytes], stops: tuple[str, ...], sums: bool, scripted_model: Scripted
) -> None:
    model = scripted_model(steps, chat_template=OPENS, n_ctx=2048)
    with talk(model, "s", stops=stops) as conversation:
        ask(conversation, "  one ")
        ids = conversation.history.turns[-1].ids
    edit(b"one", b"one", sums=sums)
    notes = Notes()
    with talk(model, "s", notes=notes) as conversation:
        assert conversation.history.turns[-1].ids == ids
    assert notes.lines == []


@pytest.mark.parametrize("sums", [True, False], ids=["now", "earlier version"])
def test_an_answer_edited_beside_its_thinking_is_given_as_it_is_shown(sums: bool, scripted_model: Scripted) -> None:
    model = scripted_model(["<think>", "hmm</think>", "answer"], chat_template=STRICT, n_ctx=2048)
    with talk(model, "s") as conversation:
        ask(conversation, "one")
    edit(b'"text": "answer"', b'"text": "other"', sums=sums)
    for said in ([SAID], []):
        text, lines = given(model)
        first = text.split("three")[0]
        assert ("other" in first, "answer" in first, "hmm" in first) == (True, False, False)
        assert lines == said


def test_a_file_that_was_edited_is_loaded_with_its_words(model: Path, tmp_path: Path) -> None:
    edit(b"Hello world", b"Good night", sums=True)
    with talk(model) as conversation:
        conversation.replace(library().read("s").history)
        assert all(turn.ids == () for turn in conversation.history.turns)
        assert "Good night" in conversation.prompt_text("three")
