"""`llmcli run` and what is no model, or has a harmful template: exit 3 and one line, in bounded time and memory."""

from __future__ import annotations

import copy
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli_run_case import Answer, engine_memo, in_process, known_engine, refused  # noqa: F401  # fixtures
from tests.conftest import RunCli
from tests.fixtures.cli_process import SCRIPT, run_process
from tests.fixtures.gguf_edit import ARRAY, STRING, U32, Array, Gguf, Value, load

# A shell that takes its own memory away first. macOS has no such limit; there the measured peak is what counts.
LIMITED = 'ulimit -v 1000000 2>/dev/null; exec "$0" "$@"'
MOST_S, MOST_BYTES = 10.0, 1 << 30


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


def test_no_such_model(answer: Answer, tmp_path: Path, hello: Path) -> None:
    (tmp_path / "hello.gguf").write_bytes(hello.read_bytes())
    assert "no such file: " in refused(answer.run("-m", tmp_path / "nope.gguf", "hi"), 3)
    assert "did you mean" in refused(answer.run("-m", tmp_path / "helo.gguf", "hi"), 3)
    assert "no model called nope" in refused(answer.run("-m", "nope", "hi"), 3)
    assert "owner/nope is not in the Hugging Face cache" in refused(answer.run("-m", "owner/nope", "hi"), 3)


def test_a_directory(answer: Answer, tmp_path: Path) -> None:
    assert f"no model in the folder {tmp_path}" in refused(answer.run("-m", tmp_path, "hi"), 3)


def test_something_that_is_no_file(answer: Answer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    assert "is not a regular file" in refused(answer.run("-m", tmp_path / "model.gguf", "hi"), 3)


def test_the_default_model_without_a_network(answer: Answer) -> None:
    line = refused(answer.run("hi"), 3)
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


def test_a_template_of_the_users_own_that_fails(answer: Answer, hello: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{% if %}")
    line = refused(answer.run("-m", hello, "--chat-template", file, "hi"), 3)
    assert "mine.jinja" in line
    assert "is not valid in line 1" in line


def test_another_template_does_without_the_bad_one(answer: Answer, scripted_model: Callable[..., Path]) -> None:
    model = scripted_model(["ok"], chat_template="{% for %}")
    for option in (["--raw"], ["--chat-template", "chatml"]):
        done = answer.run("-m", model, *option, "hi")
        assert (done.code, done.out, done.err) == (0, "ok\n", "")
