"""What Enter sends: blocks in quotes; what goes back into the line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.cli.chat_turn_text import block_is_open, given_back, unquoted


@pytest.mark.parametrize(
    ("text", "is_open"),
    [("a", False), ('"""', True), ('  """a\nb', True), ('"""a"""', False), ('a """', False), ('"""a\n""" more', False)],
)
def test_open_blocks(text: str, is_open: bool) -> None:
    assert block_is_open(text) is is_open


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a\nb", "a\nb"),
        ('"""a"""', "a"),
        ('"""\na\n\n  b\n"""', "a\n\n  b"),
        (' """a"""\n', "a"),
        ('say """a"""', 'say """a"""'),
        ('"""', '"""'),
        ('"""""', '"""""'),
        ('""""""', ""),
        ("  indented", "  indented"),
    ],
)
def test_what_is_meant(text: str, meant: str) -> None:
    assert unquoted(text) == meant


def is_command(text: str) -> bool:
    return text.startswith("/")


@pytest.mark.parametrize(
    ("waiting", "draft", "line", "undone"),
    [
        ([], "", "", ()),
        (["/retry"], "", "/retry", ()),
        (['"""a\nb"""'], "", '"""a\nb"""', ()),
        (["one", "two"], "", "one\ntwo", ()),
        (["one"], "two", "one\ntwo", ()),
        (['"""a\nb"""', "c"], "", "a\nb\nc", ()),
        (["/retry", "one", "/read x"], "two", "one\ntwo", ("/retry", "/read x")),
        (["one"], "/retry", "one", ("/retry",)),
        (["/retry", "/read x"], "", "", ("/retry", "/read x")),
        (["/retry"], "/read x", "/read x", ("/retry",)),
    ],
)
def test_what_waited_is_given_back(waiting: list[str], draft: str, line: str, undone: tuple[str, ...]) -> None:
    assert given_back(waiting, draft, is_command) == (line, undone)


@given(st.lists(st.sampled_from(["/a", "/b c", "one", "two\nthree", '"""x\ny"""']), min_size=2))
def test_no_command_becomes_words(texts: list[str]) -> None:
    line, undone = given_back(texts[:-1], texts[-1], is_command)
    assert is_command(line) == (line in ("/a", "/b c"))
    assert not any(is_command(part) for part in line.split("\n")[1:])
    assert len(undone) + is_command(line) == sum(map(is_command, texts))
