from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmcli.base.text import decode_utf8, printable

BOM = b"\xef\xbb\xbf"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_valid_text_comes_through_as_it_is(text: str) -> None:
    expected = text.removeprefix("\ufeff")
    assert decode_utf8(text.encode()) == (expected, None)
    assert decode_utf8(BOM + expected.encode()) == (expected, None)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=20))
@example("", b"\xed\xa0\x80")  # a surrogate
@example("ab", b"\xf4\x90\x80\x80")  # past the last character
@example("é", b"\xe2\x82")  # cut short
@example("\ufeff", b"\xff")
def test_the_offset_is_that_of_the_first_wrong_byte(before: str, wrong: bytes) -> None:
    data = before.encode() + b"\xff" + wrong
    found = decode_utf8(data)
    assert found.bad_offset == len(before.encode())
    assert found.text.startswith(before.removeprefix("\ufeff") + "\ufffd")
    assert decode_utf8(BOM + data).bad_offset == len(before.encode()) + len(BOM)


@given(st.binary(max_size=60))
def test_any_bytes_become_text_that_is_utf8(data: bytes) -> None:
    found = decode_utf8(data)
    assert found.text == data.removeprefix(BOM).decode("utf-8", "replace")
    found.text.encode("utf-8")
    assert (found.bad_offset is None) == (found.text.encode() == data.removeprefix(BOM))


def test_nul_is_kept() -> None:
    assert decode_utf8(b"ab\0cd") == ("ab\0cd", None)


def test_only_one_byte_order_mark_is_dropped() -> None:
    assert decode_utf8(BOM + BOM + b"x").text == "\ufeffx"
    assert decode_utf8(BOM[:2]) == ("\ufffd", 0)


@given(st.text(st.characters(categories=["Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Lu", "So"])))
def test_nothing_that_drives_a_terminal_is_printed(text: str) -> None:
    shown = printable(text)
    assert {unicodedata.category(ch) for ch in shown} <= {"Lu", "So", "Ll", "Nd", "Po"}
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_what_can_be_read_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("gpj.\u202efdp", "gpj.\\u202efdp"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("caf\udce9", "caf\\udce9"),
        ("\u2028", "\\u2028"),
        ("naïve 🚀", "naïve 🚀"),
    ],
)
def test_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown
