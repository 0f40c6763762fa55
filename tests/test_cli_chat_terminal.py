"""`llmcli chat` at a terminal, as a person sees it: answers, keys, pastes, interrupts, sizes, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.cli.chat_commands import COMMANDS
from tests.chat_case import library
from tests.chat_person import Person, StartChat, chat_starter  # noqa: F401  # a fixture
from tests.cli_run_case import engine_memo, known_engine  # noqa: F401  # fixtures
from tests.conftest import OpenTerminal
from tests.fixtures.terminal import CTRL_C, CTRL_D, ENTER, Terminal

UP, TAB, ALT_ENTER = b"\x1b[A", b"\t", b"\x1b\r"
CTRL_E, CTRL_O, CTRL_R, CTRL_X = b"\x05", b"\x0f", b"\x12", b"\x18"
Script = Callable[..., Path]


@pytest.fixture
def hello(scripted_model: Script) -> Path:
    return scripted_model(["Hello", " world"], n_ctx=4096)


@pytest.fixture
def long(scripted_model: Script) -> Path:
    """300 words, about two seconds."""
    return scripted_model([f"w{number} " for number in range(300)], n_ctx=4096, width=2048)


def colours_in(data: bytes) -> set[bytes]:
    """The arguments of the sequences that set colours and the like."""
    return set(re.findall(rb"\x1b\[([0-9;]*)m", data)) - {b"", b"0"}


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_a_turn(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        assert person.below[0] == "> a message, or /help"
        person.says("hi")
        seen = person.waits_until_idle()
        assert "> hi\nHello world\n\n> a message, or /help\ncontext " in seen
        assert "tok/s" in person.below[1]
        assert person.leaves() == 0
        assert re.search(r"> hi\nHello world\n\nsession [\d-]+: llmcli chat --continue$", person.sees)


@pytest.mark.parametrize("how", ["-q", "--no-save", "nothing said"])
def test_leaving_says_nothing_where_there_is_nothing_to_say(how: str, open_terminal: OpenTerminal, hello: Path) -> None:
    options = [how] if how.startswith("-") else []
    with open_terminal("chat", "-t", "1", "-m", hello, *options) as terminal:
        person = Person(terminal, 24, 80)
        person.waits_for("> a message")
        if options:
            person.says("hi")
            person.waits_until_idle()
        assert person.leaves() == 0
        assert "llmcli chat" not in person.sees


def test_markdown_is_rendered(start_chat: StartChat, scripted_model: Script) -> None:
    model = scripted_model(
        ["# Ti", "tle\n", "**bo", "ld** and ", "`co", "de`\n- item\n", "|a|b|\n|-|-|\n", "|1|22|\n", "end"]
    )
    with start_chat(model) as person:
        person.says("hi")
        seen = person.waits_until_idle()
        assert "\nTitle\nbold and code\n• item\na │ b\n──┼───\n1 │ 22\nend\n" in seen
        assert b"\x1b[1mbold\x1b[0m" in person.terminal.screen


def test_plain_shows_what_the_model_wrote(start_chat: StartChat, scripted_model: Script) -> None:
    model = scripted_model(["# Title\n", "**bold** ", "`code`"])
    with start_chat(model, "--plain") as person:
        person.says("hi")
        assert "# Title\n**bold** `code`\n" in person.waits_until_idle()


def test_characters_that_are_split_over_tokens(start_chat: StartChat, scripted_model: Script) -> None:
    rocket = [bytes([byte]) for byte in "🚀".encode()]
    with start_chat(scripted_model(["Go ", *rocket, " 日本"])) as person:
        person.says("hi")
        assert "Go 🚀 日本\n" in person.waits_until_idle()


@pytest.mark.parametrize("look", [(), ("--plain",)], ids=["markdown", "plain"])
def test_an_answer_cannot_drive_the_terminal(
    look: tuple[str, ...], start_chat: StartChat, scripted_model: Script
) -> None:
    steps = ["a\x1b]0;x\x07", "\x1b[2J", b"\x9b", "\r", "x\x08y", "\u202e", " end"]
    with start_chat(scripted_model(steps), *look) as person:
        person.says("hi")
        seen = person.waits_until_idle()  # the screen of the tests knows no operating system commands
        assert "a\\x1b]0;x\\x07\\x1b[2J\ufffd\\x0dx\\x08y\\u202e end\n" in seen
        assert b"\x1b]" not in person.terminal.screen


def test_what_is_pasted_and_said_cannot_either(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        person.pastes("a\x1b]0;x\x07b")
        person.types(ENTER)
        person.waits_until_idle()
        assert "> a\\x1b]0;x\\x07b\n" in person.sees
        assert b"\x1b]" not in person.terminal.screen


def test_thinking_is_shown_dimmed(start_chat: StartChat, scripted_model: Script) -> None:
    with start_chat(scripted_model(["<think>", "hmm so", "</think>", "answer"])) as person:
        person.says("hi")
        assert "> hi\nhmm so\n\nanswer\n" in person.waits_until_idle()
        assert b"\x1b[2mhmm so" in person.terminal.screen


def test_thinking_is_folded_and_unfolded(start_chat: StartChat, scripted_model: Script) -> None:
    with start_chat(scripted_model(["<think>", "hmm so", "</think>", "answer"]), "--reasoning", "hide") as person:
        person.says("hi")
        seen = person.waits_until_idle()
        assert re.search(r"> hi\nthought for [\d.]+ m?s; Ctrl-O shows it\n\nanswer\n", seen)
        assert "hmm so" not in seen
        person.types(CTRL_O)
        person.waits_for("hmm so")


def test_a_line_longer_than_the_screen_is_high(start_chat: StartChat, long: Path) -> None:
    with start_chat(long, rows=10, columns=40) as person:
        person.says("hi")
        seen = person.waits_until_idle()
        assert re.findall(r"\bw\d+\b", seen) == [f"w{number}" for number in range(300)]


# ---- the line --------------------------------------------------------------------------------------------------------


def test_an_answer_that_cannot_be_saved_is_shown(start_chat: StartChat, hello: Path, llmcli_home: Path) -> None:
    sessions = llmcli_home / "state" / "sessions"
    with start_chat(hello, "--session", "s") as person:
        person.says("one")
        person.waits_until_idle()
        sessions.rename(sessions.with_name("away"))
        sessions.touch()
        person.says("two")
        assert "> two\nHello world\n\nerror: session s cannot be written: " in person.waits_until_idle()
        person.says("/fork other")
        assert "> /fork other\nerror: " in person.waits_until_idle()
        sessions.unlink()
        sessions.with_name("away").rename(sessions)
        person.says("three")
        assert person.waits_until_idle().count("\nHello world\n") == 3
        assert person.leaves() == 0
    lines = [json.loads(line) for line in (sessions / "s.jsonl").read_text().splitlines()]
    assert [line["user"] for line in lines if line.get("type") == "turn"] == ["one", "two", "three"]


def test_two_chats_begun_in_the_same_minute(start_chat: StartChat, hello: Path, llmcli_home: Path) -> None:
    with start_chat(hello) as one, start_chat(hello) as other:
        for person in (one, other):
            person.says("hi")
            person.waits_until_idle()
            assert person.leaves() == 0
    assert len(list((llmcli_home / "state" / "sessions").glob("*.jsonl"))) == 2


def test_several_pasted_lines_are_one_turn(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        person.pastes("one\r\ntwo\rthree")
        person.waits_for(". three")
        assert "Hello" not in person.sees
        person.types(ENTER)
        seen = person.waits_until_idle()
        assert "> one\n. two\n. three\nHello world\n" in seen
        assert seen.count("Hello world") == 1


def test_a_block_in_quotes_and_alt_enter(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        person.types(b'"""one' + ENTER + b"two" + ENTER + b'"""')
        person.waits_for('. """')
        assert "Hello" not in person.sees
        person.types(ENTER)
        person.waits_until_idle()
        person.types(b"three" + ALT_ENTER + b"four" + ENTER)
        assert "> three\n. four\nHello world\n" in person.waits_until_idle()
        person.says("/show prompt")
        seen = person.waits_for(lambda text: text.count("three") == 2)
        assert '"""one\n. two' in seen  # as it was typed
        assert seen.count('"""') == 2  # and not in the prompt


