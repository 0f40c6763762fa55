"""`llmcli run`: what becomes the prompt, where defaults come from, and that any arguments end well.

Its answer is in test_cli_run_answer, its misuse in test_cli_run_bad_input and test_cli_run_bad_model, its descriptors
in test_cli_run_pipes, terminals and signals in test_cli_run_terminal, real models in test_cli_run_real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.base.settings import load
from llmcli.cli.main import call
from tests.cli_run_case import Answer, engine_memo, in_process, known_engine, refused  # noqa: F401  # fixtures

FRAME_TOKENS = 19  # of the scripted models' chat template around one user message
SYSTEM_TOKENS = 10  # <|im_start|> system \n … <|im_end|> \n

Script = Callable[..., Path]


@pytest.fixture
def hello(scripted_model: Script) -> Path:
    return scripted_model(["Hello", " world"])


# ---- the prompt ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ("hi", "-n", "1"),
        ("-n", "1", "hi"),
        ("--predict=1", "-p", "hi"),
        ("-n", "1", "--prompt", "hi"),
        ("-n1", "--", "hi"),
        ("-n", "1", "--", "-hi"),
        ("-ngl=0", "-n", "1", "several", "words"),
    ],
    ids=" ".join,
)
def test_a_prompt_before_and_after_options(args: tuple[str, ...], answer: Answer, hello: Path) -> None:
    done = answer(hello, *args)
    assert (done.out, done.err) == ("Hello\n", "")


def test_the_parts_and_their_order(answer: Answer, hello: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("Aa\n")
    second.write_text("Bbb\n\n")
    # Each letter is a token of its own here, so that the count tells what was joined with what.
    found = answer.json(hello, "-f", first, "-f", second, "question", stdin="piped\n")
    assert found["usage"]["prompt_tokens"] == FRAME_TOKENS + len("Aa\n\nBbb\n\npiped\n\nquestion")
    found = answer.json(hello, "-f", first, "-f", "-", "question", stdin="piped\n")
    assert found["usage"]["prompt_tokens"] == FRAME_TOKENS + len("Aa\n\npiped\n\nquestion")
    found = answer.json(hello, "-f", first, "--no-stdin", "question", stdin="piped\n")
    assert found["usage"]["prompt_tokens"] == FRAME_TOKENS + len("Aa\n\nquestion")
    found = answer.json(hello, "-", stdin="piped\n")
    assert found["usage"]["prompt_tokens"] == FRAME_TOKENS + len("piped")


def test_the_order_of_the_parts_is_that_of_use(answer: Answer, tmp_path: Path, scripted_model: Script) -> None:
    # This model answers by its last token alone, and a raw prompt ends with what was asked last.
    model = scripted_model(["q", "a", "s"], eos=False, loop=True)
    file = tmp_path / "file.txt"
    file.write_text("s")
    assert answer(model, "--raw", "-n", "1", "-f", file, "q", stdin="a").out == "a\n"
    assert answer(model, "--raw", "-n", "1", "-f", file, stdin="a").out == "s\n"
    assert answer(model, "--raw", "-n", "1", "-f", file).out == "q\n"


def test_raw_is_the_text_itself(answer: Answer, hello: Path) -> None:
    assert answer.json(hello, "--raw", "abc")["usage"]["prompt_tokens"] == 3
    assert answer.json(hello, "--raw", "abc\n")["usage"]["prompt_tokens"] == 4
    assert answer.json(hello, "--raw", stdin="abc\n")["usage"]["prompt_tokens"] == 3
    assert answer.json(hello, "--raw", "-sys", "S", "abc")["usage"]["prompt_tokens"] == len("S\n\nabc")


def test_a_system_prompt(answer: Answer, hello: Path, tmp_path: Path) -> None:
    found = answer.json(hello, "-sys", "Brief!", "hi")
    assert found["usage"]["prompt_tokens"] == FRAME_TOKENS + 2 + SYSTEM_TOKENS + len("Brief!")
    file = tmp_path / "system.txt"
    file.write_text("Brief!\n")
    same = answer.json(hello, "-sysf", file, "hi")
    assert same["usage"] == found["usage"]


def test_a_template_without_a_system_role_says_so(answer: Answer, scripted_model: Script) -> None:
    strict = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    model = scripted_model(["ok"], chat_template=strict)
    done = answer(model, "-sys", "S", "hi")
    assert done.out == "ok\n"
    assert done.err == "this model's template has no system role: the system prompt went into the first user turn\n"
    assert answer.json(model, "-q", "-sys", "S", "hi")["usage"]["prompt_tokens"] == len("S\n\nhi")
    assert answer(model, "hi").err == ""


def test_a_base_model_says_which_template_is_used(answer: Answer, scripted_model: Script, hello: Path) -> None:
    base = scripted_model(["Hello", " world"], chat_template=None)
    done = answer(base, "hi")
    assert done.out == "Hello world\n"
    assert done.err.count("\n") == 1
    assert "has no chat template" in done.err
    assert "chatml is used" in done.err
    assert answer(base, "--raw", "hi").err == answer(base, "--chat-template", "zephyr", "hi").err == ""
    assert answer.json(base, "-q", "hi")["usage"] == answer.json(hello, "hi")["usage"]


def test_one_bos(answer: Answer, scripted_model: Script) -> None:
    with_bos = scripted_model(["ok"], add_bos=True)
    writes_it = scripted_model(["ok"], add_bos=True, chat_template="{{ bos_token }}{{ messages[0].content }}")
    assert answer.json(with_bos, "--raw", "abc")["usage"]["prompt_tokens"] == 4
    assert answer.json(with_bos, "--raw", "<s>abc")["usage"]["prompt_tokens"] == 4
    assert answer.json(writes_it, "abc")["usage"]["prompt_tokens"] == 4


# ---- defaults from outside -------------------------------------------------------------------------------------------


def test_defaults_in_the_environment_and_the_config(answer: Answer, hello: Path, scripted_model: Script) -> None:
    path = load().config_file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("temp = 0.25\ntop-k = 5\npredict = 1\n")
    env = {"LLMCLI_TEMP": "0.3", "LLMCLI_JSON": "1", "LLMCLI_PROMPT": "environment", "LLMCLI_MIN_P": "0.1"}
    found = json.loads(answer(hello, "--min-p", "0.2", env=env).out)
    assert found["text"] == "Hello"
    assert (found["sampler"]["temp"], found["sampler"]["top_k"], found["sampler"]["min_p"]) == (0.3, 5, 0.2)
    assert found["usage"]["prompt_tokens"] == FRAME_TOKENS + len("environment")
    found = json.loads(answer(hello, "-n", "-1", "argument", env=env).out)
    assert (found["text"], found["usage"]["prompt_tokens"]) == ("Hello world", FRAME_TOKENS + len("argument"))
    stops = scripted_model(["one", " two", "ST", "OP"])
    assert answer(stops, "-n", "9", "hi", env={"LLMCLI_STOP": "two\nSTOP"}).out == "one \n"


def test_the_model_of_the_environment(answer: Answer, hello: Path) -> None:
    done = answer.run("hi", env={"LLMCLI_MODEL": str(hello)})
    assert (done.code, done.out) == (0, "Hello world\n")
    assert "no such file: " in refused(answer.run("-m", "./no.gguf", "hi", env={"LLMCLI_MODEL": str(hello)}), 3)


# ---- any arguments ---------------------------------------------------------------------------------------------------

_FLAGS = [
    *("-n", "-c", "-t", "-tb", "-b", "-ub", "-ngl", "-fa", "-ctk", "-ctv", "-s", "-l", "-p", "-f", "-sys", "-sysf"),
    *("--temp", "--top-k", "--top-p", "--min-p", "--stop", "--raw", "--json", "--grammar", "--reasoning", "--lora"),
    *("--on-overflow", "--mirostat", "--no-stdin", "--no-stream", "--stats", "-q", "-v", "--rope-scale", "--", "-h"),
    *("--chat-template", "--mlock", "--no-mmap", "--fail-on-length", "--ignore-eos", "-m", "--dry-multiplier"),
]
_VALUES = [
    *("0", "1", "-1", "2", "512", "99999999999999999999", "1e400", "nan", "-inf", "0.5", "", " ", "-", "auto", "on"),
    *("q8_0", "262-inf", "hide", "shift", 'root ::= "a"', "root ::= (", "/", "/dev/null", "no/such", "chatml", "é🚀"),
    *("\x1b[31m", "a\nb", "\udcff", "%s", "{}", "~", "$HOME"),
]
_WORDS = st.one_of(st.sampled_from(_FLAGS), st.sampled_from(_VALUES), st.text("-=:nct0aé \n", max_size=5))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_WORDS, max_size=6))
def test_any_arguments_end_well(hello: Path, capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    code = call(["run", "-t", "1", "-n", "1", "-m", str(hello), *words])
    out, err = capfd.readouterr()
    assert code in (0, 1, 2, 3, 4, 5, 6)
    assert "Traceback" not in err
    assert "internal error" not in err
    if code:
        assert out == "" or code == 5
        assert err.splitlines()[-1].startswith("error: ")
