"""`llmcli run` as it is meant to be used: what becomes the prompt, what stdout and stderr hold, what each flag does.

Its misuse is in test_cli_run_bad_input, its descriptors in test_cli_run_pipes, terminals in test_cli_run_terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.base.settings import load
from llmcli.cli.main import call
from llmcli.engine import native
from llmcli.hardware.cores import read_cores
from tests.cli_run_case import engine_memo, known_engine, refused  # noqa: F401  # fixtures
from tests.fixtures.cli_process import Completed

FRAME_TOKENS = 19  # of the scripted models' chat template around one user message
SYSTEM_TOKENS = 10  # <|im_start|> system \n … <|im_end|> \n

Script = Callable[..., Path]


class Answer:
    """Calls `llmcli run -t 1 -m MODEL …` in this process, which takes a tenth of the time, and expects exit code 0."""

    def __init__(self, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self._captured, self._monkeypatch = capfdbinary, monkeypatch

    def run(self, *args: str | Path, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Completed:
        """Any command line and any exit code."""
        with self._monkeypatch.context() as patch, _as_stdin(stdin):
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            code = call([str(arg) for arg in args])
        out, err = self._captured.readouterr()
        return Completed(code, out, err, 0.0, 0)

    def __call__(self, model: Path, *args: str | Path, **options: Any) -> Completed:
        done = self.run("run", "-t", "1", "-m", model, *args, **options)
        assert done.code == 0, done.err
        return done

    def json(self, model: Path, *args: str | Path, **options: Any) -> dict[str, Any]:
        """The account of --json, which is one line."""
        done = self(model, "--json", *args, **options)
        assert done.out.count("\n") == 1
        found: dict[str, Any] = json.loads(done.out)
        return found


@contextlib.contextmanager
def _as_stdin(text: str | None) -> Iterator[None]:
    """Descriptor 0 reads `text`; as pytest left it, the null device, where it is None."""
    if text is None:
        yield
        return
    kept = os.dup(0)
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        os.dup2(file.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(kept, 0)
            os.close(kept)


@pytest.fixture
def answer(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Answer]:
    yield Answer(capfdbinary, monkeypatch)
    native.LOG.listen(None)


@pytest.fixture
def hello(scripted_model: Script) -> Path:
    return scripted_model(["Hello", " world"])


@pytest.fixture
def ticking(scripted_model: Script) -> Path:
    return scripted_model(["tick", " tock", "\n"], loop=True)


@pytest.fixture
def thinking(scripted_model: Script) -> Path:
    return scripted_model(["<think>", "secret", "</think>", "answer"])


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
    done = answer.run("run", "-t", "1", "-m", ticking, "-n", "5", "--fail-on-length", "hi")
    assert (done.code, done.out) == (5, "tick tock\ntick tock\n")
    assert done.err == "error: the answer was cut after 5 tokens (a larger -n or -c)\n"
    done = answer.run("run", "-t", "1", "-m", ticking, "-n", "5", "--fail-on-length", "--json", "hi")
    assert (done.code, json.loads(done.out)["text"]) == (5, "tick tock\ntick tock")
    assert answer(hello, "--fail-on-length", "hi").out == "Hello world\n"


def test_an_answer_that_reaches_the_end_of_the_context(answer: Answer, ticking: Path) -> None:
    found = answer.json(ticking, "-c", "256", "-n", "5000", "hi")
    prompt, completion = found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]
    assert (found["finish_reason"], prompt + completion) == ("length", 256 + 1)  # the last is not decoded any more
    assert found["text"] == ("tick tock\n" * 100)[: len(found["text"])]


def test_an_answer_that_shifts_the_context_goes_on(answer: Answer, ticking: Path) -> None:
    done = answer(ticking, "-c", "256", "-n", "600", "--on-overflow", "shift", "hi")
    assert done.out == "tick tock\n" * 200
    assert done.err == "the context is full: the oldest 128 tokens were dropped\n"
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
    done = answer.run("run", "-t", "1", "hi", env={"LLMCLI_MODEL": str(hello)})
    assert (done.code, done.out) == (0, "Hello world\n")
    assert "no such file: " in refused(answer.run("run", "-m", "./no.gguf", "hi", env={"LLMCLI_MODEL": str(hello)}), 3)


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
