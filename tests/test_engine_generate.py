from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmcli.engine.generate import End, Part, Run, Token, generate_answer, generate_text, generate_tokens
from llmcli.engine.interrupt import StopFlag
from llmcli.engine.reasoning import ReasoningSplitter
from llmcli.engine.sampling import Sampler, Sampling
from llmcli.engine.session import Session
from tests.fixtures.engines import open_session
from tests.fixtures.real_models import greedy_text


@contextmanager
def a_run(session: Session, prompt: str = "x", **options: Any) -> Iterator[Run]:
    session.cut(0)
    tokenizer = session.context.model.tokenizer
    with Sampler(Sampling(temp=0), tokenizer, session.context.n_ctx) as sampler:
        yield Run(session, sampler, tokenizer.tokenize(prompt, parse_special=True), **options)


def text_of(path: Path, *, stops: tuple[str, ...] = (), **options: Any) -> tuple[list[str], End]:
    with open_session(path) as session, a_run(session, **options) as run:
        *texts, end = generate_text(run, stops=stops)
        assert isinstance(end, End)
        assert all(isinstance(t, str) for t in texts)
        return [t for t in texts if isinstance(t, str)], end


def test_tokens_then_one_end(scripted_model: Callable[..., Path]) -> None:
    with open_session(scripted_model(["Hello", " world"])) as session, a_run(session) as run:
        items = list(generate_tokens(run))
    assert items == [Token(261), Token(262), End("stop", (261, 262))]


def test_pieces_are_whole_characters(scripted_model: Callable[..., Path]) -> None:
    steps = ["Go", *(bytes([b]) for b in "🚀é".encode()), "!"]
    texts, end = text_of(scripted_model(steps))
    assert texts == ["Go", "🚀", "é", "!"]
    assert end.reason == "stop"


def test_a_character_cut_by_the_end_is_replaced_once(scripted_model: Callable[..., Path]) -> None:
    texts, _ = text_of(scripted_model(["a", b"\xf0", b"\x9f"]))
    assert "".join(texts) == "a\ufffd"


@pytest.mark.parametrize(("limit", "expected"), [(0, ""), (1, "tick"), (5, "tick tock\ntick tock")])
def test_length_ends_at_the_limit(scripted_model: Callable[..., Path], limit: int, expected: str) -> None:
    texts, end = text_of(scripted_model(["tick", " tock", "\n"], loop=True), max_tokens=limit)
    assert ("".join(texts), end.reason, len(end.completion_ids)) == (expected, "length", limit)


def test_stop_strings_may_span_tokens_and_are_not_shown(scripted_model: Callable[..., Path]) -> None:
    texts, end = text_of(scripted_model(["one", " two", "ST", "OP", " never"]), stops=("STOP",))
    assert ("".join(texts), end.reason) == ("one two", "stop")


def test_a_false_start_of_a_stop_string_is_released(scripted_model: Callable[..., Path]) -> None:
    texts, _ = text_of(scripted_model(["one", " two", "ST", "AY", " here"]), stops=("STOP",))
    assert "".join(texts) == "one twoSTAY here"


def test_the_end_of_the_context_is_length(scripted_model: Callable[..., Path]) -> None:
    with (
        open_session(scripted_model(["tick", " tock"], loop=True), n_ctx=256) as session,
        a_run(session, max_tokens=5000) as run,
    ):
        *tokens, end = generate_tokens(run)
    # One token of prompt; the last token is sampled from a full cache and not decoded any more.
    assert len(tokens) == 256
    assert isinstance(end, End)
    assert end.reason == "length"


def test_a_shift_drops_the_oldest_and_goes_on(scripted_model: Callable[..., Path]) -> None:
    dropped: list[int] = []
    with (
        open_session(scripted_model(["tick", " tock"], loop=True), n_ctx=256) as session,
        a_run(session, max_tokens=600, shift_keep=1, on_shift=dropped.append) as run,
    ):
        *tokens, end = generate_tokens(run)
        assert len(session.tokens) <= 256
    assert isinstance(end, End)
    assert (len(tokens), end.reason) == (600, "length")
    assert dropped[0] == 127
    assert [t.id for t in tokens if isinstance(t, Token)] == [261, 262] * 300


