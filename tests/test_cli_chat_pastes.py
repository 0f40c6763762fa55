"""Names that stand for long pastes."""

from __future__ import annotations

from llmcli.cli.chat_pastes import Pastes

LONG = "\n".join(f"line {number}" for number in range(30))


def test_a_short_text_stands_in_the_line_itself() -> None:
    pastes = Pastes()
    assert pastes.add("a\r\nb\rc") == "a\nb\nc"
    assert pastes.expand("a [paste 1: 3 lines, 5 B]") == "a [paste 1: 3 lines, 5 B]"


def test_a_long_one_has_a_name_and_comes_back() -> None:
    pastes = Pastes()
    first, second = pastes.add(LONG), pastes.add("é" * 3000)
    assert (first, second) == ("[paste 1: 30 lines, 229 B]", "[paste 2: 1 line, 5.9 KiB]")
    assert pastes.expand(f"{second}: is {first}?") == f"{'é' * 3000}: is {LONG}?"
    assert pastes.names_in(f"see {first}")
    assert not pastes.names_in("see [paste 3: 30 lines, 229 B]")


def test_a_name_inside_a_paste_is_text() -> None:
    pastes = Pastes()
    first = pastes.add(LONG)
    second = pastes.add(f"{LONG}\n{first}")
    assert pastes.expand(second) == f"{LONG}\n{first}"
