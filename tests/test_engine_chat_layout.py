"""Prompts of a conversation: what was decoded stays, whatever the template does to earlier turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmcli.engine.chat_layout import ChatLayout, Laid, aligned
from llmcli.engine.chat_template import ChatTemplate
from llmcli.engine.model import Model
from llmcli.engine.tokenizer import Tokenizer
from llmcli.sessions.turns import History, Turn
from tests.chat_case import OPENS, STRICT, STRIPS
from tests.fixtures.engines import tiny_plan


@pytest.fixture(name="tokenizer", scope="module")
def tokenizer_of_a_scripted_model(scripted_model: Callable[..., Path]) -> Iterator[Tokenizer]:
    with Model.load(scripted_model(["ab", "cd", "abcd", "x"], chat_template=None), tiny_plan()) as model:
        yield model.tokenizer


class Talk:
    """A history that grows by what a model is made to say."""

    def __init__(self, source: str, tokenizer: Tokenizer, system: str | None = None) -> None:
        template = ChatTemplate(source, bos_text="<s>", eos_text="</s>", name="test")
        self.layout, self.tokenizer, self.history = ChatLayout(template, tokenizer), tokenizer, History(system=system)

    def lay(self, user: str, hidden: tuple[int, int] | None = None) -> Laid:
        return self.layout.lay_out(self.history, user, hidden=hidden)

    def turn(self, user: str, ids: list[int]) -> Laid:
        laid = self.lay(user)
        self.layout.remember(laid)
        text = laid.opening + b"".join(map(self.tokenizer.piece, ids)).decode()
        self.history.add(
            Turn(
                user,
                text=text,
                content=text,
                prompt_ids=laid.ids,
                completion_ids=tuple(ids),
                system=self.history.system,
                hidden=self.history.hidden,
            )
        )
        return laid


def ids_of(tokenizer: Tokenizer, *texts: str) -> list[int]:
    return [token for text in texts for token in tokenizer.tokenize(text, parse_special=False)]


def test_decoded_tokens_stay(tokenizer: Tokenizer) -> None:
    talk = Talk(STRICT, tokenizer)
    decoded = ids_of(tokenizer, "ab", "cd")
    assert decoded != ids_of(tokenizer, "abcd")
    first = talk.turn("one", decoded)
    second = talk.lay("two")
    assert second.ids[: len(first.ids) + 2] == (*first.ids, *decoded)
    assert second.taken_tokens == len(first.ids) + 2
    assert second.text.startswith(first.text + "abcd<|im_end|>")
    talk.layout = ChatLayout(talk.layout.template, tokenizer)  # as after a break: the texts are rendered again
    assert talk.lay("two") == second


def test_a_template_that_trims_takes_over_the_prompt(tokenizer: Tokenizer) -> None:
    talk = Talk(STRICT.replace("m['content'] +", "m['content'] | trim +"), tokenizer)
    first = talk.turn("one", ids_of(tokenizer, "ab", "\n\n"))
    second = talk.lay("two")
    assert second.taken_tokens == len(first.ids)
    assert second.text.startswith(first.text + "ab<|im_end|>")


def test_thinking_is_left_out_from_the_answer_on(tokenizer: Tokenizer) -> None:
    talk = Talk(STRIPS, tokenizer)
    first = talk.turn("one", ids_of(tokenizer, "<think>x</think>ab"))
    assert talk.lay("two").taken_tokens == len(first.ids)
    second = talk.turn("two", ids_of(tokenizer, "<think>x</think>cd"))
    third = talk.lay("three")
    assert third.taken_tokens == len(second.ids)
    assert "think" not in third.text


def test_the_tag_that_opens_thinking_belongs_to_the_answer(tokenizer: Tokenizer) -> None:
    talk = Talk(OPENS, tokenizer)
    first = talk.turn("one", ids_of(tokenizer, "x</think>ab"))
    assert first.opening == "<think>\n"
    assert first.stable_tokens == len(first.ids) - len("<think>\n")
    second = talk.lay("two")
    assert second.taken_tokens == first.stable_tokens
    assert second.ids[: second.taken_tokens] == first.ids[: first.stable_tokens]
    assert second.text.count("<think>") == 1


def test_turns_that_are_left_out(tokenizer: Tokenizer) -> None:
    talk = Talk(STRICT, tokenizer)
    first = talk.turn("one", ids_of(tokenizer, "ab"))
    for user in ("two", "three", "four"):
        talk.turn(user, ids_of(tokenizer, "cd"))
    gap = talk.lay("five", hidden=(1, 3))
    assert "two" not in gap.text
    assert "four" in gap.text
    assert gap.taken_tokens == len(first.ids) + 1
    talk.history.hide(1, 3)
    asked = talk.turn("five", ids_of(tokenizer, "ab"))
    after = talk.lay("six")
    assert after.taken_tokens == len(asked.ids) + 1
    talk.layout = ChatLayout(talk.layout.template, tokenizer)
    assert talk.lay("six") == after


def test_the_system_prompt_is_a_boundary(tokenizer: Tokenizer) -> None:
    source = STRICT.replace("loop.index0 % 2 == 0", "m['role'] == 'user'")
    laid = Talk(source, tokenizer, "Brief!").lay("one")
    head = tokenizer.tokenize("<|im_start|>system\nBrief!<|im_end|>\n", parse_special=True)
    assert laid.ids[: len(head)] == tuple(head)
    assert laid.boundaries == (len(head),)
    assert Talk(source, tokenizer).lay("one").boundaries == ()


def test_a_system_prompt_without_a_role_goes_into_the_first_turn(tokenizer: Tokenizer) -> None:
    talk = Talk(STRICT, tokenizer, "Be brief.")
    first = talk.turn("one", ids_of(tokenizer, "ab"))
    assert first.system_merged
    assert "user\nBe brief.\n\none<|im_end|>" in first.text
    talk.layout = ChatLayout(talk.layout.template, tokenizer)
    assert talk.lay("two").taken_tokens == len(first.ids) + 1


@pytest.mark.parametrize(
    ("text", "kept"),
    [("abcd", 2), ("abc", 1), ("ab", 1), ("a", 0), ("", 0), ("abcdx", 3)],
)
def test_tokens_of_the_text_before_a_stop_string(tokenizer: Tokenizer, text: str, kept: int) -> None:
    ids = ids_of(tokenizer, "ab", "cd", "x")
    found = aligned(ids, text, [tokenizer.piece(token) for token in ids], tokenizer)
    assert found[:kept] == tuple(ids[:kept])
    assert b"".join(map(tokenizer.piece, found)).decode() == text


def test_half_a_character_at_the_end(tokenizer: Tokenizer) -> None:
    ids = [*ids_of(tokenizer, "ab"), *ids_of(tokenizer, "é")[:1]]
    pieces = [tokenizer.piece(token) for token in ids]
    assert aligned(ids, "ab\ufffd", pieces, tokenizer)[0] == ids[0]
