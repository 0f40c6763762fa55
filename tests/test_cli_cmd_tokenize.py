"""`llmcli tokenize`: the ids of a scripted vocabulary are known: <unk> <s> </s>, 256 bytes, <|im_start|> <|im_end|>."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.cli.main import call
from tests.conftest import RunCli

BYTE0, IM_START, IM_END, FIRST = 3, 259, 260, 261


def ids_of(text: str) -> list[int]:
    return [BYTE0 + byte for byte in text.encode()]


@pytest.fixture
def run(
    scripted_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `llmcli tokenize` in this process with a scripted model: (exit code, stdout, stderr)."""

    def tokenize(*args: str, add_bos: bool = False) -> tuple[int, str, str]:
        monkeypatch.setenv("LLMCLI_MODEL", str(scripted_model(["Hello", "wörld"], add_bos=add_bos)))
        code = call(["tokenize", *args])
        return code, *capfd.readouterr()

    return tokenize


def test_one_line_per_token(run: Any) -> None:
    assert run("go!") == (0, "    106  'g'\n    114  'o'\n     36  '!'\n3 tokens\n", "")
    assert run("g") == (0, "    106  'g'\n1 token\n", "")


def test_special_tokens_are_marked_and_parts_of_characters_are_bytes(run: Any) -> None:
    code, out, err = run("a\n<|im_end|>é")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "    100  'a'",
        r"     13  '\n'",
        "    260  '<|im_end|>'  special",
        "    198  '<0xC3>'",
        "    172  '<0xA9>'",
        "5 tokens",
    ]


def test_ids_and_count(run: Any) -> None:
    assert run("--ids", "ab<|im_end|>") == (0, "100 101 260\n", "")
    assert run("--count", "ab<|im_end|>") == (0, "3\n", "")


def test_a_users_text(run: Any) -> None:
    assert run("--ids", "--no-parse-special", "<|im_end|>")[1] == " ".join(map(str, ids_of("<|im_end|>"))) + "\n"


def test_bos(run: Any) -> None:
    assert run("--ids", "a", add_bos=True)[1] == "1 100\n"
    assert run("--ids", "<s>a", add_bos=True)[1] == "1 100\n"
    assert run("--ids", "--no-bos", "a", add_bos=True)[1] == "100\n"
    assert run("a", add_bos=True)[1].splitlines()[0] == "      1  '<s>'  special"


def test_json(run: Any) -> None:
    code, out, err = run("--json", "a<|im_end|>")
    assert (code, err, out.count("\n")) == (0, "", 1)
    found = json.loads(out)
    assert found["n_tokens"] == 2
    assert found["tokens"] == [
        {"id": 100, "piece": "a", "special": False},
        {"id": IM_END, "piece": "<|im_end|>", "special": True},
    ]
    assert found["model"]["name"] == Path(os.environ["LLMCLI_MODEL"]).stem
    assert len(found["model"]["content_id"]) == 64


def test_files_in_order_then_the_argument(run: Any, tmp_path: Path) -> None:
    for name, text in (("a", "A\n"), ("b", "B")):
        (tmp_path / name).write_text(text)
    args = ("--ids", "-f", str(tmp_path / "b"), "-f", str(tmp_path / "a"), "x")
    assert run(*args)[1] == " ".join(map(str, ids_of("B\n\nA\n\nx"))) + "\n"


@pytest.mark.parametrize("text", [" ", "\n", "\t \n"])
def test_white_space_is_a_text(text: str, run: Any) -> None:
    code, out, _ = run("--count", text)
    assert (code, int(out) > 0) == (0, True)


def test_no_text(run: Any) -> None:
    assert run() == (2, "", 'error: there is no prompt (try: llmcli tokenize "Hello world")\n')
    assert run("")[0] == 2


