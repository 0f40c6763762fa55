"""Bytes cut anywhere give the text of the whole."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.engine.utf8 import Utf8Assembler


def feed(pieces: list[bytes]) -> str:
    assembler = Utf8Assembler()
    return "".join([assembler.push(piece) for piece in pieces] + [assembler.finish()])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


# Random bytes are rarely near-valid UTF-8; characters with bytes knocked out are.
damaged = st.tuples(st.text(), st.lists(st.integers(0, 200), max_size=4)).map(
    lambda given: bytes(b for i, b in enumerate(given[0].encode()) if i not in given[1])
)


@given(st.one_of(st.binary(max_size=40), damaged), st.lists(st.integers(0, 200), max_size=12))
def test_any_cut_of_any_bytes_gives_the_text_of_the_whole(data: bytes, places: list[int]) -> None:
    assert feed(cut(data, places)) == data.decode("utf-8", "replace")


@given(st.text(), st.lists(st.integers(0, 400), max_size=12))
def test_complete_text_is_never_held_back(text: str, places: list[int]) -> None:
    assembler, seen, shown = Utf8Assembler(), b"", ""
    for piece in cut(text.encode(), places):
        seen += piece
        shown += assembler.push(piece)
        assert shown == seen.decode("utf-8", "ignore")
    assert assembler.finish() == ""
    assert not assembler.lost


def test_an_emoji_over_four_tokens_comes_whole() -> None:
    assembler = Utf8Assembler()
    assert [assembler.push(bytes([byte])) for byte in "🚀".encode()] == ["", "", "", "🚀"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xe2\x82", "\ufffd"),  # two bytes of one unfinished character: one replacement
        (b"\xe2\x82A", "\ufffdA"),  # ended by a byte that cannot follow
        (b"\xff\xfeok", "\ufffd\ufffdok"),
        (b"\xc0\x80", "\ufffd\ufffd"),  # overlong NUL
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),  # a surrogate
    ],
)
def test_wrong_bytes_are_replaced_once_and_reported(data: bytes, text: str) -> None:
    assembler = Utf8Assembler()
    assert assembler.push(data) + assembler.finish() == text
    assert assembler.lost


def test_a_byte_that_cannot_continue_is_not_waited_for() -> None:
    assert Utf8Assembler().push(b"\xe2A") == "\ufffdA"


def test_a_replacement_character_that_was_meant_is_no_loss() -> None:
    assembler = Utf8Assembler()
    assert assembler.push(b"\xef\xbf") + assembler.push(b"\xbd!") == "\ufffd!"
    assert not assembler.lost


def test_nul_and_bom_are_kept() -> None:
    assert feed([b"\xef\xbb\xbfa\0b"]) == "\ufeffa\0b"


def test_ready_for_new_text_after_the_end() -> None:
    assembler = Utf8Assembler()
    assembler.push(b"\xf0\x9f")
    assembler.finish()
    assert assembler.push("é".encode()) == "é"
