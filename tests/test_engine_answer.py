"""From a request to an answer and its account, without a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import ContextOverflowError, ModelError, UsageError
from llmcli.base.settings import load
from llmcli.engine import engine as engine_module
from llmcli.engine.answer import Answer, AnswerRequest, answer, choose_template
from llmcli.engine.generate import Part
from llmcli.engine.model import Model
from llmcli.engine.plan import Request
from llmcli.engine.prefix_report import CacheOptions
from llmcli.engine.preflight import EngineBuild
from llmcli.engine.prompt import PromptPart
from llmcli.engine.sampling import Sampling
from tests.fixtures.engines import tiny_plan
from tests.fixtures.notes import Notes

Script = Callable[..., Path]


@pytest.fixture(autouse=True)
def _known_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the installed library is a test of its own; here it would start a process each time."""
    monkeypatch.setattr(engine_module, "check_build", lambda settings: EngineBuild("0" * 64))


@pytest.fixture
def hello(scripted_model: Script) -> Path:
    return scripted_model(["Hello", " world"])


@pytest.fixture
def ticking(scripted_model: Script) -> Path:
    return scripted_model(["tick", " tock"], loop=True)


def asking(model: Path, text: str = "hi", **changes: Any) -> AnswerRequest:
    options: dict[str, Any] = {"sampling": Sampling(temp=0, seed=7), "cache": CacheOptions("off"), **changes}
    return AnswerRequest(str(model), Request(n_threads=1), (PromptPart("argument", "prompt", text),), **options)


@contextlib.contextmanager
def opened(model: Path, text: str = "hi", *, notes: Notes | None = None, **changes: Any) -> Iterator[Answer]:
    with answer(asking(model, text, **changes), load(), notes or Notes()) as result:
        yield result


def test_the_parts_make_up_the_text(hello: Path) -> None:
    with opened(hello) as result:
        assert list(result.parts()) == [Part("text", "Hello"), Part("text", " world")]
        assert (result.text, result.reasoning) == ("Hello world", "")
        assert (result.finish_reason, result.completion_tokens) == ("stop", 2)


def test_thinking_is_kept_apart(scripted_model: Script) -> None:
    with opened(scripted_model(["<think>", "hm", "</think>", "yes"])) as result:
        assert list(result.parts()) == [Part("reasoning", "hm"), Part("text", "yes")]
        assert (result.text, result.reasoning) == ("yes", "hm")


def test_marks_that_are_control_tokens_are_seen_in_a_chat_alone(scripted_model: Script) -> None:
    model = scripted_model(["<think>", "hm", "</think>", "yes"], extra_special=("<think>", "</think>"))
    with opened(model) as result:
        assert list(result.parts()) == [Part("reasoning", "hm"), Part("text", "yes")]
    with opened(model, raw=True) as result:
        list(result.parts())
        assert (result.text, result.reasoning) == ("hmyes", "")


def test_an_answer_that_is_not_read_to_the_end_counts_as_interrupted(ticking: Path) -> None:
    with opened(ticking) as result:
        parts = result.parts()
        assert [next(parts).text for _ in range(3)] == ["tick", " tock", "tick"]
        parts.close()  # type: ignore[attr-defined]
        assert result.finish_reason == "interrupted"
        assert result.as_json()["text"] == "tick tocktick"