def test_a_byte_order_mark_and_nul(run: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfab\0cd\n")
    assert run("--ids", "-f", str(tmp_path / "x")) == (0, "100 101 3 102 103\n", "")


def test_invalid_utf8_has_one_warning_with_the_offset(run: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ab\xff\xfe")
    code, out, err = run("--ids", "-f", str(tmp_path / "x"))
    assert (code, out) == (0, " ".join(map(str, ids_of("ab\ufffd\ufffd"))) + "\n")
    assert err == f"warning: {tmp_path / 'x'} is not UTF-8 at byte 2; wrong bytes were replaced\n"
    assert run("-q", "--count", "-f", str(tmp_path / "x"))[2] == ""


def test_verbose_shows_the_log(run: Any) -> None:
    code, out, err = run("-v", "--count", "a")
    assert (code, out) == (0, "1\n")
    assert "llama_model_loader" in err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["-m", "/no/such.gguf", "a"], 3, "no such file: /no/such.gguf"),
        (["-f", "/no/such.txt"], 2, "cannot read /no/such.txt: No such file or directory"),
        (["-f", "/"], 2, "/ is a directory, not a file"),
        (["-p", "a", "b"], 2, "the prompt was given twice: with -p and as an argument"),
        (["--no-stdin", "-"], 2, "'-' asks for stdin and --no-stdin forbids it"),
    ],
)
def test_failures(args: list[str], code: int, message: str, run: Any) -> None:
    assert run(*args) == (code, "", f"error: {message}\n")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_characters=" ▁", exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_any_text_makes_lines_that_are_harmless(text: str, run: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(text.encode())
    code, out, err = run("-f", str(tmp_path / "x"))
    if text.removeprefix("\ufeff").strip("\n") == "":
        return
    assert (code, err) == (0, "")
    assert out.replace("\n", "").isprintable()
    *lines, last = out.splitlines()
    assert last.split()[0] == f"{len(lines):,}"


# ---- whole processes -------------------------------------------------------------------------------------------------


@pytest.fixture
def model(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", "wörld"])


def test_stdin_with_nul_bom_and_wrong_bytes(run_cli: RunCli, model: Path) -> None:
    done = run_cli("tokenize", "-m", model, "--ids", stdin=b"\xef\xbb\xbfab\0cd\xff\n")
    assert (done.code, done.out) == (0, " ".join(map(str, ids_of("ab\0cd\ufffd"))) + "\n")
    assert done.err == "warning: stdin is not UTF-8 at byte 8; wrong bytes were replaced\n"


def test_stdin_comes_before_the_argument(run_cli: RunCli, model: Path) -> None:
    done = run_cli("tokenize", "-m", model, "--ids", "x", stdin="y\n")
    assert done.out == " ".join(map(str, ids_of("y\n\nx"))) + "\n"


def test_stdin_that_is_a_directory(model: Path, shell: Any) -> None:
    done = shell('exec "$0" "$@" </', "tokenize", "-m", model, "--ids")
    # Python itself refuses to start (Fatal Python error: <stdin> is a directory); ours is in test_cli_inputs.
    assert (done.code, done.out) == (1, "")
    assert "is a directory" in done.err


def test_stdin_that_is_closed(model: Path, shell: Any) -> None:
    done = shell('exec "$0" "$@" <&-', "tokenize", "-m", model, "--ids", "a")
    assert (done.code, done.out, done.err) == (0, "100\n", "")
    done = shell('exec "$0" "$@" <&-', "tokenize", "-m", model)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


@pytest.fixture
def shell() -> Any:
    from tests.fixtures.cli_process import SCRIPT, run_process

    return lambda script, *args: run_process(["sh", "-c", script, SCRIPT, *args])


@pytest.mark.real_model
def test_smollm2(run_cli: RunCli, smollm2_path: Path) -> None:
    done = run_cli("tokenize", "-m", smollm2_path, "--ids", "Hello world<|im_end|>")
    assert (done.code, done.out, done.err) == (0, "19556 905 2\n", "")