def test_thinking_is_told_from_the_answer(scripted_model: Callable[..., Path]) -> None:
    path = scripted_model(["<think>", "secret", "</think>", "answer"])
    with open_session(path) as session, a_run(session) as run:
        items = list(generate_answer(run, ReasoningSplitter()))
    assert items[:-1] == [Part("reasoning", "secret"), Part("text", "answer")]


def test_thinking_that_the_template_opened(scripted_model: Callable[..., Path]) -> None:
    path = scripted_model(["secret", "</think>", "answer"])
    with open_session(path) as session, a_run(session) as run:
        items = list(generate_answer(run, ReasoningSplitter(opened=True)))
    assert items[:-1] == [Part("reasoning", "secret"), Part("text", "answer")]


def test_control_tokens_are_text_only_where_they_are_wanted(scripted_model: Callable[..., Path]) -> None:
    path = scripted_model(["a", "<|mark|>", "b"], extra_special=("<|mark|>",))
    with open_session(path) as session:
        with a_run(session) as run:
            assert [i for i in generate_text(run) if isinstance(i, str)] == ["a", "b"]
        mark = session.context.model.tokenizer.tokenize("<|mark|>", parse_special=True)
        with a_run(session) as run:
            assert [i for i in generate_text(run, visible=frozenset(mark)) if isinstance(i, str)] == [
                "a",
                "<|mark|>",
                "b",
            ]


def test_a_stop_during_the_answer_keeps_what_came(scripted_model: Callable[..., Path]) -> None:
    stop = StopFlag()
    path = scripted_model(["tick", " tock"], loop=True)
    with open_session(path, stop=stop) as session, a_run(session) as run:
        seen: list[object] = []
        for item in generate_text(run):
            seen.append(item)
            if len(seen) == 3:
                stop.set()
    assert seen[:3] == ["tick", " tock", "tick"]
    assert isinstance(seen[-1], End)
    assert seen[-1].reason == "interrupted"
    assert len(seen) == 4


def test_a_stop_during_prefill_yields_the_end_alone(scripted_model: Callable[..., Path]) -> None:
    stop = StopFlag()
    with open_session(scripted_model(["tick"], loop=True), stop=stop) as session, a_run(session) as run:
        stop.set()
        items = list(generate_tokens(run))
    assert items == [End("interrupted", ())]


def test_timings_add_up(scripted_model: Callable[..., Path]) -> None:
    with open_session(scripted_model(["tick", " tock"], loop=True)) as session, a_run(session, max_tokens=20) as run:
        list(generate_tokens(run))
    timings = run.timings
    assert timings.prefill_tokens == 1
    assert timings.decode_tokens == 19
    assert timings.ttft_s is not None
    assert timings.tpot_s is not None
    assert timings.decode_tok_s == pytest.approx(1 / timings.tpot_s)
    assert timings.prefill_s <= timings.ttft_s
    assert timings.ttft_s + timings.decode_s <= timings.total_s


@pytest.mark.real_model
def test_smollm2_gives_the_reference_answers(smollm2_path: Path) -> None:
    cases = json.loads((Path(__file__).parent / "data" / "greedy.json").read_text())["cases"]
    with open_session(smollm2_path, n_ctx=512) as session:
        for case in cases.values():
            with a_run(session, case["prompt"], max_tokens=32) as run:
                assert list(run.prompt) == case["prompt_tokens"]
                *texts, end = generate_text(run)
            assert "".join(t for t in texts if isinstance(t, str)) == greedy_text(case)
            assert isinstance(end, End)
            assert (end.reason == "stop") == case["ended"]
