"""Bytes on stdout and stderr, whatever the descriptors are: pipes, terminals, full disks, closed, gone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import LlmcliError, ResourceError
from llmcli.cli import output

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A pipe in place of stdout: the end to read, the end that is written to."""
    reader, writer = os.pipe()
    monkeypatch.setattr(output, "_STDOUT", writer)
    yield reader, writer
    for descriptor in (reader, writer):
        with contextlib.suppress(OSError):  # a test may have closed it
            os.close(descriptor)


@pytest.fixture
def written(pipe: tuple[int, int]) -> Callable[[], bytes]:
    """Closes the pipe and tells what came through."""
    reader, writer = pipe

    def read() -> bytes:
        os.close(writer)
        return b"".join(iter(lambda: os.read(reader, 65536), b""))

    return read


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(output, "_STDOUT", descriptor)
    monkeypatch.setattr(output, "_STDERR", descriptor)
    yield
    os.close(descriptor)


def test_text_goes_out_as_utf8_at_once(pipe: tuple[int, int]) -> None:
    output.write("Go🚀é!\0\x1b[31m\n")
    assert os.read(pipe[0], 100) == "Go🚀é!\0\x1b[31m\n".encode()


def test_an_empty_text_writes_nothing(written: Callable[[], bytes]) -> None:
    output.write("")
    assert written() == b""


def test_text_that_is_no_unicode_is_written_as_utf8_all_the_same(written: Callable[[], bytes]) -> None:
    output.write("caf\udce9 \ud800\n")
    assert written() == b"caf\\udce9 \\ud800\n"


def test_on_a_terminal_control_characters_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    try:
        monkeypatch.setattr(output, "_STDOUT", slave)
        output.write("a\x1b]0;x\x07\x9b\r\n\té\n")
        assert os.read(master, 100) == "a\\x1b]0;x\\x07\\x9b\\x0d\r\n\té\r\n".encode()
    finally:
        os.close(master)
        os.close(slave)


def test_a_reader_that_went_away(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    with pytest.raises(BrokenPipeError):
        output.write("x")


@needs_full
def test_a_full_disk(full: None) -> None:
    with pytest.raises(ResourceError, match="cannot write the answer: No space left on device"):
        output.write("x")


def test_a_descriptor_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = os.open(os.devnull, os.O_RDONLY)
    try:
        monkeypatch.setattr(output, "_STDOUT", reader)
        with pytest.raises(LlmcliError, match="cannot write to stdout: Bad file descriptor") as failure:
            output.write("x")
        assert failure.value.exit_code == 1
    finally:
        os.close(reader)


def test_a_pipe_that_somebody_made_non_blocking(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    text = "0123456789abcdef" * 40_000  # ten times what a pipe holds
    writing = threading.Thread(target=output.write, args=(text,))
    writing.start()
    got = 0
    while got < len(text):
        got += len(os.read(reader, 4096))
    writing.join(10)
    assert (got, writing.is_alive()) == (len(text), False)


def test_stdout_that_was_closed_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_closed_at_start", {1})
    with pytest.raises(LlmcliError, match="stdout is closed: there is nowhere to write the answer"):
        output.write("x")


def test_missing_descriptors_become_the_null_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []

    def fstat(descriptor: int) -> None:
        if descriptor in (0, 2):
            raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(output, "_closed_at_start", set())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fstat)
        patch.setattr(os, "open", lambda path, flags: made.append((path, flags)))
        output.open_missing_descriptors()
    assert made == [(os.devnull, os.O_RDWR)] * 2
    assert not output.stdin_is_open()


def test_no_terminal_where_nothing_is_open() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    assert output.is_terminal(reader) is False
    os.close(reader)
    assert output.is_terminal(reader) is False


# ---- JSON ------------------------------------------------------------------------------------------------------------


def test_json_is_one_line_with_the_characters_themselves(written: Callable[[], bytes]) -> None:
    output.write_json({"text": "é🚀\n\0", "n": [1, None, 2.5]})
    assert written() == '{"text": "é🚀\\n\\u0000", "n": [1, null, 2.5]}\n'.encode()


def test_json_with_a_name_that_is_not_utf8_is_valid_all_the_same(written: Callable[[], bytes]) -> None:
    value = {"path": "/m/caf\udce9.gguf", "text": "é"}
    output.write_json(value)
    data = written()
    assert data == b'{"path": "/m/caf\\udce9.gguf", "text": "\\u00e9"}\n'
    assert json.loads(data.decode("utf-8")) == value


@given(st.text() | st.text(st.characters(categories=["Cs", "Cc", "L"])))
def test_any_text_survives_json(text: str) -> None:
    sent: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "write", sent.append)
        output.write_json({"text": text})
    (line,) = sent
    assert json.loads(line.encode("utf-8")) == {"text": text}
    assert line.count("\n") == 1


