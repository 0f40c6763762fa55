"""Stop strings over pieces: the same answer however it is cut, nothing lost, nothing of the stop string shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import UsageError
from llmcli.engine.stops import StopMatcher


def feed(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown += text
        assert stopped == (matcher.matched is not None)
    return shown + matcher.finish(), matcher.matched


def expected(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition, written out: the first end of a stop string, and there the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


texts = st.text("ab\n", max_size=24)
stop_lists = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


@given(stop_lists, st.lists(texts, max_size=8))
def test_any_cut_gives_the_answer_of_the_whole(stops: list[str], pieces: list[str]) -> None:
    assert feed(stops, pieces) == expected(stops, "".join(pieces))


@given(stop_lists, st.lists(texts, max_size=6))
def test_only_the_beginning_of_a_stop_string_is_held_back(stops: list[str], pieces: list[str]) -> None:
    matcher, text, shown = StopMatcher(stops), "", ""
    for piece in pieces:
        text += piece
        emitted, stopped = matcher.push(piece)
        shown += emitted
        if stopped:
            return
        held = text.removeprefix(shown)
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_over_three_tokens() -> None:
    matcher = StopMatcher(["STOP"])
    assert [matcher.push(piece) for piece in ("one ST", "O", "P never")] == [("one ", False), ("", False), ("", True)]
    assert matcher.push("more") == ("", True)
    assert matcher.finish() == ""


def test_a_false_start_is_released() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("ST") == ("", False)
    assert matcher.push("ART") == ("START", False)


def test_a_start_at_the_very_end_is_released() -> None:
    matcher = StopMatcher(["\n\n"])
    assert matcher.push("answer\n") == ("answer", False)
    assert matcher.finish() == "\n"
    assert matcher.finish() == ""


def test_a_start_inside_a_false_start_counts() -> None:
    assert feed(["aab"], ["a", "a", "a", "b"]) == ("a", "aab")


def test_of_two_with_one_end_the_longer_counts() -> None:
    assert feed(["b", "ab"], ["xab"]) == ("x", "ab")


def test_the_one_complete_first_counts() -> None:
    assert feed(["abcd", "bc"], ["abcd"]) == ("a", "bc")


def test_without_stop_strings_everything_passes_at_once() -> None:
    assert StopMatcher([]).push("text") == ("text", False)


def test_an_empty_stop_string_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="empty"):
        StopMatcher(["a", ""])
