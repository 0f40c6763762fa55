"""`llmcli run` and what it cannot use: models, templates, arguments, prompts. Each has its exit code and one line."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcli.cli.main import call
from tests.cli_run_case import engine_memo, known_engine, refused  # noqa: F401  # fixtures
from tests.conftest import RunCli
from tests.fixtures.cli_process import SCRIPT, Completed, run_process
from tests.fixtures.gguf_edit import ARRAY, STRING, U32, Array, Gguf, Value, load
from tests.fixtures.scripted_gguf import CHATML

# A shell that takes its own memory away first. macOS has no such limit; there the measured peak is what counts.
LIMITED = 'ulimit -v 1000000 2>/dev/null; exec "$0" "$@"'
MOST_S, MOST_BYTES = 10.0, 1 << 30


class Refuse:
    """Calls `llmcli run -t 1 …` in this process: quick, for what fails before a model is opened."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *args: str | Path) -> str:
        """The one line of a usage error."""
        code = call(["run", "-t", "1", *map(str, args)])
        out, err = self._capfd.readouterr()
        return refused(Completed(code, out.encode(), err.encode(), 0.0, 0), 2)


@pytest.fixture
def usage_error(capfd: pytest.CaptureFixture[str]) -> Refuse:
    return Refuse(capfd)


@pytest.fixture
def hello(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", " world"])


# ---- models ----------------------------------------------------------------------------------------------------------


def bounded(path: Path, code: int = 3) -> str:
    """The line with which `llmcli run` refuses a model file, within the limits of time and memory."""
    done = run_process(["sh", "-c", LIMITED, SCRIPT, "run", "-t", "1", "-m", path, "hi"], timeout_s=60)
    assert done.seconds < MOST_S
    assert done.peak_bytes < MOST_BYTES
    return refused(done, code).replace(str(path), "FILE")


LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{1:064d}\nsize 98362432\n"
LIE = struct.pack("<Q", 1 << 40)
NO_GGUF: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "FILE is an empty file"),
    "HTML": (b"<!DOCTYPE html><html><body>404</body></html>", "FILE is an HTML page"),
    "LFS pointer": (LFS.encode(), "FILE is a Git LFS pointer (the real file is 98362432 bytes)"),
    "GGML": (b"tjgg" + bytes(100), "FILE is an old GGML file"),
    "random": (random.Random(1).randbytes(100_000), "FILE is something else"),
    "four bytes": (b"GGUF", "FILE is cut off"),
    "a count of 2^40 keys": (b"GGUF" + struct.pack("<IQ", 3, 0) + LIE, "FILE"),
    "a key of 2^40 bytes": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + LIE, "FILE"),
    "an array of 2^30 items": (
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"x", ARRAY, 0, 1 << 30),
        "FILE",
    ),
    "arrays in arrays": (
        b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"x", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 50_000,
        "FILE",
    ),
}


@pytest.mark.parametrize("kind", NO_GGUF)
def test_a_file_that_is_no_gguf(kind: str, tmp_path: Path) -> None:
    data, expected = NO_GGUF[kind]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    assert bounded(path).startswith(f"error: {expected}")


def test_no_such_model(run_cli: RunCli, tmp_path: Path, hello: Path) -> None:
    (tmp_path / "hello.gguf").write_bytes(hello.read_bytes())
    assert "no such file: " in refused(run_cli("run", "-m", tmp_path / "nope.gguf", "hi"), 3)
    assert "did you mean" in refused(run_cli("run", "-m", tmp_path / "helo.gguf", "hi"), 3)
    assert "no model called nope" in refused(run_cli("run", "-m", "nope", "hi"), 3)
    assert "owner/nope is not in the Hugging Face cache" in refused(run_cli("run", "-m", "owner/nope", "hi"), 3)


def test_a_directory(run_cli: RunCli, tmp_path: Path) -> None:
    assert f"no model in the folder {tmp_path}" in refused(run_cli("run", "-m", tmp_path, "hi"), 3)


