"""Thinking and answer told apart, however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.engine.reasoning import (
    HEADERS,
    TAGS,
    Kind,
    ReasoningSplitter,
    ReasoningTags,
    opening_tag_at_end,
    visible_texts,
)


def feed(pieces: list[str], *, opened: bool = False) -> list[tuple[Kind, str]]:
    """All pieces, neighbours of one kind joined."""
    splitter = ReasoningSplitter(opened=opened)
    joined: list[tuple[Kind, str]] = []
    for kind, text in [part for piece in pieces for part in splitter.push(piece)] + splitter.finish():
        assert text
        if joined and joined[-1][0] == kind:
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined


marks = [*(mark for tag in TAGS for mark in tag), *HEADERS]
fragments = st.one_of(
    st.sampled_from(marks), st.sampled_from(marks).map(lambda mark: mark[:-2]), st.text("a<>/[ \n", max_size=4)
)


@given(st.lists(fragments, max_size=8).map("".join), st.lists(st.integers(0, 300), max_size=10), st.booleans())
def test_any_cut_gives_the_same_parts(text: str, places: list[int], opened: bool) -> None:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert feed(pieces, opened=opened) == feed([text], opened=opened)


@given(st.text("ab <>/\n", max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_text_without_tags_passes_unchanged(text: str, places: list[int]) -> None:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    assert feed([text[a:b] for a, b in itertools.pairwise(edges)]) == ([("text", text)] if text else [])


@pytest.mark.parametrize("tag", TAGS, ids=lambda tag: tag.opening)
def test_every_known_family(tag: ReasoningTags) -> None:
    text = f"{tag.opening}why{tag.closing}\n\nBecause."
    assert feed(list(text)) == [("reasoning", "why"), ("text", "Because.")]


def test_opened_by_the_template() -> None:
    assert feed(["so", " be it</thi", "nk>\n", "\n Yes"], opened=True) == [("reasoning", "so be it"), ("text", "Yes")]


def test_never_closed_is_thinking() -> None:
    assert feed(["<think>hm</th"]) == [("reasoning", "hm</th")]


def test_white_space_in_front_of_a_tag_at_the_start_is_dropped() -> None:
    assert feed(["\n ", "<think>a</think>b"]) == [("reasoning", "a"), ("text", "b")]


def test_white_space_at_the_start_of_an_answer_without_thinking_is_kept() -> None:
    assert feed([" ", "6, 7"]) == [("text", " 6, 7")]
    assert feed([" \n"]) == [("text", " \n")]


def test_white_space_later_in_the_answer_is_kept() -> None:
    assert feed(["<think></think>\n\na\n\n b"]) == [("text", "a\n\n b")]


def test_several_stretches() -> None:
    text = "<think>a</think>b\n<think>c</think>\nd"
    assert feed([text]) == [("reasoning", "a"), ("text", "b\n"), ("reasoning", "c"), ("text", "d")]


def test_two_stretches_with_nothing_between_them() -> None:
    assert feed(["<think>a</think>\n<think>b</think>c"]) == [("reasoning", "ab"), ("text", "c")]


def test_a_tag_inside_a_sentence_is_text() -> None:
    text = "The tag `<think>` opens it, </think> closes it."
    assert feed([text]) == [("text", text)]


def test_a_piece_that_cannot_be_a_tag_passes_at_once() -> None:
    splitter = ReasoningSplitter()
    assert splitter.push("Hello <") == [("text", "Hello <")]
    assert splitter.push("\n<thi") == [("text", "\n")]
    assert splitter.push("s>") == [("text", "<this>")]


def test_harmony_without_thinking_drops_the_header_alone() -> None:
    assert feed(["<|channel|>", "final", "<|message|>", "Hi"]) == [("text", "Hi")]


def test_harmony_drops_the_header_between_thinking_and_answer() -> None:
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    assert feed(list(text)) == [("reasoning", "hm"), ("text", "Hi")]


def test_own_tags() -> None:
    splitter = ReasoningSplitter([ReasoningTags("((", "))")], headers=())
    assert splitter.push("((a))b") + splitter.finish() == [("reasoning", "a"), ("text", "b")]
    assert ReasoningSplitter([ReasoningTags("((", "))")]).push("<think>") == [("text", "<think>")]


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        ("assistant\n<think>\n", 10),
        ("x<think>", 1),
        ("[THINK]  ", 0),
        ("<|START_THINKING|>", 0),
        ("<think>\n\n</think>\n\n", None),
        ("assistant\n", None),
        ("", None),
    ],
)
def test_the_tag_a_prompt_ends_with(prompt: str, place: int | None) -> None:
    assert opening_tag_at_end(prompt) == place


def test_the_control_tokens_that_must_be_seen() -> None:
    vocabulary = ["<think>", "</think>", "<|channel|>", "<|message|>", "<|im_end|>", "<", "s", "<unk>"]
    assert visible_texts(vocabulary) == {"<think>", "</think>", "<|channel|>", "<|message|>"}
