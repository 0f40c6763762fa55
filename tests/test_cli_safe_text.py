"""What may not reach a terminal, whole and in pieces."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcli.cli.safe_text import SafeText, harmless

DRIVERS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("\x9b2J\x9d0;x\x9c", "\\x9b2J\\x9d0;x\\x9c"),
        ("rm -rf /\r# safe", "rm -rf /\\x0d# safe"),
        ("abc\b\b\bxyz", "abc\\x08\\x08\\x08xyz"),
        ("a\u202eb\u2066c\u2069", "a\\u202eb\\u2066c\\u2069"),
        ("a\u2028b", "a\\u2028b"),
        ("\0\x7f", "\\x00\\x7f"),
    ],
    ids=["CSI", "OSC 52", "C1", "carriage return", "backspace", "bidi", "line separator", "NUL and DEL"],
)
def test_what_drives_a_terminal_is_shown(text: str, shown: str) -> None:
    assert harmless(text) == shown


@pytest.mark.parametrize(
    "text", ["a\n\tb", "é日本語", "👩‍👩‍👧", "🏴\U000e0067\U000e0062\U000e007f", "שלום\u200f", "\\x1b"]
)
def test_everything_else_passes(text: str) -> None:
    assert harmless(text) == text


@settings(deadline=None)
@given(st.text(st.one_of(st.characters(), st.sampled_from(DRIVERS))))
def test_no_control_character_is_left(text: str) -> None:
    shown = harmless(text)
    assert {ch for ch in shown if unicodedata.category(ch) == "Cc"} <= {"\n", "\t"}
    assert harmless(shown) == shown
    assert shown.count("\n") == text.count("\n")


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("ab\r\n\x1b"), max_size=4)))
def test_pieces_give_what_the_whole_gives(pieces: list[str]) -> None:
    stream = SafeText()
    shown = "".join(stream.push(piece) for piece in pieces) + stream.finish()
    assert shown == harmless("".join(pieces).replace("\r\n", "\n"))


def test_text_is_given_out_as_soon_as_it_can_be() -> None:
    stream = SafeText()
    assert [stream.push("a\r"), stream.push("\nb"), stream.push("\r"), stream.finish()] == ["a", "\nb", "", "\\x0d"]