# ---- stderr ----------------------------------------------------------------------------------------------------------


def test_stderr_has_the_encoding_of_its_stream(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    output.stderr_line("é \udcff")

    class Ascii:
        encoding = "ascii"

    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", Ascii())
        output.stderr_text("é")
        patch.setattr("sys.stderr", None)
        output.stderr_text("é\n")
    assert capfd.readouterr().err == "é \\udcff\n\\xe9é\n"


@needs_full
def test_a_full_disk_below_stderr_is_no_error(full: None) -> None:
    output.stderr_line("x")


def test_stderr_without_a_reader_is_no_error(monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]) -> None:
    monkeypatch.setattr(output, "_STDERR", pipe[1])
    os.close(pipe[0])
    output.stderr_line("x")
    os.close(pipe[1])
    output.stderr_line("x")


# ---- what click wrote ------------------------------------------------------------------------------------------------


class Stream:
    """A stdout whose flush ends in `error`."""

    def __init__(self, error: OSError | None) -> None:
        self._error = error

    def flush(self) -> None:
        if self._error:
            raise self._error


@pytest.mark.parametrize(
    ("stream", "code", "replaced"),
    [
        (Stream(None), 0, False),
        (None, 0, False),
        (Stream(BrokenPipeError()), 141, True),
        (Stream(OSError(errno.ENOSPC, "No space left on device")), 1, True),
    ],
)
def test_clicks_output_fails_once_and_not_again_at_exit(
    stream: Stream | None, code: int, replaced: bool, monkeypatch: pytest.MonkeyPatch, written: Callable[[], bytes]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stream)
        assert output.flush_clicks_output() == code
    os.write(output._STDOUT, b"x")
    assert written() == (b"" if replaced else b"x")


@pytest.mark.parametrize("name", [b"plain", b"inv\xff", b"esc\x1b[31m", b"new\nline", "é模".encode()])
def test_names_of_files_come_as_the_file_system_has_them(written: Callable[[], bytes], name: bytes) -> None:
    output.write_names([os.fsdecode(name), "b"])
    assert written() == name + b"\nb\n"


def test_a_name_that_no_file_can_have_is_shown(written: Callable[[], bytes]) -> None:
    output.write_names(["a\ud800"])
    assert written() == b"a\\ud800\n"


def test_names_cannot_drive_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pty.openpty()
    monkeypatch.setattr(output, "_STDOUT", writer)
    output.write_names([os.fsdecode(b"inv\xff"), "esc\x1b[31m", "new\nline"])
    assert os.read(reader, 1000) == b"inv\\udcff\r\nesc\\x1b[31m\r\nnew\\nline\r\n"
    os.close(writer)
    os.close(reader)


def test_the_width_is_that_of_the_terminal_if_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "57")
    monkeypatch.setattr(output, "is_terminal", lambda: False)
    assert output.terminal_columns() is None
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert output.terminal_columns() == 57
