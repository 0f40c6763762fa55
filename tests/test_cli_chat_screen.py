"""What the screen of a chat draws from; how it draws is seen in a pseudo-terminal (test_cli_chat_terminal)."""

from __future__ import annotations

import pytest

from llmcli.cli.chat_screen import _pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("plain\nrows", [("", "plain\nrows")]),
        ("\x1b[1mbold\x1b[0m and\n\x1b[1mbold\x1b[0m", [("bold", "bold"), ("", " and\n"), ("bold", "bold")]),
        ("\x1b[1mone\x1b[0m\x1b[1mtwo\x1b[0m", [("bold", "onetwo")]),
    ],
)
def test_one_piece_for_each_style(text: str, pieces: list[tuple[str, str]]) -> None:
    assert [(piece[0].strip(), piece[1]) for piece in _pieces(text)] == pieces
