"""What Enter sends: blocks in quotes."""

from __future__ import annotations

import pytest

from llmcli.cli.chat_turn_text import block_is_open, unquoted


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