def test_ctrl_c_ends_the_answer_and_not_the_program(ticking: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with opened(ticking) as result:
        texts = []
        for part in result.parts():
            texts.append(part.text)
            if len(texts) == 3:
                os.kill(os.getpid(), signal.SIGINT)
        assert result.finish_reason == "interrupted"
        assert "".join(texts) == result.text == ("tick tock" * 99)[: len(result.text)]
        assert 3 <= len(texts) < 60
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_before_the_answer_is_a_keyboard_interrupt(hello: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A download or a hash takes minutes and polls nothing: only an exception ends it at once.
    def interrupted(*args: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(engine_module, "find_model", interrupted)
    with pytest.raises(KeyboardInterrupt), opened(hello):
        pass


@pytest.mark.parametrize(
    ("options", "reason", "text", "count"),
    [
        ({"max_tokens": 3}, "length", "tick tocktick", 3),
        ({"max_tokens": 0}, "length", "", 0),
        ({"stops": ("tock",)}, "stop", "tick ", 2),
        ({"stops": ("k t",)}, "stop", "tic", 2),
    ],
)
def test_what_ends_an_answer(options: dict[str, Any], reason: str, text: str, count: int, ticking: Path) -> None:
    with opened(ticking, **options) as result:
        list(result.parts())
        assert (result.finish_reason, result.text, result.completion_tokens) == (reason, text, count)


def test_what_a_shift_drops_is_said_at_once_and_in_all(ticking: Path) -> None:
    notes = Notes()
    with opened(ticking, notes=notes, raw=True, overflow="shift", max_tokens=1200) as result:
        texts = [part.text for part in result.parts()]
        assert "".join(texts) == "tick tock" * 600
        assert (result.finish_reason, result.completion_tokens) == ("length", 1200)
        assert notes.lines == ["the context is full: the oldest 256 tokens were dropped"]
    assert notes.lines[1:] == ["the context was full 3 times: 768 tokens were dropped in all"]


def test_bos_survives_a_shift(scripted_model: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scripted_model(["tick", " tock"], loop=True, add_bos=True)
    notes = Notes()
    with opened(model, notes=notes, raw=True, overflow="shift", max_tokens=600) as result:
        list(result.parts())
        assert result._engine.session.tokens[0] == 1
    assert notes.lines == ["the context is full: the oldest 255 tokens were dropped"]


def test_a_prompt_that_does_not_fit(hello: Path) -> None:
    message = "the prompt has 619 tokens and the context 512"
    with pytest.raises(ContextOverflowError, match=message), opened(hello, "x" * 600):
        pass


def test_what_the_prompt_lost_is_said(hello: Path) -> None:
    notes = Notes()
    with opened(hello, "x" * 600, notes=notes, overflow="middle") as result:
        list(result.parts())
        assert result.text == "Hello world"
    assert len(notes.lines) == 1
    assert re.match(r"the prompt did not fit: \d+ of its 600 characters were dropped from the middle$", notes.lines[0])


def test_the_account(hello: Path) -> None:
    with opened(hello) as result:
        list(result.parts())
        found = json.loads(json.dumps(result.as_json()))
    assert list(found) == [
        *("text", "finish_reason", "reasoning", "model", "build", "seed", "sampler"),
        *("usage", "timings", "cache", "plan"),
    ]
    assert (found["seed"], found["reasoning"]) == (7, None)
    assert found["usage"] == {"prompt_tokens": 21, "completion_tokens": 2, "restored_tokens": 0}
    assert found["cache"]["mode"] == "off"
    assert found["sampler"] == {
        "temp": 0,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "mirostat": 0,
        "grammar": False,
    }
    assert found["plan"] == {"n_ctx": 512, "threads": 1, "threads_batch": 1, "n_gpu_layers": 0}


def test_the_account_in_one_line(hello: Path, ticking: Path) -> None:
    with opened(hello) as result:
        list(result.parts())
        line = result.stats_line()
    assert re.match(
        r"load \S+ m?s, 21 prompt tokens in \S+ m?s \(\d+ tok/s\), 2 tokens in \S+ m?s \(\d+ tok/s\), "
        r"first token after \S+ m?s, ended by stop",
        line,
    )
    with opened(ticking, max_tokens=0) as result:
        list(result.parts())
        assert ", 0 tokens in 0" in result.stats_line()
        assert ", no token, ended by length" in result.stats_line()


def test_a_template_that_fails_names_the_ways_out(scripted_model: Script) -> None:
    with pytest.raises(ModelError) as caught, opened(scripted_model(["x"], chat_template="{% for %}")):
        pass
    assert caught.value.hint is not None and "--chat-template" in caught.value.hint


@pytest.mark.parametrize(
    ("template", "wanted", "name"),
    [("{{ 1 }}", None, "the model's own"), ("{{ 1 }}", "zephyr", "zephyr"), (None, "zephyr", "zephyr")],
)
def test_which_template_is_chosen(template: str | None, wanted: str | None, name: str, scripted_model: Script) -> None:
    notes = Notes()
    with Model.load(scripted_model(["x"], chat_template=template), tiny_plan()) as model:
        assert choose_template(model, wanted, notes).name == name
        assert choose_template(model, wanted, notes, loaded=("kept", "{{ 2 }}")).name == "kept"
    assert notes.lines == []


def test_a_fallback_template_is_said(scripted_model: Script) -> None:
    notes = Notes()
    with Model.load(scripted_model(["x"], chat_template=None), tiny_plan()) as model:
        assert choose_template(model, None, notes).name == "chatml"
        with pytest.raises(UsageError, match="nope is neither a known template nor a file"):
            choose_template(model, "nope", notes)
    assert len(notes.lines) == 1
    assert "chatml is used" in notes.lines[0]


def test_everything_is_freed_when_the_reader_fails(hello: Path) -> None:
    results: list[Answer] = []

    def read() -> None:
        with opened(hello) as result:
            results.append(result)
            next(result.parts())
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        read()
    engine = results[0]._engine
    assert (engine.context.handle, engine.model.handle) == (None, None)


def test_a_long_prompt_is_restored_the_second_time_and_the_answer_is_the_same(hello: Path) -> None:
    found = []
    for _ in range(2):
        with opened(hello, "x" * 300, cache=CacheOptions("auto")) as result:
            list(result.parts())
            result.settle()
            found.append(result.as_json())
    assert [account["text"] for account in found] == ["Hello world"] * 2
    assert found[0]["usage"]["restored_tokens"] == 0
    assert found[1]["usage"]["prompt_tokens"] == found[0]["usage"]["prompt_tokens"] == 319
    assert 0 < found[1]["usage"]["restored_tokens"] < 319
    assert found[1]["timings"]["restore_s"] > 0
