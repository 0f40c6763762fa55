"""On a real model: an answer after a break is that of a chat that was never left, and of a single cold run."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.settings import load
from llmcli.cache_store.policy import Policy
from llmcli.engine.conversation import Conversation
from llmcli.engine.prefix_report import CacheOptions
from llmcli.sessions.turns import Turn
from tests.chat_case import ask, library, talk
from tests.cli_run_case import engine_memo, known_engine
from tests.fixtures.notes import Notes

__all__ = ["engine_memo", "known_engine"]

QUESTIONS = (
    "Tell me about the river that flows through Paris, and about the bridges over it.",
    "Which of them is the oldest?",
    "Name three museums near it, one per line.",
    "Thank you. Which of these would you visit with a child, and why?",
)
ANSWER_TOKENS = 32
OFF = CacheOptions("off")


def left_after_each_turn(model: Path, session: str, questions: Sequence[str] = QUESTIONS) -> list[Turn]:
    for question in questions:
        with talk(model, session, max_tokens=ANSWER_TOKENS) as conversation:
            ask(conversation, question)
            conversation.settle()
    return library().read(session).history.turns


def never_left(model: Path, *, ahead: bool, **options: Any) -> list[Turn]:
    with talk(model, max_tokens=ANSWER_TOKENS, **options) as conversation:
        for question in QUESTIONS:
            ask(conversation, question)
            if ahead:
                conversation.settle()
        return conversation.history.turns


def said(turns: Sequence[Turn]) -> list[tuple[object, ...]]:
    return [(turn.user, turn.prompt_ids, turn.completion_ids) for turn in turns]


def cold_answer(conversation: Conversation, ids: Sequence[int]) -> tuple[int, ...]:
    """The greedy answer of a context that computes the prompt in one go and knows nothing else."""
    session, context = conversation.engine.session, conversation.engine.context
    session.forget()
    session.prefill(ids)
    answer: list[int] = []
    while len(answer) < ANSWER_TOKENS:
        logits = list(context.logits())
        token = logits.index(max(logits))
        if conversation.engine.model.tokenizer.is_end(token):
            break
        answer.append(token)
        session.decode(token)
    return tuple(answer)


@functools.cache
def computed_once(model: Path) -> tuple[Turn, ...]:
    return tuple(never_left(model, ahead=True, cache=OFF))


@pytest.fixture(name="expected")
def the_turns_of_a_chat_that_was_never_left(smollm2_path: Path) -> Sequence[Turn]:
    return computed_once(smollm2_path)


def test_resumed_live_recomputed_and_cold_answers_are_the_same(smollm2_path: Path, expected: Sequence[Turn]) -> None:
    assert said(never_left(smollm2_path, ahead=False, cache=OFF)) == said(expected)
    assert said(left_after_each_turn(smollm2_path, "left")) == said(expected)
    with talk(smollm2_path, "left", max_tokens=ANSWER_TOKENS) as conversation:
        reply = conversation.say("And?")
        list(reply.parts())
        assert reply.restored_tokens >= (len(expected[-1].ids) - 1) // 64 * 64
        assert reply.notes == ()
        for turn in expected:
            assert cold_answer(conversation, turn.prompt_ids) == turn.completion_ids


def test_a_store_that_forgot_costs_time_and_a_line(smollm2_path: Path, expected: Sequence[Turn]) -> None:
    left_after_each_turn(smollm2_path, "left", QUESTIONS[:3])
    shutil.rmtree(load().cache_dir / "prefixes")
    notes, done = Notes(), []
    with talk(smollm2_path, "left", notes=notes, max_tokens=ANSWER_TOKENS) as conversation:
        conversation.on_progress = lambda count, total: done.append((count, total))
        reply = conversation.say(QUESTIONS[3])
        list(reply.parts())
        assert reply.restored_tokens == 0
        assert [line for line in notes.lines if "of this conversation are computed again" in line] == list(reply.notes)
        assert len(reply.notes) == 1
    assert done[-1] == (reply.prompt_tokens, reply.prompt_tokens)
    assert said(library().read("left").history.turns) == said(expected)


def test_undo_and_fork_go_on_as_if_nothing_had_been(smollm2_path: Path, expected: Sequence[Turn]) -> None:
    with talk(smollm2_path, "a", max_tokens=ANSWER_TOKENS) as conversation:
        ask(conversation, QUESTIONS[0])
        ask(conversation, "Something else altogether: how do I cook rice?")
        conversation.undo()
        ask(conversation, QUESTIONS[1])
        conversation.settle()
    library().fork("a", "b")
    with talk(smollm2_path, "b", max_tokens=ANSWER_TOKENS) as conversation:
        for question in QUESTIONS[2:]:
            ask(conversation, question)
        assert said(conversation.history.turns) == said(expected)
    with talk(smollm2_path, "a", max_tokens=ANSWER_TOKENS) as conversation:
        reply = conversation.say("Thanks!")
        list(reply.parts())
        assert reply.restored_tokens > 0
        assert reply.laid.ids[: len(expected[1].ids)] == expected[1].ids


def test_a_sliding_window_comes_back_too(gemma3_path: Path) -> None:
    options: dict[str, Any] = {"template": "gemma", "max_tokens": 20}
    questions = ["Think of this: " + " ".join(QUESTIONS) + " " + question for question in QUESTIONS[:3]]
    with talk(gemma3_path, cache=OFF, **options) as conversation:
        for question in questions:
            ask(conversation, question)
        expected = said(conversation.history.turns)
    cache = CacheOptions(policy=Policy(max_bytes=1 << 30, min_free_bytes=0))
    for question in questions:
        with talk(gemma3_path, "g", cache=cache, **options) as conversation:
            reply = conversation.say(question)
            list(reply.parts())
            conversation.settle()
    assert said(library().read("g").history.turns) == expected
    assert reply.restored_tokens >= 64
