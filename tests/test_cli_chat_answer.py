"""An answer in parts, as rows: thinking shown, folded, unfolded."""

from __future__ import annotations

import re

from rich.text import Text

from llmcli.cli.chat_answer import AnswerView, thinking_rows
from llmcli.engine.generate import Part

PARTS = [Part("reasoning", "\nhmm "), Part("reasoning", "so\n"), Part("text", "\n\n**yes**"), Part("text", " 2*3")]


def finished(view: AnswerView, parts: list[Part]) -> list[str]:
    for part in parts:
        view.push(part, 40, 8)
    view.finish(40, 8)
    return plain(view.take(40, 8))


def plain(rows: list[Text]) -> list[str]:
    return [row.plain for row in rows]


def test_thinking_and_answer() -> None:
    view = AnswerView("styled", shows_thinking=True)
    assert finished(view, PARTS) == ["hmm so", "", "yes 2*3"]
    assert view.thinking == "\nhmm so\n"


def test_thinking_alone_is_dimmed() -> None:
    view = AnswerView("styled", shows_thinking=True)
    view.push(PARTS[0], 40, 8)
    assert [str(span.style) for row in view.rows_in_progress(40) for span in row.spans] == ["dim"]
    view.push(Part("text", "yes"), 40, 8)
    assert [row.spans for row in view.rows_in_progress(40)] == [[]]


def test_folded_thinking_is_one_row() -> None:
    view = AnswerView("styled", shows_thinking=False)
    view.push(PARTS[0], 40, 8)
    assert plain(view.rows_in_progress(40)) == ["thinking: 1 word, Ctrl-O shows them"]
    rows = finished(view, PARTS[1:])
    assert re.fullmatch(r"thought for [\d.]+ m?s; Ctrl-O shows it", rows[0])
    assert rows[1:] == ["", "yes 2*3"]
    assert plain(thinking_rows(view.thinking, 40)) == ["hmm so"]


def test_unfolding_in_the_middle_shows_all_of_it() -> None:
    view = AnswerView("styled", shows_thinking=False)
    view.push(PARTS[0], 40, 8)
    view.unfold(40)
    assert finished(view, PARTS[1:]) == ["hmm so", "", "yes 2*3"]


def test_an_answer_that_only_thinks() -> None:
    assert finished(AnswerView("raw", shows_thinking=True), PARTS[:2]) == ["hmm so"]


def test_nothing_at_all() -> None:
    assert finished(AnswerView("styled", shows_thinking=True), []) == []


def test_what_could_drive_the_terminal_is_shown() -> None:
    view = AnswerView("raw", shows_thinking=True)
    parts = [Part("text", "a\x1b[2J\r"), Part("text", "\nb\r"), Part("text", "c")]
    assert finished(view, parts) == ["a\\x1b[2J", "b\\x0dc"]


def test_an_answer_that_is_there_already() -> None:
    assert plain(AnswerView("styled", shows_thinking=False).whole("# T\n- a", 40)) == ["T", "• a"]
