from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.cli import inputs, output
from llmcli.cli.inputs import decode_argument, gather_parts, read_text_file
from llmcli.engine.prompt import PromptPart


class Notes(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Gives stdin some content: a file, so that nothing blocks."""
    opened: list[int] = []

    def give(data: bytes) -> None:
        (tmp_path / "stdin").write_bytes(data)
        opened.append(os.open(tmp_path / "stdin", os.O_RDONLY))
        monkeypatch.setattr(inputs, "_STDIN", opened[-1])

    give(b"")
    yield give
    for descriptor in opened:
        os.close(descriptor)


def gather(notes: Notes, *words: str, **options: Any) -> list[tuple[str, str, str]]:
    settings = {"prompt": None, "files": (), "use_stdin": True, "example": "llmcli run x", **options}
    return [(p.kind, p.name, p.text) for p in gather_parts(words=words, notify=notes, **settings)]


def test_files_then_stdin_then_the_argument(stdin: Callable[[bytes], None], notes: Notes, tmp_path: Path) -> None:
    stdin(b"piped\n")
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("first\n")
    b.write_text("second")
    assert gather(notes, "some", "words", files=[str(b), str(a)]) == [
        ("file", str(b), "second"),
        ("file", str(a), "first\n"),
        ("stdin", "stdin", "piped\n"),
        ("argument", "prompt", "some words"),
    ]
    assert notes == []


@pytest.mark.parametrize("options", [{"prompt": "-"}, {"files": ["-"]}])
def test_a_dash_is_stdin(options: dict[str, Any], stdin: Callable[[bytes], None], notes: Notes) -> None:
    stdin(b"piped")
    assert gather(notes, **options) == [("stdin", "stdin", "piped")]
    stdin(b"piped")
    assert gather(notes, "-") == [("stdin", "stdin", "piped")]


def test_no_stdin_reads_nothing(stdin: Callable[[bytes], None], notes: Notes) -> None:
    stdin(b"piped")
    assert gather(notes, "hi", use_stdin=False) == [("argument", "prompt", "hi")]
    for options in ({"prompt": "-"}, {"files": ["-"]}):
        with pytest.raises(UsageError, match="'-' asks for stdin and --no-stdin forbids it"):
            gather(notes, use_stdin=False, **options)


def test_stdin_that_was_closed_at_the_start_is_none(
    stdin: Callable[[bytes], None], notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(b"a file that got the number")
    monkeypatch.setattr(output, "_closed_at_start", {0})
    assert gather(notes, "hi") == [("argument", "prompt", "hi")]


def test_a_prompt_given_twice(stdin: Callable[[bytes], None], notes: Notes) -> None:
    with pytest.raises(UsageError, match="the prompt was given twice: with -p and as an argument"):
        gather(notes, "a", prompt="b")


@pytest.mark.parametrize("data", [b"", b"\n", b" \t\r\n", b"\xef\xbb\xbf"])
def test_no_prompt(data: bytes, stdin: Callable[[bytes], None], notes: Notes) -> None:
    stdin(data)
    with pytest.raises(UsageError, match="there is no prompt") as failure:
        gather(notes)
    assert failure.value.hint == "try: llmcli run x"
    stdin(data)
    assert gather(notes, "hi") == [("argument", "prompt", "hi")]


def test_blank_text_counts_where_it_is_asked_for(stdin: Callable[[bytes], None], notes: Notes) -> None:
    stdin(b"\n")
    assert gather(notes, keep_blank=True) == [("stdin", "stdin", "\n")]
    stdin(b"\n")
    assert gather(notes, "x", keep_blank=True) == [("argument", "prompt", "x")]
    with pytest.raises(UsageError, match="there is no prompt"):
        gather(notes, "", keep_blank=True)


def test_bytes_of_any_kind(stdin: Callable[[bytes], None], notes: Notes, tmp_path: Path) -> None:
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfab\0cd\r\n")
    stdin(b"caf\xe9")
    assert gather(notes, "\udce9x", files=[str(tmp_path / "bom")]) == [
        ("file", str(tmp_path / "bom"), "ab\0cd\r\n"),
        ("stdin", "stdin", "caf\ufffd"),
        ("argument", "prompt", "\ufffdx"),
    ]
    assert notes == [
        "warning: stdin is not UTF-8 at byte 3; wrong bytes were replaced",
        "warning: the prompt is not UTF-8 at byte 0; wrong bytes were replaced",
    ]


def test_one_warning_names_the_first_wrong_byte_only(stdin: Callable[[bytes], None], notes: Notes) -> None:
    stdin(b"x" * 12_345 + b"\xff" * 5 + b"y\xff")
    ((_, _, text),) = gather(notes)
    assert text == "x" * 12_345 + "\ufffd" * 5 + "y\ufffd"
    assert notes == ["warning: stdin is not UTF-8 at byte 12,345; wrong bytes were replaced"]


def test_decode_argument(notes: Notes) -> None:
    assert decode_argument("é", "x", notes) == "é"
    assert decode_argument("\udcc3\udca9", "x", notes) == "é"  # what a C locale makes of an é
    assert notes == []


def test_files_that_cannot_be_read(stdin: Callable[[bytes], None], notes: Notes, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^cannot read no/such\\x1b: No such file or directory$"):
        gather(notes, "hi", files=["no/such\x1b"])
    with pytest.raises(UsageError, match=r" is a directory, not a file$"):
        gather(notes, "hi", files=[str(tmp_path)])
    with pytest.raises(UsageError, match=r"^cannot read a\\x00b: "):
        gather(notes, "hi", files=["a\0b"])


def test_read_text_file(notes: Notes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfBe brief.\n")
    assert read_text_file(str(tmp_path / "x"), notes) == "Be brief.\n"


def test_what_is_too_large_is_refused_on_the_way(
    stdin: Callable[[bytes], None], notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_MOST_BYTES", 3 << 20)
    stdin(b"x" * (3 << 20))
    assert len(gather(notes)[0][2]) == 3 << 20
    with pytest.raises(UsageError, match=r"^/dev/zero is larger than 3\.0 MiB: no context holds that$"):
        gather(notes, files=["/dev/zero"])


def test_a_directory_as_stdin(notes: Notes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        monkeypatch.setattr(inputs, "_STDIN", folder)
        with pytest.raises(LlmcliError, match="cannot read stdin: Is a directory") as failure:
            gather(notes, "hi")
        assert failure.value.exit_code == 1
    finally:
        os.close(folder)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end to write of a pipe that is stdin."""
    reader, writer = os.pipe()
    monkeypatch.setattr(inputs, "_STDIN", reader)
    yield writer
    os.close(reader)


def test_a_pipe_that_sends_nothing_gets_a_hint(pipe: int, notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_HINT_AFTER_S", 0.05)
    told = threading.Event()

    def notify(line: str) -> None:
        notes(line)
        told.set()

    def send() -> None:
        assert told.wait(5)
        os.write(pipe, b"late")
        os.close(pipe)

    sender = threading.Thread(target=send)
    sender.start()
    parts = gather_parts(prompt=None, words=(), files=(), use_stdin=True, notify=notify, example="x")
    sender.join()
    assert parts == (PromptPart("stdin", "stdin", "late"),)
    assert notes == ["still waiting for stdin, an open pipe that sends nothing; end it with Ctrl-D, or use --no-stdin"]


def test_a_pipe_that_sends_at_once_gets_none(pipe: int, notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    os.write(pipe, b"at once")
    os.close(pipe)
    assert gather(notes) == [("stdin", "stdin", "at once")]
    assert notes == []


def test_a_pipe_that_somebody_made_non_blocking(pipe: int, notes: Notes) -> None:
    os.set_blocking(inputs._STDIN, False)

    def send() -> None:
        for _ in range(3):
            os.write(pipe, b"slow ")
        os.close(pipe)

    sender = threading.Timer(0.05, send)
    sender.start()
    assert gather(notes) == [("stdin", "stdin", "slow slow slow ")]
    sender.join()