def test_ten_megabytes_pasted(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        person.pastes("lorem ipsum\n" * 874_000)
        person.waits_for("> [paste 1: 874,001 lines, 10.0 MiB]")
        person.types(b" and?" + ENTER)
        person.waits_for("error: ")
        assert "4,096" in person.waits_until_idle()
        person.says("hi")
        assert "> hi\nHello world\n" in person.waits_until_idle()
        assert person.leaves() == 0


def test_a_paste_that_the_terminal_does_not_mark(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        person.terminal.send(b"lorem\r" * 300)  # fits one read
        person.waits_for("> [paste 1: 301 lines, 1.8 KiB]")
        person.terminal.pump(0.5)
        assert "Hello" not in person.sees
        person.types(CTRL_C)
        person.waits_for("> a message")
        person.says("hi")
        assert person.waits_until_idle().count("Hello world") == 1


def test_a_long_paste_reaches_the_model_whole(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        person.pastes("\n".join(f"line{number}" for number in range(50)))
        person.waits_for("[paste 1: 50 lines, ")
        person.types(ENTER)
        person.waits_until_idle()
        person.says("/show prompt")
        assert "line0\n" in person.waits_for("line49")


def test_what_is_typed_ahead_is_seen_at_once_and_said_later(start_chat: StartChat, long: Path) -> None:
    with start_chat(long) as person:
        person.says("first")
        person.waits_for("w20 ")
        person.types(b"second" + ENTER + b"thi")
        seen = person.waits_for("next: second\n> thi\n")
        assert "w299" not in seen
        person.waits_for(lambda text: text.count("w299") == 2)
        seen = person.waits_until_idle()
        assert re.search(r"> first\nw0 .*w299\n\n> second\nw0 .*w299\n\n> thi\n", seen, re.DOTALL)


def test_commands_and_paths_are_completed(start_chat: StartChat, hello: Path, llmcli_home: Path) -> None:
    (llmcli_home.parent / "home" / "notes.txt").write_text("from the file")
    with start_chat(hello) as person:
        person.types(b"/rea" + TAB + b" no" + TAB)
        person.waits_for("> /read notes.txt")
        person.types(ENTER + ENTER)  # the first one takes the completion
        person.waits_until_idle()
        person.says("hi")
        person.waits_until_idle()
        person.says("/show prompt")
        person.waits_for("from the file")


def test_help_alone_lists_every_command(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello, rows=50) as person:
        person.says("/help")
        seen = person.waits_until_idle()
        assert [name for command in COMMANDS for name in command.names if name not in seen] == []
        assert "Alt-Enter" in seen


def test_the_history_comes_back(start_chat: StartChat, hello: Path, llmcli_home: Path) -> None:
    with start_chat(hello) as person:
        person.says("remember me")
        person.waits_until_idle()
        person.says(" not me")
        person.waits_until_idle()
        person.leaves()
    file = llmcli_home / "state" / "chat_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "not me" not in file.read_text()
    with start_chat(hello) as person:
        person.types(UP)
        person.waits_for("> remember me")


def test_up_goes_back_in_this_chat(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        for text in ("first", "second"):
            person.says(text)
            person.waits_until_idle()
        person.pastes("x" * 2100)
        person.waits_for("> [paste 1: ")
        person.types(ENTER)
        person.waits_until_idle()
        person.types(UP * 2)
        person.waits_for(lambda _: person.below[0] == "> second")
        person.types(b"\x1b[B" + ENTER)
        person.waits_for(lambda text: text.count("> [paste 1: ") == 2)
        person.waits_until_idle()
        person.says("/show prompt")
        person.waits_for("x" * 70)


def test_the_history_is_searched(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        for text in ("find me", "other"):
            person.says(text)
            person.waits_until_idle()
        person.types(CTRL_R + b"fin")
        person.waits_for("> find me\nI-search backward: fin")
        person.types(CTRL_C)  # ends the search, not the chat
        person.waits_for(lambda _: person.below[0] == "> a message, or /help")
        person.types(CTRL_R + b"fin")
        person.waits_for("I-search backward: fin")
        person.terminal.send(ENTER)
        person.waits_for(lambda _: person.below[:2][-1].startswith("context"))
        assert person.below[0] == "> find me"


def test_tab_goes_through_what_is_offered(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        person.types(b"/re")
        person.waits_for("Ask the last question again.")
        person.types(TAB)
        person.waits_for("> /retry")
        person.types(TAB)
        person.waits_for("> /read")
        assert len(person.below) == 4  # the line, two commands, the status: no empty rows between them


def test_what_is_typed_before_the_prompt_is_there(open_terminal: OpenTerminal, hello: Path) -> None:
    with open_terminal("chat", "-t", "1", "-m", hello) as terminal:
        terminal.send(b"early" + ENTER)
        person = Person(terminal, 24, 80)
        assert person.waits_for("> early\nHello world\n").count("Hello world") == 1


def test_a_conversation_that_comes_back_shows_where_it_was(start_chat: StartChat, scripted_model: Script) -> None:
    model = scripted_model(["<think>", "hmm", "</think>", "**Hello**"], n_ctx=4096)
    with start_chat(model, "--session", "trip") as person:
        for text in ("one", "two"):
            person.says(text)
            person.waits_until_idle()
        person.leaves()
    with start_chat(model, "--continue") as person:
        seen = person.waits_for("> a message")
        assert "this conversation has 2 turns; the last one was:\n\n> two\nHello\n\n> a message" in seen
        assert "session trip" in person.below[1]


def test_an_editor_for_the_line_and_for_the_last_turn(start_chat: StartChat, hello: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "%s, edited" "$(cat "$1")" > "$1"\n')
    editor.chmod(0o700)
    with start_chat(hello, env={"EDITOR": str(editor)}) as person:
        person.types(b"draft" + CTRL_X + CTRL_E)
        person.waits_for("> draft, edited")
        person.types(ENTER)
        person.waits_until_idle()
        person.says("/edit")
        seen = person.waits_for(lambda text: text.count("Hello world") == 2)
        assert "> draft, edited, edited\n" in seen


def test_ctrl_c_in_an_editor_is_the_editors(start_chat: StartChat, hello: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\necho ready\nsleep 20\n")
    editor.chmod(0o700)
    with start_chat(hello, env={"EDITOR": str(editor)}) as person:
        person.types(b"draft" + CTRL_X + CTRL_E)
        person.waits_for("ready")
        person.types(CTRL_C)
        person.waits_for(lambda text: "ended with signal 2: nothing is changed" in " ".join(text.split()))
        person.waits_for(lambda _: person.below[0] == "> draft" and person.below[-1].startswith("context "))


def test_an_editor_that_does_not_exist(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello, env={"EDITOR": "/nonexistent/editor"}) as person:
        person.types(b"draft" + CTRL_X + CTRL_E)
        seen = person.waits_for("error: cannot start the editor /nonexistent/editor: No such file or directory")
        assert "> draft" in seen


# ---- Ctrl-C and the end ----------------------------------------------------------------------------------------------


def test_ctrl_c_stops_the_answer_and_keeps_it(start_chat: StartChat, long: Path) -> None:
    with start_chat(long) as person:
        person.says("hi")
        person.waits_for("w20 ")
        person.types(CTRL_C)
        seen = person.waits_for("[stopped]")
        assert "w299" not in seen
        person.waits_until_idle()
        person.says("again")
        person.waits_for("w299")
        assert person.leaves() == 0


def test_ctrl_c_gives_back_what_was_typed_ahead(start_chat: StartChat, long: Path) -> None:
    with start_chat(long) as person:
        person.says("hi")
        person.waits_for("w20 ")
        person.types(b"wait" + ENTER)
        person.waits_for("next: wait")
        person.types(CTRL_C)
        person.waits_for("[stopped]")
        person.waits_until_idle()
        assert person.below[0] == "> wait"
        assert person.sees.count("w0 ") == 1


def test_ctrl_c_makes_no_words_of_commands(start_chat: StartChat, long: Path) -> None:
    with start_chat(long) as person:
        person.says("hi")
        person.waits_for("w20 ")
        person.types(b"/retry" + ENTER + b"wait" + ENTER + b"/read nofile" + ENTER + b"and more")
        person.waits_for("next: /read nofile\n> and more")
        person.types(CTRL_C)
        person.waits_for("[stopped]\n\nnot done: /retry, /read nofile\n")
        person.waits_for(lambda _: person.below[:2] == ["> wait", ". and more"])
        assert person.sees.count("w0 ") == 1


def test_an_answer_that_is_cut_says_by_what(start_chat: StartChat, long: Path) -> None:
    with start_chat(long, "-n", "5", "-c", "128") as person:
        person.says("hi")
        assert "w4\n[cut off after 5 tokens: that is the limit (-n, or /set predict)]\n" in person.waits_until_idle()
        person.says("/set predict -1")
        person.waits_until_idle()
        person.says("hi")
        seen = " ".join(person.waits_until_idle().split())
        assert "[cut off: the context of 128 tokens is full (a larger -c, or --on-overflow shift)]" in seen


def test_ctrl_c_at_the_prompt(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello) as person:
        person.types(b"half a line" + CTRL_C)
        person.waits_for("> a message")
        person.types(CTRL_C)
        person.waits_for("Ctrl-C again leaves, as do Ctrl-D and /exit")
        person.types(b"x")
        person.waits_for("context 0/")
        person.types(CTRL_C + CTRL_C)
        person.waits_for("Ctrl-C again leaves")
        person.types(CTRL_C)
        assert person.terminal.wait() == 130


@pytest.mark.real_model
def test_ctrl_c_while_the_prompt_is_read(start_chat: StartChat, smollm2_path: Path) -> None:
    with start_chat(smollm2_path, "-n", "5") as person:
        person.pastes("The quick brown fox jumps over the lazy dog. " * 300)
        person.types(ENTER)
        person.waits_for("reading 512/")
        person.types(CTRL_C)
        person.waits_until_idle()
        person.says("Say hello.")
        person.waits_until_idle()
        assert person.leaves() == 0


@pytest.mark.parametrize(
    "end", ["Ctrl-D", "/exit", "/bye", "typed ahead", "Ctrl-C", "kill -INT", "SIGTERM", "SIGHUP", "SIGQUIT", "a bug"]
)
def test_the_terminal_is_as_it_was(end: str, open_terminal: OpenTerminal, long: Path, tmp_path: Path) -> None:
    code = {"Ctrl-C": 130, "kill -INT": 130, "a bug": 1}.get(end, 0)
    if end.startswith("SIG"):
        code = -signal.Signals[end]
    with _broken_chat(long) if end == "a bug" else open_terminal("chat", "-t", "1", "-m", long) as terminal:
        before = terminal.modes()
        person = Person(terminal, 24, 80)
        person.waits_for("> a message")
        assert terminal.modes() != before
        if end.startswith(("SIG", "typed")):
            person.says("hi")
            person.waits_for("w20 ")
        if end.startswith("SIG"):
            terminal.kill(signal.Signals[end])
        elif end == "Ctrl-C":
            person.types(CTRL_C)
            person.waits_for("Ctrl-C again")
            person.types(CTRL_C)
        elif end.startswith("/"):
            person.says(end)
        elif end == "a bug":
            person.says("hi")
        elif end == "kill -INT":
            for hint in ("Ctrl-C again", ""):
                terminal.kill(signal.SIGINT)
                person.waits_for(hint)
        else:
            person.types(CTRL_D)
        assert terminal.wait() == code
        assert terminal.modes() == before
        assert terminal.screen.rindex(b"\x1b[?2004l") > terminal.screen.rindex(b"\x1b[?2004h")
        assert terminal.screen.rindex(b"\x1b[?25h") > terminal.screen.rindex(b"\x1b[?25l")
        assert "Traceback" not in person.sees
        assert ("internal error, please report it: RuntimeError: boom" in person.sees) == (end == "a bug")
        if end == "typed ahead":
            assert "w299" in person.sees


@pytest.mark.parametrize(("ignored", "code"), [(False, -signal.SIGHUP), (True, 0)], ids=["SIGHUP", "nohup"])
def test_a_window_that_is_closed_ends_the_chat(ignored: bool, code: int, start_chat: StartChat, long: Path) -> None:
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)  # the child inherits it
    try:
        with start_chat(long) as person:
            person.says("hi")
            person.waits_for("w20 ")
            assert person.terminal.hang_up() == code
    finally:
        signal.signal(signal.SIGHUP, kept)


def _broken_chat(model: Path) -> Terminal:
    """A chat with a bug in it."""
    return _changed_chat(
        model,
        "from llmcli.engine.conversation import Conversation\n"
        "def say(self, text): raise RuntimeError('boom')\n"
        "Conversation.say = say\n",
    )


def _changed_chat(model: Path, change: str) -> Terminal:
    """A chat of which some lines of Python change something first."""
    source = f"import os\nfrom llmcli.cli import main\n{change}main.run()\n"
    command = [sys.executable, "-c", source, "chat", "-t", "1", "-m", str(model)]
    return Terminal(command, env={**os.environ, "TERM": "xterm-256color"})


# ---- what cannot be read, written, or waited for ------------------------------------------------------------------


def test_what_never_ends_is_not_read(start_chat: StartChat, hello: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "f"
    os.mkfifo(fifo)
    with start_chat(hello, columns=200) as person:
        for name in (str(fifo), "/dev/tty", "/dev/stdin", "/dev/fd/0", "/dev/zero"):
            person.says(f"/read {name}")
            person.waits_for(f"error: cannot read {name}")
        assert "not a regular file" in person.sees
        person.says("hi")
        person.waits_for("Hello world")
        assert person.leaves() == 0


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_history_that_is_no_file_is_not_read(
    kind: str, start_chat: StartChat, hello: Path, llmcli_home: Path
) -> None:
    history = llmcli_home / "state" / "chat_history"
    history.parent.mkdir(parents=True, exist_ok=True)
    if kind == "fifo":
        os.mkfifo(history)
    else:
        history.symlink_to("/dev/zero")
    with start_chat(hello, columns=200) as person:
        person.says("hi")
        person.waits_for("Hello world")
        person.waits_until_idle()
        assert person.sees.count("chat_history: not a regular file: what is typed is not kept") == 1
        assert person.leaves() == 0


def test_ctrl_c_leaves_a_command_that_takes_long(hello: Path, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    slow = (
        "import time\n"
        "from llmcli.engine.tokenizer import Tokenizer\n"
        "real = Tokenizer.tokenize\n"
        "def tokenize(self, text, **how):\n"
        f"    while 'slow' in text and not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        "    return real(self, text, **how)\n"
        "Tokenizer.tokenize = tokenize\n"
    )
    (tmp_path / "text").write_text("slow")
    with _changed_chat(hello, slow) as terminal:
        person = Person(terminal, 24, 80)
        person.waits_for("> a message")
        person.says(f"/read {tmp_path}/text")
        person.waits_for("working · ")
        person.types(CTRL_C)
        person.waits_for(lambda _: person.below[1].startswith("context "), "a prompt again")
        person.says("hi")  # waits for the engine
        person.waits_for("> hi")
        go_on.touch()
        person.waits_for("Hello world")
        assert "stopped: nothing is changed" in person.sees
        assert "goes with your next message" not in person.sees
        assert person.leaves() == 0
    turns = library().read(next(iter(library().names()))).history.turns
    assert [turn.user for turn in turns] == ["hi"]


def test_a_signal_ends_a_chat_whose_command_does_not_end(hello: Path) -> None:
    stuck = (
        "import time\n"
        "from llmcli.cli import chat_terminal\n"
        "from llmcli.engine.tokenizer import Tokenizer\n"
        "real = Tokenizer.tokenize\n"
        "Tokenizer.tokenize = lambda self, text, **how: 'slow' in text and time.sleep(99) or real(self, text, **how)\n"
        "chat_terminal._PATIENCE_S = 0.1\n"
    )
    with _changed_chat(hello, stuck) as terminal:
        before = terminal.modes()
        person = Person(terminal, 24, 80)
        person.waits_for("> a message")
        person.says("/tokens slow")
        person.waits_for("working · ")
        terminal.kill(signal.SIGTERM)
        assert terminal.wait() == -signal.SIGTERM
        assert terminal.modes() == before


@pytest.mark.parametrize("room", [True, False], ids=["room again", "still full"])
def test_what_could_not_be_saved_is_saved_when_leaving(room: bool, hello: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    change = (
        "real = os.fsync\n"
        "def fsync(handle):\n"
        f"    if os.path.exists({str(full)!r}): raise OSError(28, 'No space left on device')\n"
        "    real(handle)\n"
        "os.fsync = fsync\n"
    )
    with _changed_chat(hello, change) as terminal:
        person = Person(terminal, 24, 80)
        person.waits_for("> a message")
        person.says("one")
        person.waits_until_idle()
        full.touch()
        person.says("two")
        person.waits_for("cannot be written: No space left on device")
        if room:
            full.unlink()
        assert person.leaves() == (0 if room else 6)
        assert ("what could not be saved before is saved now" in person.sees) == room
        assert person.sees.count("No space left on device") == (1 if room else 2)
    turns = library().read(next(iter(library().names()))).history.turns
    assert [turn.user for turn in turns] == (["one", "two"] if room else ["one"])


# ---- terminals of all kinds ------------------------------------------------------------------------------------------


def test_another_size_in_the_middle_of_an_answer(start_chat: StartChat, long: Path) -> None:
    with start_chat(long, columns=100) as person:
        person.says("hi")
        person.waits_for("w20 ")
        person.resizes(30, 60)
        person.waits_for("w150 ")
        person.resizes(20, 90)
        seen = person.waits_until_idle()
        words = re.findall(r"\bw\d+\b", seen)
        assert set(words) == {f"w{number}" for number in range(300)}
        assert person.below[0] == "> a message, or /help"


@pytest.mark.parametrize("columns", [12, 20])
def test_a_narrow_terminal(columns: int, open_terminal: OpenTerminal, long: Path) -> None:
    with open_terminal("chat", "-t", "1", "-q", "-m", long, rows=8, columns=columns) as terminal:
        person = Person(terminal, 8, columns)
        person.waits_for("> a")
        person.says("hi")
        seen = person.waits_for("w299")
        assert re.findall(r"\bw\d+\b", seen) == [f"w{number}" for number in range(300)]
        person.types(CTRL_D)
        assert terminal.wait() == 0


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}], ids=["NO_COLOR"])
def test_no_colours(env: dict[str, str], start_chat: StartChat, scripted_model: Script) -> None:
    model = scripted_model(["<think>", "hmm", "</think>", "# T\n", "**b**\n", "|a|b|\n|-|-|\n", "|1|2|"])
    with start_chat(model, env=env) as person:
        person.says("hi")
        assert "hmm\n\n# T\n**b**\na │ b\n──┼──\n1 │ 2\n" in person.waits_until_idle()
        assert colours_in(person.terminal.screen) == set()


def test_a_dumb_terminal(open_terminal: OpenTerminal, scripted_model: Script) -> None:
    model = scripted_model(["<think>", "hmm\n", "</think>", "**b** ", "\x1b[2J"])
    with open_terminal("chat", "-t", "1", "-m", model, env={"TERM": "dumb"}) as terminal:
        before = terminal.modes()
        terminal.read_until("Ctrl-D leaves\r\n> ")
        terminal.send(b"hi" + ENTER)
        terminal.read_until("hi\r\nhmm\r\n**b** \\x1b[2J\r\n> ")
        terminal.send(b'"""a' + ENTER)
        terminal.read_until(". ")
        terminal.send(b'b"""' + ENTER)
        terminal.read_until("\\x1b[2J\r\n> ")
        terminal.send(b"/show prompt" + ENTER)
        assert b'"""' not in terminal.read_until("a\r\nb")
        terminal.read_until("\r\n> ")
        terminal.send(CTRL_C)
        terminal.read_until("Ctrl-C again leaves, as do Ctrl-D and /exit\r\n> ")
        terminal.send(CTRL_D)
        assert terminal.wait() == 0
        assert terminal.modes() == before
        assert b"\x1b" not in terminal.screen
        assert terminal.screen.endswith(b": llmcli chat --continue\r\n")


def test_ctrl_c_on_a_dumb_terminal(open_terminal: OpenTerminal, long: Path) -> None:
    with open_terminal("chat", "-t", "1", "-m", long, env={"TERM": "dumb"}) as terminal:
        terminal.read_until("> ")
        terminal.send(b"hi" + ENTER)
        terminal.read_until("w20 ")
        terminal.send(CTRL_C)
        terminal.read_until("[stopped]\r\n> ")
        assert b"w299" not in terminal.screen
        terminal.send(CTRL_C)
        terminal.read_until("/exit\r\n> ")
        terminal.send(CTRL_C)
        assert terminal.wait() == 130


def test_the_c_locale(start_chat: StartChat, scripted_model: Script) -> None:
    for env in ({"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}):
        with start_chat(scripted_model(["Gö 🚀"]), env=env) as person:
            person.says("grüß 日本")
            assert "> grüß 日本\nGö 🚀\n" in person.waits_until_idle()


def test_an_unknown_terminal(start_chat: StartChat, hello: Path) -> None:
    with start_chat(hello, env={"TERM": "nonesuch"}) as person:
        person.says("hi")
        assert "Hello world" in person.waits_until_idle()


def test_only_a_chat_at_a_terminal_loads_the_line_editor() -> None:
    modules = "llmcli.cli.cmd_chat, llmcli.cli.chat_pipe, llmcli.cli.chat_dumb"
    source = f"import sys, {modules}; print([m for m in ('prompt_toolkit', 'rich', 'asyncio') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
