"""The commands of a chat, without a terminal around them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmcli.base.errors import ContextOverflowError, LlmcliError, ResourceError, UsageError, UserInterruptError
from llmcli.base.settings import load
from llmcli.cli.chat_commands import COMMANDS, find, help_lines
from llmcli.cli.chat_shell import ChatShell
from tests.chat_case import STRICT, ask, library, talk
from tests.cli_run_case import engine_memo, known_engine
from tests.fixtures.notes import Notes

__all__ = ["engine_memo", "known_engine"]

WANTED = [
    *("/help", "/?", "/exit", "/bye", "/quit", "/clear", "/undo", "/retry", "/edit", "/system", "/set", "/show"),
    *("/tokens", "/read", "/save", "/load", "/fork", "/sessions", "/stats", "/cache"),
]


@pytest.fixture(name="shell")
def shell_in_a_session(scripted_model: Callable[..., Path]) -> Iterator[ChatShell]:
    model = scripted_model(["Hello", " world", "!"], chat_template=STRICT, n_ctx=2048)
    held = contextlib.ExitStack()
    with talk(model) as conversation:
        conversation.use_log(held.enter_context(library().open("s", create=True)))
        header = conversation.log.header
        if header is None:
            with talk(model) as other:
                assert other.log.header is not None
                conversation.log.begin(other.log.header)
        shell = ChatShell(conversation, library(), load(), Notes().notify, held)
        ask(conversation, "one")
        yield shell
        shell.close()


def test_the_list_names_every_command() -> None:
    text = "\n".join(help_lines())
    assert [name for name in WANTED if name not in text] == []
    assert sorted(WANTED) == sorted(name for command in COMMANDS for name in command.names)


def test_spellings_and_near_misses() -> None:
    assert find("/BYE") is find("/exit")
    with pytest.raises(UsageError) as caught:
        find("/clera")
    assert caught.value.hint == "did you mean /clear? /help lists the commands"
    with pytest.raises(UsageError) as caught:
        find("/wxyz")
    assert caught.value.hint == "/help lists the commands"


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("/help", True),
        ("  /set temp 1", True),
        ("/?", True),
        ("/x", True),
        ("/", False),
        ("/ help", False),
        ("/usr/bin", False),
        ("//", False),
        ("/* x */", False),
        ("help", False),
        ("", False),
    ],
)
def test_what_is_a_command(shell: ChatShell, line: str, is_one: bool) -> None:
    assert shell.is_command(line) is is_one


def test_undo_retry_edit(shell: ChatShell) -> None:
    ask(shell.conversation, "two")
    assert shell.do("/undo").lines == ("taken back: two",)
    outcome = shell.do("/retry")
    assert outcome.reply is not None
    list(outcome.reply.parts())
    assert shell.do("/edit").edit == "one"
    outcome = shell.do("/edit uno")
    assert outcome.reply is not None
    list(outcome.reply.parts())
    assert [turn.user for turn in shell.conversation.history.turns] == ["uno"]
    ask(shell.conversation, "due")
    assert shell.do("/undo 5").lines == ("taken back: 2 turns",)
    for line in ("/undo", "/undo x", "/undo 0"):
        with pytest.raises(UsageError):
            shell.do(line)


def test_retry_behind_undo_asks_the_turn_before(shell: ChatShell) -> None:
    ask(shell.conversation, "two")
    shell.do("/undo")
    outcome = shell.do("/retry")
    assert outcome.reply is not None
    assert outcome.reply.user == "one"
    list(outcome.reply.parts())


@pytest.mark.parametrize("forgetting", ["/undo", "/clear"])
def test_nothing_is_left_to_ask_again(forgetting: str, shell: ChatShell) -> None:
    shell.do(forgetting)
    for line, purpose in (("/retry", "ask again"), ("/edit", "change"), ("/edit x", "change")):
        with pytest.raises(UsageError) as caught:
            shell.do(line)
        assert caught.value.message == f"nothing is left to {purpose}"


def test_nothing_was_asked_yet(scripted_model: Callable[..., Path]) -> None:
    with talk(scripted_model(["Hello"], chat_template=STRICT, n_ctx=2048)) as conversation:
        shell = ChatShell(conversation, library(), load(), Notes().notify, contextlib.ExitStack())
        for line in ("/retry", "/edit"):
            with pytest.raises(UsageError, match="nothing was asked yet"):
                shell.do(line)
        assert shell.do("/show prompt").lines == ("this model was given nothing yet",)
        assert shell.way_back() is None


def test_clear_and_system(shell: ChatShell) -> None:
    assert shell.do("/system").lines == ("there is no system prompt",)
    shell.do("/system Be brief.")
    assert shell.do("/system").lines == ("Be brief.",)
    assert shell.do("/clear").lines == ("the conversation begins anew; the system prompt stays",)
    assert shell.conversation.history.turns == []
    assert shell.conversation.history.system == "Be brief."
    shell.do("/system -")
    assert shell.conversation.history.system is None


def test_set(shell: ChatShell) -> None:
    assert shell.do("/set temp 0.5").lines == ("temp is 0.5",)
    assert shell.conversation.sampling.temp == 0.5
    assert shell.do("/set --top_k=7").lines == ("top-k is 7",)
    assert shell.do("/set predict 2").lines == ("predict is 2",)
    assert shell.do("/set top-k").lines == ("top-k is 7",)
    shell.do("/set temp 0")
    assert ask(shell.conversation, "x") == "Hello world"
    assert shell.do("/set predict -1").lines == ("predict is -1",)
    assert any("repeat-penalty" in line for line in shell.do("/set").lines)
    for wrong in ("/set temp -1", "/set temp x", "/set nonsense 1", "/set top-p 2", "/set top-k 1.5", "/set temp nan"):
        with pytest.raises(UsageError):
            shell.do(wrong)
    assert shell.conversation.sampling.top_k == 7


def test_show_tokens_stats_cache(shell: ChatShell) -> None:
    assert any("2,048 tokens" in line for line in shell.do("/show").lines)
    assert any("template" in line for line in shell.do("/show model").lines)
    assert any(line.startswith("  session    s") for line in shell.do("/show context").lines)
    assert shell.do("/show params").lines == shell.do("/set").lines
    with pytest.raises(UsageError, match="knows no nonsense"):
        shell.do("/show nonsense")
    assert "3 answered" in " ".join(shell.do("/tokens").lines[0].split())
    assert shell.do("/tokens ab").lines == ("2 tokens",)
    assert "3 tokens in" in shell.do("/stats").lines[0]
    assert shell.do("/cache").lines[0] == "--cache auto"


def test_show_prompt_is_what_the_model_was_given(shell: ChatShell) -> None:
    begun = ("<|im_start|>user", "one<|im_end|>", "<|im_start|>assistant")
    one = (*begun, "")
    assert shell.do("/show prompt").lines == one
    ask(shell.conversation, "two")
    two = ("Hello world!<|im_end|>", "<|im_start|>user", "two<|im_end|>", "<|im_start|>assistant", "")
    assert shell.do("/show prompt").lines == (*begun, *two)
    shell.do("/undo")
    assert shell.do("/show prompt").lines == one
    shell.conversation.say("three").parts().close()  # never begun, so never given
    assert shell.do("/show prompt").lines == one
    shell.do("/clear")
    assert shell.do("/show prompt").lines == ("this model was given nothing yet",)


def test_show_prompt_has_the_question_that_got_no_answer(scripted_model: Callable[..., Path]) -> None:
    with talk(scripted_model([], chat_template=STRICT, n_ctx=2048)) as conversation:
        assert ask(conversation, "one") == ""
        shell = ChatShell(conversation, library(), load(), Notes().notify, contextlib.ExitStack())
        assert shell.do("/show prompt").lines[1] == "one<|im_end|>"


def test_sessions_fit_the_screen(shell: ChatShell) -> None:
    ask(shell.conversation, "Tell a very long story about a ship and its crew.")
    library().copy(shell.conversation.log, "a-conversation-with-a-long-name")
    shell.columns = lambda: 60
    lines = shell.do("/sessions").lines
    assert len(lines) == 3
    assert max(map(len, lines)) <= 60


def test_the_way_back(shell: ChatShell) -> None:
    assert shell.way_back() == "session s: llmcli chat --session s"  # a name that the user chose
    shell.open_fork("2026-11-30-0915-2")
    ask(shell.conversation, "And now?")
    assert shell.way_back() == "session 2026-11-30-0915-2: llmcli chat --continue"
    library().copy(shell.conversation.log, "newer")
    os.utime(library().path("newer"), (1 << 31, 1 << 31))
    assert shell.way_back() == "session 2026-11-30-0915-2: llmcli chat --session 2026-11-30-0915-2"
    shell.do("/clear")
    assert shell.way_back() is None


def test_read_goes_with_the_next_message(shell: ChatShell, tmp_path: Path) -> None:
    file = tmp_path / "a file.txt"
    file.write_text("some\ntext\n")
    assert "9 tokens" in shell.do(f"/read {file}").lines[0] or "10 tokens" in shell.do(f"/read {file}").lines[0]
    shell.attachments[1:] = []
    assert shell.compose("what is it?") == "some\ntext\n\nwhat is it?"
    assert shell.compose("again") == "again"
    for wrong in ("/read", f"/read {tmp_path}", f"/read {tmp_path}/none"):
        with pytest.raises(UsageError):
            shell.do(wrong)


def test_read_refuses_at_once_what_cannot_fit(
    shell: ChatShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "big.txt"
    with open(file, "wb") as out:
        out.truncate(1 << 40)  # nobody can read that
    with pytest.raises(ContextOverflowError, match=r"big\.txt has at least [\d,]+ tokens, and the context 2,048"):
        shell.do(f"/read {file}")
    file.write_text("a b " * 1024)
    with pytest.raises(ContextOverflowError, match="at least"):
        shell.do(f"/read {file}")
    os.mkfifo(tmp_path / "f")
    with pytest.raises(UsageError, match=r"cannot read .*f: not a regular file"):
        shell.do(f"/read {tmp_path}/f")
    file.write_text("a b")
    shell.is_unwanted = lambda: True
    with pytest.raises(UserInterruptError):
        shell.do(f"/read {file}")
    assert shell.attachments == []
    shell.is_unwanted = lambda: False
    monkeypatch.setenv("HOME", str(tmp_path))
    shell.do("/read ~/big.txt")
    assert shell.attachments == ["a b"]


def test_save_and_load(shell: ChatShell, tmp_path: Path) -> None:
    ask(shell.conversation, "two")
    ids = shell.conversation.history.turns[1].ids
    for suffix in ("md", "json", "jsonl"):
        assert shell.do(f"/save {tmp_path}/talk.{suffix}").lines == (f"2 turns written to {tmp_path}/talk.{suffix}",)
    with pytest.raises(LlmcliError, match="is there already"):
        shell.do(f"/save {tmp_path}/talk.md")
    assert (tmp_path / "talk.md").read_text().startswith("# s\n")
    assert json.loads((tmp_path / "talk.json").read_text())["name"] == "s"
    shell.do("/clear")
    assert shell.do(f"/load {tmp_path}/talk.json").lines == (f"2 turns from {tmp_path}/talk.json",)
    assert [turn.user for turn in shell.conversation.history.turns] == ["one", "two"]
    shell.do(f"/load {tmp_path}/talk.jsonl")
    assert shell.conversation.history.turns[1].ids == ids
    assert library().read("s").history.turns[1].ids == ids
    assert ask(shell.conversation, "three") == "Hello world!"
    with pytest.raises(LlmcliError, match="no file and no session"):
        shell.do("/load nothing")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(LlmcliError, match="not an exported conversation"):
        shell.do(f"/load {tmp_path}/bad.json")
    assert len(shell.conversation.history.turns) == 3


def test_a_file_in_which_nothing_was_asked_is_not_loaded(shell: ChatShell, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    for messages in ([], [{"role": "tool", "content": "x"}], [{"role": "assistant", "content": "x"}]):
        file.write_text(json.dumps(messages))
        with pytest.raises(LlmcliError, match="there is no turn in "):
            shell.do(f"/load {file}")
    library().path("empty").write_bytes(library().path("s").read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(LlmcliError, match="there is no turn in empty"):
        shell.do("/load empty")
    assert [turn.user for turn in shell.conversation.history.turns] == ["one"]
    file.write_text('[{"role": "user", "content": "two"}]')
    shell.do(f"/load {file}")
    assert shell.conversation.history.unanswered == "two"


def test_a_full_disk_leaves_no_half_of_what_is_saved(
    shell: ChatShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(ResourceError, match=r"cannot write .*talk\.md: No space left on device"):
            shell.do(f"/save {tmp_path}/talk.md")
    assert list(tmp_path.glob("*talk*")) == []
    shell.do(f"/save {tmp_path}/talk.md")


def test_a_session_is_loaded_by_its_name(shell: ChatShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library().fork("s", "v1.2")
    (tmp_path / "v1.2").mkdir()  # a folder of the same name is not meant
    monkeypatch.chdir(tmp_path)
    path = library().path("v1.2")
    path.write_bytes(path.read_bytes() + b"damaged\n")
    shell.do("/clear")
    assert shell.do("/load v1.2").lines == ("1 turn from v1.2",)
    assert shell.notify.__self__.lines == [  # type: ignore[attr-defined]
        "line 3 of session v1.2 is damaged and left out: it is not a line of JSON"
    ]
    os.mkfifo("pipe.jsonl")
    for name in (".", "pipe.jsonl"):
        with pytest.raises(LlmcliError, match="it is not a file"):
            shell.do(f"/load {name}")


def test_ids_that_are_no_tokens_are_not_loaded(shell: ChatShell, tmp_path: Path) -> None:
    shell.do(f"/save {tmp_path}/talk.jsonl")
    data = (tmp_path / "talk.jsonl").read_bytes()
    (tmp_path / "talk.jsonl").write_bytes(data.replace(b'"completion_ids": [', b'"completion_ids": [1999999999, '))
    shell.do(f"/load {tmp_path}/talk.jsonl")
    assert ask(shell.conversation, "two") == "Hello world!"


def test_what_the_system_refuses_ends_no_chat(shell: ChatShell, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LlmcliError, match="aaa: File name too long") as caught:
        shell.do("/load " + "a" * 300)
    assert caught.value.exit_code == 1
    monkeypatch.setattr(os, "replace", _full)
    with pytest.raises(ResourceError, match="No space left on device"):
        shell.do("/fork other")
    assert library().names() == ["s"]
    assert shell.conversation.name == "s"


def _full(*_names: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_fork_goes_on_in_the_copy(shell: ChatShell) -> None:
    assert shell.do("/fork copy").lines == ("this is session copy now; the other one stays as it is",)
    ask(shell.conversation, "two")
    assert shell.conversation.name == "copy"
    assert [turn.user for turn in library().read("s").history.turns] == ["one"]
    assert [turn.user for turn in library().read("copy").history.turns] == ["one", "two"]
    with library().open("s"):  # it is free again
        pass
    with pytest.raises(LlmcliError, match="there is a session s already"):
        shell.do("/fork s")
    with pytest.raises(UsageError):
        shell.do("/fork ../x")
    assert shell.conversation.name == "copy"
    assert any(line.startswith("copy") for line in shell.do("/sessions").lines)


def test_leaving(shell: ChatShell) -> None:
    assert all(shell.do(word).leave for word in ("/exit", "/bye", "/quit", " /BYE "))
    assert shell.do("/help").lines == help_lines()
    assert shell.do("/help set").lines[0].startswith("/set [NAME VALUE]: ")
