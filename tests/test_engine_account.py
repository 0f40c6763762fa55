"""The words and figures that `run` and a chat share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmcli.engine.account import ContextLimit, rate, sampler_json, visible_tokens
from llmcli.engine.sampling import Sampling


def context(*, can_shift: bool) -> Any:
    return SimpleNamespace(n_ctx=4096, can_shift=lambda: can_shift)


@pytest.mark.parametrize(
    ("can_shift", "shifts", "hint"),
    [
        (True, False, "(a larger -c, or --on-overflow shift)"),
        (True, True, "(a larger -c)"),
        (False, False, "(a larger -c)"),
        (False, True, "(a larger -c)"),
    ],
)
def test_what_moves_the_end_of_the_context(can_shift: bool, shifts: bool, hint: str) -> None:
    limit = ContextLimit(context(can_shift=can_shift), shifts=shifts)
    assert limit.note("length", None, 7) == f"cut off: the context of 4,096 tokens is full {hint}"


@pytest.mark.parametrize(
    ("reason", "most", "count", "told"),
    [
        ("length", None, 0, True),
        ("length", 8, 7, True),
        ("length", 8, 8, False),
        ("stop", None, 7, False),
        ("stop", 8, 7, False),
        ("interrupted", None, 7, False),
    ],
)
def test_only_an_answer_that_the_context_ended_is_told(reason: Any, most: int | None, count: int, told: bool) -> None:
    limit = ContextLimit(context(can_shift=True), shifts=False)
    assert (limit.note(reason, most, count) is not None) == told


def test_tokens_that_mark_thinking_are_seen() -> None:
    texts = {1: "<think>", 2: "</think>", 3: "<|im_end|>", 4: "<s>"}
    tokenizer: Any = SimpleNamespace(special=SimpleNamespace(control=tuple(texts)), text_of=texts.__getitem__)
    assert visible_tokens(tokenizer) == {1, 2}


@pytest.mark.parametrize(("tok_s", "text"), [(None, ""), (0.0, ""), (123.4, " (123 tok/s)"), (0.6, " (1 tok/s)")])
def test_a_rate(tok_s: float | None, text: str) -> None:
    assert rate(tok_s) == text


def test_the_sampler_names_what_decides_the_tokens() -> None:
    found = sampler_json(Sampling(temp=0.5, top_k=7, grammar='root ::= "a"'))
    assert (found["temp"], found["top_k"], found["grammar"]) == (0.5, 7, True)
    assert sampler_json(Sampling())["grammar"] is False
    assert len(found) == 9