def test_something_that_is_no_file(run_cli: RunCli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    assert "is not a regular file" in refused(run_cli("run", "-m", tmp_path / "model.gguf", "hi", timeout_s=30), 3)


def test_the_default_model_without_a_network(run_cli: RunCli) -> None:
    line = refused(run_cli("run", "hi"), 3)
    assert "is not here, and the network is switched off" in line
    assert "name a model file: -m FILE" in line


@pytest.mark.parametrize("kept", [0.0001, 0.1, 0.9999])
def test_a_truncated_model(kept: float, hello: Path, tmp_path: Path) -> None:
    data = hello.read_bytes()
    path = tmp_path / "model.gguf"
    path.write_bytes(data[: int(len(data) * kept)])
    line = bounded(path)
    assert "is cut off" in line
    assert "pull it again" in line


def _tokens(model: Gguf) -> list[Any]:
    items: list[Any] = model.get("tokenizer.ggml.tokens").items
    return items


# What ends a process that hands it to libllama, or what an unbounded reader chokes on.
HOSTILE: dict[str, Callable[[Gguf], object]] = {
    "two equal tokens": lambda m: _tokens(m).__setitem__(5, b"<s>"),
    "a billion layers": lambda m: m.u32("llama.block_count", 10**9),
    "no layers": lambda m: m.u32("llama.block_count", 0),
    "no heads": lambda m: m.u32("llama.attention.head_count", 0),
    "no context": lambda m: m.u32("llama.context_length", 0),
    "an end token that is not there": lambda m: m.u32("tokenizer.ggml.eos_token_id", 10**6),
    "an alignment of three": lambda m: m.u32("general.alignment", 3),
    "a tensor outside the file": lambda m: setattr(m.tensor("output.weight"), "offset", 1 << 40),
    "a tensor of no columns": lambda m: setattr(m.tensor("output.weight"), "shape", [0, 263]),
    "a tensor whose size wraps": lambda m: setattr(m.tensor("output.weight"), "shape", [1 << 42, 1 << 42]),
    "a type that does not exist": lambda m: setattr(m.tensor("output.weight"), "type_id", 9999),
    "a norm of integers": lambda m: setattr(m.tensor("output_norm.weight"), "type_id", 26),
    "two tensors of one name": lambda m: m.tensors.append(copy.copy(m.tensors[0])),
    "a key twice": lambda m: m.keys.append((b"general.name", Value(STRING, b"x"))),
    "a vocabulary of numbers": lambda m: m.set("tokenizer.ggml.tokens", ARRAY, Array(U32, list(range(263)))),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_model(kind: str, hello: Path, tmp_path: Path) -> None:
    model = load(hello)
    HOSTILE[kind](model)
    bounded(model.write(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("general.architecture", "llama9", "FILE has the architecture 'llama9'"),
        ("general.architecture", "\x1b]0;x\x07", "FILE has the architecture "),
        ("general.architecture", "clip", "FILE is a vision or audio projector"),
        ("general.type", "mmproj", "FILE is a vision or audio projector"),
        ("general.type", "imatrix", "FILE is an importance matrix"),
        ("general.type", "adapter", "FILE is a LoRA adapter"),
        ("general.architecture", "bert", "FILE is an embedding model"),
    ],
)
def test_a_gguf_that_is_no_language_model(key: str, value: str, expected: str, hello: Path, tmp_path: Path) -> None:
    line = bounded(load(hello).text(key, value).write(tmp_path / "model.gguf"))
    assert line.startswith(f"error: {expected}")


# ---- chat templates --------------------------------------------------------------------------------------------------

_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
_CODE = (
    "{% for c in ().__class__.__base__.__subclasses__() %}{% if 'warning' in c.__name__ %}"
    "{{ c()._module.__builtins__['__import__']('os').popen('touch RAN').read() }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ raise_exception('one at a time') }}", "refuses the messages: one at a time"),
        ("{% for %}", "is not valid in line 1"),
        ("{{ nothing.at.all }}", "fails: "),
        (_LOOP, "takes longer than 2"),
        ("{{ 'x' * 10 ** 9 }}", "makes a value of more than"),
        (_CODE, "fails: "),
        ("{{ ''.__class__.__mro__ }}", "fails: "),
    ],
    ids=["raises", "syntax", "undefined", "loops", "large", "code", "attributes"],
)
def test_a_template_that_does_harm(
    template: str, expected: str, run_cli: RunCli, scripted_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = scripted_model(["ok"], chat_template=template)
    done = run_cli("run", "-t", "1", "-m", model, "hi", cwd=tmp_path)
    line = refused(done, 3)
    assert expected in line
    assert "--chat-template" in line
    assert done.peak_bytes < MOST_BYTES
    assert list(tmp_path.iterdir()) == []


def test_a_template_of_the_users_own_that_fails(run_cli: RunCli, hello: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{% if %}")
    line = refused(run_cli("run", "-t", "1", "-m", hello, "--chat-template", file, "hi"), 3)
    assert "mine.jinja" in line
    assert "is not valid in line 1" in line


def test_another_template_does_without_the_bad_one(run_cli: RunCli, scripted_model: Callable[..., Path]) -> None:
    model = scripted_model(["ok"], chat_template="{% for %}")
    for option in (["--raw"], ["--chat-template", "chatml"]):
        done = run_cli("run", "-t", "1", "-m", model, *option, "hi")
        assert (done.code, done.out, done.err) == (0, "ok\n", "")


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("-n -2", "'-n' / '--predict': -2 is not in the range"),
        ("-n 99999999999", "'-n' / '--predict': 99999999999 is not in the range"),
        ("-n 1e3", "'1e3' is not a whole number"),
        ("-n 3.5", "'3.5' is not a whole number"),
        ("-c -1", "'-c' / '--ctx-size': -1 is not in the range"),
        ("-c 99999999999", "'-c' / '--ctx-size': 99999999999 is not in the range"),
        ("-t 0", "'-t' / '--threads': 0 is not in the range"),
        ("-t -3", "'-t' / '--threads': -3 is not in the range"),
        ("-t nan", "'nan' is not a whole number"),
        ("-tb 0", "'-tb' / '--threads-batch': 0 is not in the range"),
        ("-b 0", "'-b' / '--batch-size': 0 is not in the range"),
        ("-ub 0", "'-ub' / '--ubatch-size': 0 is not in the range"),
        ("-ngl -2", "'-ngl' / '--n-gpu-layers': -2 is not in the range"),
        ("-s -2", "'-s' / '--seed': -2 is not in the range"),
        ("-s 4294967296", "'-s' / '--seed': 4294967296 is not in the range"),
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
        ("--mirostat 3", "3 is not in the range"),
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
        ("-f /", "/ is a directory; -f takes a file"),
        ("--raw --chat-template chatml", "--raw uses no template"),
        ("-f - --no-stdin", "'-' asks for stdin and --no-stdin forbids it"),
        ("--bogus", "No such option '--bogus'"),
        ("-n", "Option '-n' requires an argument"),
    ],
)
def test_arguments_out_of_range(args: str, expected: str, usage_error: Refuse, hello: Path) -> None:
    assert expected in usage_error("-m", hello, "hi", *args.split())


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
def test_a_grammar_that_does_not_parse(grammar: str, expected: str, usage_error: Refuse, tmp_path: Path) -> None:
    line = usage_error("--grammar", grammar, "hi")
    assert line.startswith("error: --grammar")
    assert expected in line
    file = tmp_path / "rules.gbnf"
    file.write_text(grammar)
    line = usage_error("--grammar-file", file, "hi")
    assert line.startswith(f"error: {file}")
    assert expected in line


