"""Keys and pastes out of what a terminal sends, however it is cut to pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcli.cli.chat_input import PasteSplitter, Piece

BEGIN, END = "\x1b[200~", "\x1b[201~"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def split(*chunks: str) -> list[Piece]:
    splitter = PasteSplitter(Clock())
    return [piece for chunk in chunks for piece in splitter.feed(chunk)] + splitter.flush()


def test_keys_and_a_paste() -> None:
    found = split(f"ab{BEGIN}one\rtwo\x1b[A{END}\r")
    assert found == [Piece("ab", pasted=False), Piece("one\rtwo\x1b[A", pasted=True), Piece("\r", pasted=False)]


PARTS = ["a", "\r", "\x1b[A", f"{BEGIN}p\rq\x1b[2{END}", f"{BEGIN}{END}"]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(PARTS), max_size=8), st.data())
def test_where_it_is_cut_does_not_matter(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    pieces = split(*chunks)
    assert [piece.text for piece in pieces if piece.pasted] == [piece.text for piece in split(text) if piece.pasted]
    keys = "".join(piece.text for piece in pieces if not piece.pasted)
    assert keys == "".join(piece.text for piece in split(text) if not piece.pasted)


def test_an_escape_key_waits_for_what_may_follow() -> None:
    splitter = PasteSplitter(Clock())
    assert splitter.feed("\x1b") == []
    assert splitter.flush() == [Piece("\x1b", pasted=False)]
    assert splitter.feed("\x1b\r") == [Piece("\x1b\r", pasted=False)]


def test_the_beginning_of_a_mark_is_held_until_it_is_none() -> None:
    splitter = PasteSplitter(Clock())
    assert splitter.feed("x\x1b[2") == [Piece("x", pasted=False)]
    assert splitter.flush() == [Piece("\x1b[2", pasted=False)]
    assert splitter.feed("\x1b[20") == []
    assert splitter.feed("A") == [Piece("\x1b[20A", pasted=False)]


@pytest.mark.parametrize(("pause_s", "pasted"), [(0.01, True), (1.0, False)])
def test_a_burst_is_a_paste_to_its_end(pause_s: float, pasted: bool) -> None:
    clock = Clock()
    splitter = PasteSplitter(clock)
    assert splitter.feed("line\r" * 300) == [Piece("line\r" * 300, pasted=True)]
    clock.now_s = pause_s
    assert splitter.feed("end\r") == [Piece("end\r", pasted=pasted)]


def test_a_large_paste_takes_linear_time() -> None:
    splitter = PasteSplitter(Clock())
    assert splitter.feed(BEGIN) == []
    for _ in range(20_000):
        splitter.feed("x" * 1024)
    (piece,) = splitter.feed(END)
    assert piece == Piece("x" * 1024 * 20_000, pasted=True)
