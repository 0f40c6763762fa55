"""`llmcli chat` that is not at a terminal: turns in on stdin, answers out on stdout."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmcli.cli.main import call
from llmcli.engine import native
from tests.chat_case import STRICT, library, talk
from tests.cli_run_case import Answer, engine_memo, known_engine, refused
from tests.conftest import RunCli
from tests.fixtures.cli_process import SCRIPT, Completed

__all__ = ["engine_memo", "known_engine"]
Scripted = Callable[..., Path]


class Chat(Answer):
    """`llmcli chat -t 1 --temp 0 -m MODEL …` in this process, with these turns on stdin."""

    def run(self, *args: str | Path, stdin: str | bytes | None = None, **options: Any) -> Completed:
        from tests.cli_run_case import _as_stdin

        with _as_stdin(stdin):
            code = call(["chat", "-t", "1", "--temp", "0", *map(str, args)])
        out, err = self._captured.readouterr()
        return Completed(code, out, err, 0.0, 0)


@pytest.fixture(name="chat")
def in_process(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    yield Chat(capfdbinary, monkeypatch)
    native.LOG.listen(None)


@pytest.fixture(name="model")
def greeter(scripted_model: Scripted) -> Path:
    return scripted_model(["Hello", " world", "!"], chat_template=STRICT, n_ctx=2048)


def users(session: str) -> list[str]:
    return [turn.user for turn in library().read(session).history.turns]


def test_each_line_is_a_turn_and_the_end_of_input_ends_it(chat: Chat, model: Path) -> None:
    done = chat(model, stdin="one\ntwo\r\n\n   \nthree")
    assert done.out == "Hello world!\n" * 3
    assert done.err == ""
    assert library().names() == []


@pytest.mark.parametrize("stdin", [None, "", "\n\n"])
def test_no_turns_no_answers(chat: Chat, model: Path, stdin: str | None) -> None:
    done = chat(model, stdin=stdin)
    assert (done.out, done.err) == ("", "")


def test_json_is_one_object_per_turn(chat: Chat, model: Path) -> None:
    lines = chat(model, "--json", "--session", "s", stdin="one\ntwo\n").out.splitlines()
    first, second = map(json.loads, lines)
    assert (first["turn"], first["session"], first["user"], first["text"]) == (1, "s", "one", "Hello world!")
    assert second["turn"] == 2
    assert second["finish_reason"] == "stop"
    assert second["usage"]["completion_tokens"] == 3
    usage = second["usage"]
    assert usage["kept_tokens"] + usage["restored_tokens"] + usage["computed_tokens"] == usage["prompt_tokens"]
    assert users("s") == ["one", "two"]


def test_other_separators(chat: Chat, model: Path) -> None:
    done = chat(model, "--session", "s", "--separator", r"\0", stdin="a\nb\0c\0\0")
    assert done.out == "Hello world!\n" * 2
    assert users("s") == ["a\nb", "c"]
    chat(model, "--session", "t", "--separator", "---\\n", stdin="a\n---\nb---\nc")
    assert users("t") == ["a\n", "b", "c"]
    assert "--separator is empty" in refused(chat.run("-m", model, "--separator", "", stdin="a"), 2)


def test_slashes_are_words_unless_asked(chat: Chat, model: Path) -> None:
    chat(model, "--session", "s", stdin="/undo\n/bye\nthree\n")
    assert users("s") == ["/undo", "/bye", "three"]
    done = chat(model, "--session", "s", "--commands", stdin="/undo\n/usr/bin is a path\n/* so */\n/BYE\nnever\n")
    assert users("s") == ["/undo", "/bye", "/usr/bin is a path", "/* so */"]
    assert done.out == "Hello world!\n" * 2
    assert done.err == "taken back: three\n"


def test_a_wrong_command_ends_a_script(chat: Chat, model: Path) -> None:
    done = chat.run("-m", model, "--commands", stdin="/undoo\nx\n")
    assert refused(done, 2) == ("error: there is no command /undoo (did you mean /undo? /help lists the commands)")
    done = chat.run("-m", model, "--commands", stdin="one\n/edit\nx\n")
    assert done.code == 2
    assert done.err == "error: here /edit needs the new text: /edit TEXT\n"


@pytest.fixture(name="endless")
def singer(scripted_model: Scripted) -> Path:
    return scripted_model(["la", "li"], chat_template=STRICT, loop=True, n_ctx=256)


def test_each_answer_that_was_cut_is_told(chat: Chat, endless: Path) -> None:
    limit = "the answer was cut off after 2 tokens: that is the limit (-n)\n"
    assert chat(endless, "-n", "2", stdin="a\nb\n").err == limit * 2
    full = "the answer was cut off: the context of 256 tokens is full (a larger -c, or --on-overflow shift)\n"
    assert chat(endless, "-c", "256", stdin="a\n").err == full
    assert "--on-overflow" not in chat(endless, "-c", "256", "-n", "2", stdin="a\n").err
    assert chat(endless, "-c", "256", "-q", stdin="a\n").err == ""
    commands = chat(endless, "-n", "1", "--commands", stdin="a\n").err
    assert commands == "the answer was cut off after 1 token: that is the limit (-n, or /set predict)\n"
    found = json.loads(chat(endless, "--json", "-n", "2", stdin="a\n").out)
    assert found["notes"] == [limit.strip().removeprefix("the answer was ")]


def test_what_is_advised_fits_the_situation(chat: Chat, endless: Path) -> None:
    small = (endless, "-c", "256", "-n", "100", "-q")
    for policy in ("error", "drop", "shift"):
        done = chat.run("-m", *small, "--on-overflow", policy, stdin="x" * 300 + "\n")
        told = refused(done, 4)
        assert re.fullmatch(r"error: this message has \d+ tokens, and the context 256 \(.*\)", told)
        assert told.endswith("(a larger -c, or a shorter message)")
    told = refused(chat.run("-m", *small, "--on-overflow", "error", "-sys", "Sing.", stdin="x" * 300 + "\n"), 4)
    assert told.startswith("error: this message and the system prompt have ")
    turns = "sing\n" + "x" * 150 + "\n"
    done = chat.run("-m", *small, "--on-overflow", "error", stdin=turns)
    assert done.code == 4
    assert done.err.endswith(" (a larger -c, or --on-overflow drop)\n")
    done = chat.run("-m", *small, "--on-overflow", "error", "--commands", stdin=turns)
    assert done.err.endswith(" (a larger -c, /undo or /clear, or --on-overflow drop)\n")


def test_retry_is_advised_where_it_can_be_given(chat: Chat, scripted_model: Scripted) -> None:
    silent = scripted_model([], chat_template=STRICT, n_ctx=2048)
    line = "there is no answer: the question is left out of what follows"
    assert chat(silent, stdin="a\n").err == f"{line}\n"
    assert chat(silent, "--commands", stdin="a\n").err == f"{line} (/retry asks it again)\n"


def test_a_session_goes_on(chat: Chat, model: Path) -> None:
    chat(model, "--session", "s", "-sys", "Be brief.", stdin="one\n")
    chat(model, "--session", "t", stdin="other\n")
    os.utime(library().path("t"), (1, 1))
    done = chat.run("--continue", stdin="two\n")  # with its own model
    assert (done.code, done.out) == (0, "Hello world!\n")
    chat(model, "-C", stdin="three\n")
    assert users("s") == ["one", "two", "three"]
    assert library().read("s").history.system == "Be brief."
    assert users("t") == ["other"]


def test_what_does_not_go_together(chat: Chat, model: Path) -> None:
    assert "there is no conversation to go on with" in refused(chat.run("-m", model, "-C", stdin="x"), 1)
    assert "--continue cannot go with it" in refused(chat.run("-m", model, "-C", "--session", "s", stdin="x"), 2)
    assert "cannot go with it" in refused(chat.run("-m", model, "--no-save", "--session", "s", stdin="x"), 2)
    assert "no name for a session" in refused(chat.run("-m", model, "--session", "../x", stdin="x"), 2)


def test_another_model_is_refused_with_both_names(chat: Chat, model: Path, scripted_model: Scripted) -> None:
    other = scripted_model(["Servus"], chat_template=STRICT, n_ctx=2048)
    chat(model, "--session", "s", stdin="one\n")
    line = refused(chat.run("-m", other, "--session", "s", stdin="two\n"), 2)
    assert line == (
        f"error: session s is with the model {model.stem}, and this is {other.stem} "
        "(--switch-model goes on with the other one)"
    )
    assert users("s") == ["one"]
    assert chat(other, "--session", "s", "--switch-model", stdin="two\n").out == "Servus\n"
    assert users("s") == ["one", "two"]


def test_a_default_model_does_not_take_a_session_away(
    chat: Chat, model: Path, scripted_model: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(model, "--session", "s", stdin="one\n")
    monkeypatch.setenv("LLMCLI_MODEL", str(scripted_model(["Servus"], chat_template=STRICT, n_ctx=2048)))
    assert chat.run("--session", "s", stdin="two\n").out == "Hello world!\n"


def test_damaged_and_newer_sessions(chat: Chat, model: Path) -> None:
    chat(model, "--session", "s", stdin="one\ntwo\n")
    path = library().path("s")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    done = chat(model, "--session", "s", stdin="three\n")
    assert done.err == "warning: llmcli was ended before it had answered: two\n"
    assert users("s") == ["one", "three"]
    path.write_bytes(whole.replace(b'"turns"', b'"tur"').replace(b'"user": "one"', b'"user": \xff"one"'))
    done = chat(model, "--session", "s", stdin="three\n")
    assert done.err == "".join(
        f"warning: line {number} of session s is damaged and left out: it is not a line of JSON\n" for number in (2, 3)
    )
    assert users("s") == ["two", "three"]
    path.write_bytes(whole.replace(b'"llmcli_session": 1', b'"llmcli_session": 7'))
    line = refused(chat.run("-m", model, "--session", "s", stdin="x"), 1)
    assert line.endswith("a newer llmcli (format 7, this one knows 1) (update llmcli)")
    assert path.read_bytes()[:100] == whole.replace(b'"llmcli_session": 1', b'"llmcli_session": 7')[:100]


def test_bytes_that_are_not_utf8_and_ten_megabytes(chat: Chat, model: Path) -> None:
    done = chat(model, "--session", "s", stdin=b"caf\xe9\n")
    assert done.err == "warning: stdin is not UTF-8 at byte 3 of a turn; wrong bytes were replaced\n"
    assert users("s") == ["caf\ufffd"]
    done = chat.run("-m", model, stdin=b"a" * 10_000_000 + b"\n")
    assert "at least" in refused(done, 4)


def test_thinking_goes_to_stderr(chat: Chat, scripted_model: Scripted) -> None:
    model = scripted_model(["<think>", "hm", "</think>", "yes"], n_ctx=2048)
    done = chat(model, stdin="one\n")
    assert (done.out, done.err) == ("yes\n", "hm\n")
    done = chat(model, "--reasoning", "hide", stdin="one\n")
    assert (done.out, done.err) == ("yes\n", "")


def test_control_bytes_in_a_pipe_are_exact(chat: Chat, scripted_model: Scripted) -> None:
    model = scripted_model(["a", b"\x1b", "]0;x", b"\x07"], n_ctx=2048)
    assert chat(model, stdin="one\n").stdout == b"a\x1b]0;x\x07\n"


def test_run_adds_one_turn(chat: Chat, answer: Answer, model: Path) -> None:
    assert answer(model, "--session", "s", "one").out == "Hello world!\n"
    found = answer.json(model, "--session", "s", "two")
    assert (found["session"], found["turn"], found["plan"]["threads"]) == ("s", 2, 1)
    chat(model, "--session", "s", stdin="three\n")
    assert users("s") == ["one", "two", "three"]
    for args in (["--raw"], ["--prefix", "p"], ["--on-overflow", "middle"]):
        assert "--session cannot go with it" in refused(answer.run("-m", model, "--session", "s", *args, "x"), 2)
    done = answer.run("-m", model, "--session", "s", "-n", "2", "--fail-on-length", "x")
    assert (done.code, done.out) == (5, "Hello world\n")


@pytest.mark.parametrize("command", ["chat", "chat --json", "run", "run --json"])
def test_an_answer_that_cannot_be_written_is_shown_whole(
    command: str, chat: Chat, answer: Answer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", _full_disk)
    options = ["-m", str(model), "--session", "s", "-q", *command.split()[1:]]
    done = chat.run(*options, stdin="one\ntwo\n") if command.startswith("chat") else answer.run(*options, "one")
    assert (done.code, done.err) == (6, "error: session s cannot be written: No space left on device\n")
    if "--json" in command:
        assert json.loads(done.out)["text"] == "Hello world!"
    else:
        assert done.out == "Hello world!\n"


@pytest.mark.parametrize("command", ["chat", "run"])
def test_a_session_that_may_not_be_written_is_told_first(
    command: str, chat: Chat, answer: Answer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(model, "--session", "s", stdin="one\n")
    before, real = library().path("s").read_bytes(), os.open

    def refusing(path: str | Path, flags: int, *rest: int, **named: Any) -> int:
        if str(path).endswith("s.jsonl") and flags & os.O_ACCMODE:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refusing)
    options = ["-m", str(model), "--session", "s"]
    done = chat.run(*options, stdin="two\n") if command == "chat" else answer.run(*options, "two")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1] == "error: session s cannot be written: Permission denied"
    assert library().path("s").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_told_first(chat: Chat, model: Path, llmcli_home: Path) -> None:
    (llmcli_home / "state").touch()
    told = refused(chat.run("-m", model, "--session", "s", stdin="one\n"), 1)
    assert "the conversation cannot be saved: " in told
    assert "Not a directory (--no-save talks without saving)" in told


def _full_disk(_handle: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture(name="answer")
def running(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Answer:
    return Answer(capfdbinary, monkeypatch)


# Other processes


def start(model: Path, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [SCRIPT, "chat", "-t", "1", "--temp", "0", "-m", model, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_answers_come_as_the_turns_do(model: Path) -> None:
    with start(model) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(2):
            child.stdin.write(b"hi\n")
            child.stdin.flush()
            assert child.stdout.readline() == b"Hello world!\n"
        child.stdin.close()
        assert child.wait() == 0


def test_killed_in_an_answer_and_gone_on_with(chat: Chat, scripted_model: Scripted) -> None:
    model = scripted_model(["la", "li"], chat_template=STRICT, loop=True, n_ctx=2048)
    chat(model, "--session", "s", "-n", "3", stdin="one\n")
    with start(model, "--session", "s") as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"sing\n")
        child.stdin.flush()
        assert child.stdout.read(4) == b"lali"
        child.kill()
    assert child.returncode == -signal.SIGKILL
    done = chat(model, "--continue", "-n", "2", "--commands", stdin="/retry\ntwo\n")
    assert done.out == "lali\nlali\n"
    assert "warning: llmcli was ended before it had answered: sing (/retry asks it again)\n" in done.err
    assert users("s") == ["one", "sing", "two"]
    assert "was ended" not in chat(model, "--continue", "-n", "2", stdin="three\n").err


def test_ctrl_c_keeps_the_partial_answer(chat: Chat, scripted_model: Scripted) -> None:
    model = scripted_model(["la", "li"], chat_template=STRICT, loop=True, n_ctx=2048)
    with start(model, "--session", "s") as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"sing\nand more\n")
        child.stdin.flush()
        assert child.stdout.read(4) == b"lali"
        child.send_signal(signal.SIGINT)
        child.wait(timeout=20)
    assert child.returncode == 130
    turns = library().read("s").history.turns
    assert [(turn.user, turn.finish_reason) for turn in turns] == [("sing", "interrupted")]
    assert turns[0].text.startswith("lali")
    assert chat(model, "-C", "-n", "2", stdin="two\n").out == "lali\n"


def test_the_second_chat_on_a_session_is_told(chat: Chat, model: Path) -> None:
    with start(model, "--session", "s") as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"one\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"Hello world!\n"
        line = refused(chat.run("-m", model, "--session", "s", stdin="x"), 1)
        assert f"session s is open in another llmcli (process {child.pid} on " in line
        assert "llmcli sessions fork s NEW" in line
        child.stdin.close()
        assert child.wait() == 0
    assert chat(model, "--session", "s", stdin="x\n").code == 0


def test_a_reader_that_goes_away(run_cli: RunCli, scripted_model: Scripted) -> None:
    model = scripted_model(["la", "li"], chat_template=STRICT, loop=True, n_ctx=2048)
    with start(model, "--session", "s") as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"sing\n")
        child.stdin.close()
        assert child.stdout.read(4) == b"lali"
        child.stdout.close()
        deadline = time.monotonic() + 20
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert child.poll() == 141
    assert library().read("s").history.turns[0].finish_reason == "interrupted"
    assert run_cli("sessions", "ls").code == 0


def test_a_conversation_opened_by_hand_is_the_same(chat: Chat, model: Path) -> None:
    chat(model, "--session", "s", stdin="one\n")
    with talk(model, "s") as conversation:
        assert conversation.history.turns[0].text == "Hello world!"


def test_defaults_of_the_environment_change_no_session(
    chat: Chat, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(model, "--session", "s", "-sys", "Be brief.", stdin="one\n")
    monkeypatch.setenv("LLMCLI_SYSTEM_PROMPT", "Be long.")
    monkeypatch.setenv("LLMCLI_CHAT_TEMPLATE", "llama-2")
    chat(model, "--session", "s", stdin="two\n")
    assert library().read("s").history.system == "Be brief."
    assert library().read("s").header.template is None
    chat(model, "--session", "new", stdin="one\n")
    assert library().read("new").history.system == "Be long."