def test_arguments_that_only_the_model_can_judge(run_cli: RunCli, hello: Path) -> None:
    for args, code, expected in (
        ("-t 100000", 2, "-t 100000 is out of range: expected 1 to 512"),
        ("-l 999999+1", 2, "-l 999999: this model's token ids end at 262"),
        ("-c 2000000000", 6, "its KV cache takes"),
        ("-ctv q4_0 -fa off", 2, "flash"),
        ("--chat-template nope", 2, "nope is neither a known template nor a file"),
        (f"--lora {hello}", 3, "LoRA"),
    ):
        assert expected in refused(run_cli("run", "-t", "1", "-m", hello, "hi", *args.split()), code)
    line = refused(run_cli("run", "-t", "1", "-m", hello, "hi", "-c", "2000000000"), 6)
    assert all(word in line for word in ("GiB free", "-c ", "-ctk q8_0"))


def test_the_least_that_llama_cpp_can_do(run_cli: RunCli, hello: Path) -> None:
    # Fewer places than sequences: llama.cpp ended the process.
    quick_end = {"GGML_NO_BACKTRACE": "1"}
    done = run_cli("run", "-t", "1", "-m", hello, "-c", "1", "--raw", "x", env=quick_end)
    assert "the prompt has 1 token and the context 1 " in refused(done, 4)
    done = run_cli("run", "-t", "1", "-m", hello, "-b", "1", "-ub", "1", "hi", env=quick_end)
    assert (done.code, done.out, done.err) == (0, "Hello world\n", "")


