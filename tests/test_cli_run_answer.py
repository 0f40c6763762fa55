"""`llmcli run` and its answer: what stdout and stderr hold, what ends it, thinking, notes, the account."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcli.engine import native
from llmcli.hardware.cores import read_cores
from tests.cli_run_case import Answer, engine_memo, in_process, known_engine  # noqa: F401  # fixtures

Script = Callable[..., Path]
FRAME_TOKENS = 19  # of the scripted models' chat template around one user message


@pytest.fixture
def hello(scripted_model: Script) -> Path:
    return scripted_model(["Hello", " world"])


@pytest.fixture
def ticking(scripted_model: Script) -> Path:
    return scripted_model(["tick", " tock", "\n"], loop=True)


@pytest.fixture
def thinking(scripted_model: Script) -> Path:
    return scripted_model(["<think>", "secret", "</think>", "answer"])


# ---- the answer ------------------------------------------------------------------------------------------------------

ROCKET = [bytes([byte]) for byte in "🚀é".encode()]
SCRIPTS: dict[str, tuple[list[str | bytes], tuple[str, ...], str]] = {
    "plain": (["Hello", " world"], (), "Hello world"),
    "characters of several tokens": (["Go", *ROCKET, "!"], (), "Go🚀é!"),
    "a character cut short": (["Go", *ROCKET[:2]], (), "Go\ufffd"),
    "invalid bytes": (["a", b"\xff", b"\xfe", "b"], (), "a\ufffd\ufffdb"),
    "a stop string over tokens": (["one", " two", "ST", "OP", " never"], ("--stop", "STOP"), "one two"),
    "a false start of a stop string": (["one", " two", "ST", "AY"], ("--stop", "STOP"), "one twoSTAY"),
    "a stop string cut short": (["one", " two", "ST"], ("--stop", "STOP"), "one twoST"),
    "the first of two stop strings": (["a", "b", "c", "d"], ("--stop", "d", "--stop", "bc"), "a"),
    "a stop string inside a token": (["one", " two three"], ("--stop", "o t"), "one tw"),
    "a stop string at once": (["one", " two"], ("--stop", "one"), ""),
    "thinking before the answer": (["<think>", "hm", "</think>", "yes"], (), "yes"),
    "at most two tokens": (["a", "b", "c"], ("-n", "2"), "ab"),
    "no token": (["a", "b", "c"], ("-n", "0"), ""),
    "an end of turn that is not the end token": (["a", "<|im_end|>", "b"], (), "a"),
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_streamed_whole_and_json_are_one_text(kind: str, answer: Answer, scripted_model: Script) -> None:
    steps, options, expected = SCRIPTS[kind]
    model = scripted_model(steps)
    assert answer(model, *options, "hi").stdout == f"{expected}\n".encode()
    assert answer(model, *options, "--no-stream", "hi").stdout == f"{expected}\n".encode()
    assert answer.json(model, *options, "hi")["text"] == expected


def test_one_final_newline(answer: Answer, scripted_model: Script) -> None:
    ends_with_one = scripted_model(["Hello", "\n"])
    assert answer(ends_with_one, "--raw", "hi").stdout == b"Hello\n"
    assert answer(ends_with_one, "--raw", "--no-stream", "hi").stdout == b"Hello\n"
    assert answer.json(ends_with_one, "--raw", "hi")["text"] == "Hello\n"
    says_nothing = scripted_model(["</s>"], eos=False)
    assert answer(says_nothing, "hi").stdout == b"\n"
    assert answer.json(says_nothing, "hi")["text"] == ""


def test_the_account(answer: Answer, hello: Path) -> None:
    found = answer.json(hello, "-s", "7", "--temp", "0.5", "--top-k", "3", "--reasoning", "hide", "hi")
    assert (found["text"], found["finish_reason"], found["reasoning"]) == ("Hello world", "stop", None)
    assert (found["model"]["name"], found["model"]["path"]) == (hello.stem, str(hello))
    assert len(bytes.fromhex(found["model"]["content_id"])) == 32
    assert found["build"].startswith("llama-cpp-python 0.3.36 (llama.cpp ")
    assert (found["seed"], found["sampler"]["temp"], found["sampler"]["top_k"]) == (7, 0.5, 3)
    assert found["usage"] == {"prompt_tokens": FRAME_TOKENS + 2, "completion_tokens": 2, "restored_tokens": 0}
    assert found["plan"] == {"n_ctx": 512, "threads": 1, "threads_batch": 1, "n_gpu_layers": 0}
    timings = found["timings"]
    assert set(timings) == {
        *("load_s", "tokenize_s", "restore_s", "prefill_s", "ttft_s", "tpot_s", "total_s"),
        *("prefill_tok_s", "decode_tok_s"),
    }
    assert 0 < timings["prefill_s"] < timings["ttft_s"] < timings["total_s"]
    assert timings["prefill_tok_s"] > 0
    assert timings["decode_tok_s"] == pytest.approx(1 / timings["tpot_s"])


def test_a_random_seed_is_reported_and_gives_the_same_again(answer: Answer, hello: Path) -> None:
    seeds = {answer.json(hello, *option, "hi")["seed"] for option in ((), ("-s", "-1"))}
    assert len(seeds) == 2


def test_length(answer: Answer, ticking: Path, hello: Path) -> None:
    found = answer.json(ticking, "-n", "5", "hi")
    assert (found["text"], found["finish_reason"]) == ("tick tock\ntick tock", "length")
    assert found["usage"]["completion_tokens"] == 5
    done = answer.run("-m", ticking, "-n", "5", "--fail-on-length", "hi")
    assert (done.code, done.out) == (5, "tick tock\ntick tock\n")
    assert done.err == "error: the answer was cut after 5 tokens (a larger -n or -c)\n"
    done = answer.run("-m", ticking, "-n", "5", "--fail-on-length", "--json", "hi")
    assert (done.code, json.loads(done.out)["text"]) == (5, "tick tock\ntick tock")
    assert answer(hello, "--fail-on-length", "hi").out == "Hello world\n"


def test_an_answer_that_reaches_the_end_of_the_context(answer: Answer, ticking: Path) -> None:
    found = answer.json(ticking, "-c", "256", "-n", "5000", "hi")
    prompt, completion = found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]
    assert (found["finish_reason"], prompt + completion) == ("length", 256 + 1)  # the last is not decoded any more
    assert found["text"] == ("tick tock\n" * 100)[: len(found["text"])]
    note = "the answer is cut off: the context of 256 tokens is full (a larger -c, or --on-overflow shift)\n"
    assert answer(ticking, "-c", "256", "hi").err == note
    assert answer(ticking, "-c", "256", "--session", "s", "hi").err == note
    assert answer(ticking, "-c", "256", "-q", "hi").err == ""
    assert answer(ticking, "-c", "256", "-n", "5", "hi").err == ""


def test_an_answer_that_shifts_the_context_goes_on(answer: Answer, ticking: Path) -> None:
    done = answer(ticking, "-c", "256", "-n", "600", "--on-overflow", "shift", "hi")
    assert done.out == "tick tock\n" * 200
    first, in_all = done.err.splitlines()
    assert first == "the context is full: the oldest 128 tokens were dropped"
    assert in_all == "the context was full 3 times: 384 tokens were dropped in all"
    assert answer(ticking, "-q", "-c", "256", "-n", "600", "--on-overflow", "shift", "hi").err == ""


def test_ignore_eos(answer: Answer, hello: Path) -> None:
    found = answer.json(hello, "--ignore-eos", "-n", "6", "hi")
    assert found["text"].startswith("Hello world")
    assert (found["finish_reason"], found["usage"]["completion_tokens"]) == ("length", 6)


def test_a_grammar_binds_the_answer(answer: Answer, hello: Path, tmp_path: Path) -> None:
    assert answer(hello, "--grammar", 'root ::= "no" | "nay"', "--temp", "0", "hi").out in ("no\n", "nay\n")
    file = tmp_path / "rules.gbnf"
    file.write_text('root ::= "Hello" " there"\n')
    assert answer(hello, "--grammar-file", file, "hi").out == "Hello there\n"


def test_a_logit_bias_forbids_a_token(answer: Answer, hello: Path) -> None:
    assert " world" not in answer(hello, "-l", "262-inf", "-n", "5", "hi").out
    assert answer(hello, "-l", "65+50", "-n", "3", "hi").out == ">>>\n"  # 65 is the byte token of >


# ---- thinking --------------------------------------------------------------------------------------------------------

OPENED = "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}"


@pytest.mark.parametrize(
    ("mode", "out", "err"),
    [
        ((), "answer\n", "secret\n"),
        ("show", "answer\n", "secret\n"),
        ("hide", "answer\n", ""),
        ("only", "secret\n", ""),
    ],
)
def test_thinking(mode: Any, out: str, err: str, answer: Answer, thinking: Path, scripted_model: Script) -> None:
    options = ("--reasoning", mode) if mode else ()
    opened = scripted_model(["secret", "</think>", "answer"], chat_template=OPENED)
    for model in (thinking, opened):
        done = answer(model, *options, "hi")
        assert (done.out, done.err) == (out, err)
    found = answer.json(thinking, *options, "hi")
    assert (found["text"], found["reasoning"]) == ("answer", "secret")
    assert answer(thinking, *options, "-q", "hi").err == ""


def test_thinking_that_never_ends(answer: Answer, scripted_model: Script) -> None:
    done = answer(scripted_model(["<think>", "a", "b"]), "hi")
    assert (done.out, done.err) == ("\n", "ab\n")


# ---- what stderr holds -----------------------------------------------------------------------------------------------


def test_quiet_stats_and_verbose(answer: Answer, hello: Path) -> None:
    assert answer(hello, "hi").err == answer(hello, "-q", "hi").err == ""
    stats = answer(hello, "--stats", "hi")
    assert stats.out == "Hello world\n"
    assert stats.err.count("\n") == 1
    assert stats.err.startswith("load ")
    assert f"{FRAME_TOKENS + 2} prompt tokens in " in stats.err
    assert ", 2 tokens in " in stats.err
    assert ", ended by stop" in stats.err
    verbose = answer(hello, "-v", "hi")
    assert verbose.out == "Hello world\n"
    assert "llama_model_loader: " in verbose.err
    assert "\x1b" not in verbose.err


def test_metadata_in_the_log_is_shown_harmless(answer: Answer, scripted_model: Script) -> None:
    done = answer(scripted_model(["ok"], name="\x1b]0;x\x07"), "-v", "hi")
    assert done.out == "ok\n"
    assert "\\x1b]0;x\\x07" in done.err
    assert "\x1b" not in done.err


@pytest.mark.skipif(native.supports_gpu_offload(), reason="this build can use a GPU")
def test_layers_on_a_gpu_that_the_build_cannot_use(answer: Answer, hello: Path) -> None:
    for option in (("-ngl", "99"), ("-ngl=99",), ("--n-gpu-layers", "-1")):
        done = answer(hello, *option, "hi")
        assert done.out == "Hello world\n"
        assert done.err.count("\n") == 1
        assert "has no effect" in done.err
    assert answer(hello, "-ngl", "0", "hi").err == ""
    assert answer(hello, "-q", "-ngl", "99", "hi").err == ""


def test_more_threads_than_cores(answer: Answer, hello: Path) -> None:
    usable = read_cores().usable
    done = answer(hello, "-t", str(usable + 1), "hi")
    assert done.out == "Hello world\n"
    assert done.err.startswith(f"-t {usable + 1} is more than the {usable} core")
    assert done.err.count("\n") == 1
