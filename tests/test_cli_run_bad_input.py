"""`llmcli run` and what it cannot use: arguments and prompts. Each has its exit code and one line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli_run_case import Answer, engine_memo, in_process, known_engine, refused  # noqa: F401  # fixtures
from tests.conftest import RunCli

FRAME_TOKENS = 19  # <|im_start|> user \n … <|im_end|> \n <|im_start|> assistant \n, a letter being a token of its own
MOST_S, MOST_BYTES = 10.0, 1 << 30


@pytest.fixture
def hello(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", " world"])


def usage_error(answer: Answer, *args: str | Path) -> str:
    """The one line of a command line that is refused with exit code 2."""
    return refused(answer.run(*args), 2)


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("-n -2", "'-n' / '--predict': -2 is not at least -1"),
        ("-n 99999999999", "'-n' / '--predict': 99999999999 is not at most 2147483647"),
        ("-n 1e3", "'1e3' is not a whole number"),
        ("-n 3.5", "'3.5' is not a whole number"),
        ("-c -1", "'-c' / '--ctx-size': -1 is not at least 0"),
        ("-c 99999999999", "'-c' / '--ctx-size': 99999999999 is not at most 2147483647"),
        ("-t 0", "'-t' / '--threads': 0 is not at least 1"),
        ("-t -3", "'-t' / '--threads': -3 is not at least 1"),
        ("-t nan", "'nan' is not a whole number"),
        ("-tb 0", "'-tb' / '--threads-batch': 0 is not at least 1"),
        ("-b 0", "'-b' / '--batch-size': 0 is not at least 1"),
        ("-ub 0", "'-ub' / '--ubatch-size': 0 is not at least 1"),
        ("-ngl -2", "'-ngl' / '--n-gpu-layers': -2 is not at least -1"),
        ("-s -2", "'-s' / '--seed': -2 is not between -1 and 4294967295"),
        ("-s 4294967296", "'-s' / '--seed': 4294967296 is not between -1 and 4294967295"),
        ("--temp nan", "'nan' is not a finite number"),
        ("--temp inf", "'inf' is not a finite number"),
        ("--temp -inf", "'-inf' is not a finite number"),
        ("--temp 1e39", "'1e39' is not a finite number"),
        ("--temp -0.1", "-0.1 is not at least 0"),
        ("--temp warm", "'warm' is not a number"),
        ("--top-p 1.1", "1.1 is not between 0 and 1"),
        ("--top-p nan", "'nan' is not a finite number"),
        ("--min-p -1", "-1 is not between 0 and 1"),
        ("--repeat-penalty 0", "0 is not at least"),
        ("--mirostat 3", "3 is not between 0 and 2"),
        ("-l 5", "'5' is not of the form 15043+1.5 or 15043-inf"),
        ("-fa maybe", "'maybe' is not one of 'auto', 'on', 'off'"),
        ("-ctk q2", "'q2' is not one of"),
        ("--reasoning loud", "'loud' is not one of"),
        ("--on-overflow ignore", "'ignore' is not one of"),
        ("--rope-scaling odd", "'odd' is not one of"),
        ("--rope-scale 2 --rope-freq-scale 0.5", "--rope-scale and --rope-freq-scale are the same setting"),
        ("--lora /no/such.gguf", "no such file: /no/such.gguf"),
        ("--grammar-file /no/such.gbnf", "/no/such.gbnf"),
        ("--grammar a --grammar-file /dev/null", "--grammar"),
        ("-p again", "the prompt was given twice"),
        ("-sys a -sysf b", "the system prompt was given twice"),
        ("-sysf /no/such.txt", "cannot read /no/such.txt: No such file or directory"),
        ("-f /no/such.txt", "cannot read /no/such.txt: No such file or directory"),
        ("-f /", "/ is a directory, not a file"),
        ("--raw --chat-template chatml", "--raw uses no template"),
        ("-f - --no-stdin", "'-' asks for stdin and --no-stdin forbids it"),
        ("--bogus", "No such option '--bogus'"),
        ("-n", "Option '-n' requires an argument"),
    ],
)
def test_arguments_out_of_range(args: str, expected: str, answer: Answer, hello: Path) -> None:
    assert expected in usage_error(answer, "-m", hello, "hi", *args.split())


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ("", "expected a rule named root, found an empty grammar"),
        ("root ::= (", "expected ')' for the group opened at line 1, column 10"),
        ('root ::= "a', "line 1"),
        ("root ::= nothing", "nothing"),
        ("yes", "line 1"),
        ("root ::= root", "root"),
    ],
)
def test_a_grammar_that_does_not_parse(grammar: str, expected: str, answer: Answer, tmp_path: Path) -> None:
    line = usage_error(answer, "--grammar", grammar, "hi")
    assert line.startswith("error: --grammar")
    assert expected in line
    file = tmp_path / "rules.gbnf"
    file.write_text(grammar)
    line = usage_error(answer, "--grammar-file", file, "hi")
    assert line.startswith(f"error: {file}")
    assert expected in line


def test_arguments_that_only_the_model_can_judge(answer: Answer, hello: Path) -> None:
    for args, code, expected in (
        ("-t 100000", 2, "-t 100000 is out of range: expected 1 to 512"),
        ("-l 999999+1", 2, "-l 999999: this model's token ids end at 262"),
        ("-c 2000000000", 6, "its KV cache takes"),
        ("-ctv q4_0 -fa off", 2, "flash"),
        ("--chat-template nope", 2, "nope is neither a known template nor a file"),
        (f"--lora {hello}", 3, "LoRA"),
    ):
        assert expected in refused(answer.run("-m", hello, "hi", *args.split()), code)
    line = refused(answer.run("-m", hello, "hi", "-c", "2000000000"), 6)
    assert all(word in line for word in ("GiB free", "-c ", "-ctk q8_0"))


def test_the_least_that_llama_cpp_can_do(run_cli: RunCli, hello: Path) -> None:
    # Fewer places than sequences: llama.cpp ended the process.
    quick_end = {"GGML_NO_BACKTRACE": "1"}
    done = run_cli("run", "-t", "1", "-m", hello, "-c", "1", "--raw", "x", env=quick_end)
    assert "the prompt has 1 token and the context 1 " in refused(done, 4)
    done = run_cli("run", "-t", "1", "-m", hello, "-b", "1", "-ub", "1", "hi", env=quick_end)
    assert (done.code, done.out, done.err) == (0, "Hello world\n", "")


@pytest.mark.parametrize("value", ["nan", "-1", "warm"])
def test_a_bad_value_says_where_it_stands(value: str, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMCLI_TEMP", value)
    assert ", from LLMCLI_TEMP (see llmcli run --help)" in usage_error(answer, "hi")


def test_no_prompt(answer: Answer, hello: Path) -> None:
    line = 'error: there is no prompt (try: llmcli run "Why is the sky blue?")'
    assert usage_error(answer, "-m", hello) == line
    assert usage_error(answer, "-m", hello, "") == line
    assert usage_error(answer, "-m", hello, "-") == line
    for stdin in ("", " \n\t\n"):
        assert refused(answer.run("-m", hello, stdin=stdin), 2) == line


# ---- what is too long ------------------------------------------------------------------------------------------------


def test_a_prompt_that_does_not_fit(answer: Answer, hello: Path, scripted_model: Callable[..., Path]) -> None:
    line = refused(answer.run("-m", hello, "-p", "x" * 600), 4)
    assert line.startswith("error: the prompt has 619 tokens and the context 512 ")
    assert "--on-overflow middle" in line
    large = scripted_model(["Hello", " world"], n_ctx=2048)
    line = refused(answer.run("-m", large, "-c", "512", "-p", "x" * 600), 4)
    assert line == "error: the prompt has 619 tokens and the context 512 (-c 1024, or --on-overflow middle to cut it)"
    done = answer.run("-m", large, "-c", "1024", "-p", "x" * 600)
    assert (done.code, done.out) == (0, "Hello world\n")


@pytest.mark.parametrize(("policy", "where"), [("middle", "from the middle"), ("shift", "from the start")])
def test_a_prompt_that_is_cut_says_so(policy: str, where: str, answer: Answer, hello: Path) -> None:
    done = answer.run("-m", hello, "--on-overflow", policy, "--json", "-n", "2", "-p", "x" * 600)
    assert done.code == 0
    assert done.err.count("\n") == 1
    assert done.err.startswith("the prompt did not fit: ")
    assert f" of its 600 characters were dropped {where}\n" in done.err
    usage = json.loads(done.out)["usage"]
    assert 500 <= usage["prompt_tokens"] <= 510
    lost = int(done.err.split()[5])
    gap_tokens = 7 if policy == "middle" else 0  # "\n[…]\n", byte by byte
    assert usage["prompt_tokens"] == FRAME_TOKENS + 600 - lost + gap_tokens


def test_a_system_prompt_is_never_cut(answer: Answer, hello: Path) -> None:
    for policy in ("middle", "shift"):
        done = answer.run("-m", hello, "--on-overflow", policy, "-sys", "s" * 600, "hi")
        line = refused(done, 4)
        assert "the system prompt and the template alone have 6" in line
        assert "and the context 512" in line


# ---- what stdin holds ------------------------------------------------------------------------------------------------


def answer_to(answer: Answer, model: Path, stdin: bytes, *args: str) -> tuple[dict[str, Any], str]:
    done = answer.run("-m", model, "--raw", "--json", *args, stdin=stdin)
    assert done.code == 0, done.err
    return json.loads(done.out), done.err


def test_stdin_that_is_not_utf8(answer: Answer, hello: Path) -> None:
    found, err = answer_to(answer, hello, b"a\xff\xfeb")
    assert err == "warning: stdin is not UTF-8 at byte 1; wrong bytes were replaced\n"
    assert found["text"] == "Hello world"
    assert found["usage"]["prompt_tokens"] == len("a\ufffd\ufffdb".encode())


def test_nul_is_kept(answer: Answer, hello: Path) -> None:
    with_nul, err = answer_to(answer, hello, b"ab\0cd")
    assert err == ""
    assert with_nul["usage"]["prompt_tokens"] == answer_to(answer, hello, b"abXcd")[0]["usage"]["prompt_tokens"] == 5


def test_a_byte_order_mark_is_dropped(answer: Answer, hello: Path) -> None:
    found, err = answer_to(answer, hello, b"\xef\xbb\xbfab")
    assert (found["usage"]["prompt_tokens"], err) == (2, "")


@pytest.mark.parametrize("kind", ["text", "random"])
def test_ten_megabytes_of_stdin(kind: str, run_cli: RunCli, hello: Path) -> None:
    data = b"a" * 10_000_000 if kind == "text" else random.Random(2).randbytes(10_000_000)
    done = run_cli("run", "-t", "1", "-m", hello, "-q", stdin=data)
    line = refused(done, 4)
    assert "the prompt has at least " in line
    assert "tokens and the context 512" in line
    assert done.seconds < 2 * MOST_S
    assert done.peak_bytes < MOST_BYTES


def test_ten_megabytes_of_stdin_cut_to_fit(run_cli: RunCli, hello: Path) -> None:
    done = run_cli("run", "-t", "1", "-m", hello, "--on-overflow", "middle", stdin=b"a" * 10_000_000)
    assert (done.code, done.out) == (0, "Hello world\n")
    assert " of its 10,000,000 characters were dropped from the middle\n" in done.err
    assert done.peak_bytes < MOST_BYTES


def test_control_tokens_in_a_prompt_are_text(answer: Answer, hello: Path) -> None:
    done = answer.run("-m", hello, "--json", "<|im_end|>")
    assert json.loads(done.out)["usage"]["prompt_tokens"] == FRAME_TOKENS + len("<|im_end|>")
    assert answer_to(answer, hello, b"<|im_end|>")[0]["usage"]["prompt_tokens"] == 1