@pytest.mark.parametrize("value", ["nan", "-1", "warm"])
def test_a_bad_value_says_where_it_stands(value: str, usage_error: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMCLI_TEMP", value)
    assert ", from LLMCLI_TEMP (see llmcli run --help)" in usage_error("hi")


def test_no_prompt(run_cli: RunCli, usage_error: Refuse, hello: Path) -> None:
    line = 'error: there is no prompt (try: llmcli run "Why is the sky blue?")'
    assert usage_error("-m", hello) == line
    assert usage_error("-m", hello, "") == line
    assert usage_error("-m", hello, "-") == line
    for stdin in ("", " \n\t\n"):
        assert refused(run_cli("run", "-t", "1", "-m", hello, stdin=stdin), 2) == line


# ---- what is too long ------------------------------------------------------------------------------------------------


def test_a_prompt_that_does_not_fit(run_cli: RunCli, hello: Path, scripted_model: Callable[..., Path]) -> None:
    # 19 tokens of template; an "x" is a byte token.
    line = refused(run_cli("run", "-t", "1", "-m", hello, "-p", "x" * 600), 4)
    assert line.startswith("error: the prompt has 619 tokens and the context 512 ")
    assert "--on-overflow middle" in line
    large = scripted_model(["Hello", " world"], n_ctx=2048)
    line = refused(run_cli("run", "-t", "1", "-m", large, "-c", "512", "-p", "x" * 600), 4)
    assert line == "error: the prompt has 619 tokens and the context 512 (-c 1024, or --on-overflow middle to cut it)"
    done = run_cli("run", "-t", "1", "-m", large, "-c", "1024", "-p", "x" * 600)
    assert (done.code, done.out) == (0, "Hello world\n")


@pytest.mark.parametrize(("policy", "where"), [("middle", "from the middle"), ("shift", "from the start")])
def test_a_prompt_that_is_cut_says_so(policy: str, where: str, run_cli: RunCli, hello: Path) -> None:
    done = run_cli("run", "-t", "1", "-m", hello, "--on-overflow", policy, "--json", "-n", "2", "-p", "x" * 600)
    assert done.code == 0
    assert done.err.count("\n") == 1
    assert done.err.startswith("the prompt did not fit: ")
    assert f" of its 600 characters were dropped {where}\n" in done.err
    usage = json.loads(done.out)["usage"]
    assert 500 <= usage["prompt_tokens"] <= 510
    lost = int(done.err.split()[5])
    gap_tokens = 7 if policy == "middle" else 0  # "\n[…]\n", byte by byte
    assert usage["prompt_tokens"] == 19 + 600 - lost + gap_tokens


def test_a_system_prompt_is_never_cut(run_cli: RunCli, hello: Path) -> None:
    for policy in ("middle", "shift"):
        done = run_cli("run", "-t", "1", "-m", hello, "--on-overflow", policy, "-sys", "s" * 600, "hi")
        line = refused(done, 4)
        assert "the system prompt and the template alone have 6" in line
        assert "and the context 512" in line


# ---- what stdin holds ------------------------------------------------------------------------------------------------


def answer_to(run_cli: RunCli, model: Path, stdin: bytes, *args: str) -> tuple[dict[str, Any], str]:
    done = run_cli("run", "-t", "1", "-m", model, "--raw", "--json", *args, stdin=stdin)
    assert done.code == 0, done.err
    return json.loads(done.out), done.err


def test_stdin_that_is_not_utf8(run_cli: RunCli, hello: Path) -> None:
    found, err = answer_to(run_cli, hello, b"a\xff\xfeb")
    assert err == "warning: stdin is not UTF-8 at byte 1; wrong bytes were replaced\n"
    assert found["text"] == "Hello world"
    assert found["usage"]["prompt_tokens"] == len("a\ufffd\ufffdb".encode())


def test_nul_is_kept(run_cli: RunCli, hello: Path) -> None:
    with_nul, err = answer_to(run_cli, hello, b"ab\0cd")
    assert err == ""
    assert with_nul["usage"]["prompt_tokens"] == answer_to(run_cli, hello, b"abXcd")[0]["usage"]["prompt_tokens"] == 5


def test_a_byte_order_mark_is_dropped(run_cli: RunCli, hello: Path) -> None:
    found, err = answer_to(run_cli, hello, b"\xef\xbb\xbfab")
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


def test_control_tokens_in_a_prompt_are_text(run_cli: RunCli, hello: Path) -> None:
    done = run_cli("run", "-t", "1", "-m", hello, "--json", "<|im_end|>")
    assert json.loads(done.out)["usage"]["prompt_tokens"] == 19 + len("<|im_end|>")
    assert answer_to(run_cli, hello, b"<|im_end|>")[0]["usage"]["prompt_tokens"] == 1


def test_the_templates_frame_has_19_tokens(run_cli: RunCli, hello: Path) -> None:
    # <|im_start|> user \n … <|im_end|> \n <|im_start|> assistant \n, letters being tokens of their own
    assert "assistant" in CHATML
    done = run_cli("run", "-t", "1", "-m", hello, "--json", "x")
    assert json.loads(done.out)["usage"]["prompt_tokens"] == 19 + 1
