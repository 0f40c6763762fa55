"""The folder of sessions: names, locks between processes, what can be done with a session."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.sessions.events import Header, ModelNote
from llmcli.sessions.library import Library, SessionBusyError, SessionMissingError
from llmcli.sessions.names import check_name, dated_name
from llmcli.sessions.turns import Turn

HEADER = Header(ModelNote("tiny", "a" * 64, "/models/tiny.gguf"), None, None, "2026-11-30T10:15:00+00:00")

BEGUN = datetime(2026, 11, 30, 10, 15, tzinfo=timezone.utc)


@pytest.fixture(name="library")
def empty_library(tmp_path: Path) -> Library:
    return Library(tmp_path / "state" / "sessions")


def say(library: Library, name: str, *users: str) -> None:
    with library.open(name, create=True) as log:
        if log.header is None:
            log.begin(HEADER)
        for user in users:
            log.add(Turn(user, text="yes", content="yes", prompt_ids=(1, 2), completion_ids=(3,)))


def test_a_session_is_private_and_there(library: Library) -> None:
    assert library.names() == []
    assert library.last() is None
    say(library, "holidays", "where to?")
    assert library.names() == ["holidays"]
    assert stat.S_IMODE(os.stat(library.folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(library.path("holidays")).st_mode) == 0o600
    info = library.info("holidays")
    assert (info.turns, info.title, info.model, info.tokens, info.trouble) == (1, "where to?", "tiny", 3, None)


def test_the_last_used_is_first(library: Library) -> None:
    say(library, "old", "x")
    say(library, "new", "x")
    os.utime(library.path("old"), (1, 1))
    assert library.names() == ["new", "old"]
    assert library.last() == "new"


def test_foreign_files_are_passed_over(library: Library, tmp_path: Path) -> None:
    say(library, "a", "x")
    (library.folder / "notes.txt").write_text("x")
    (library.folder / ".hidden.jsonl").write_text("x")
    (library.folder / "link.jsonl").symlink_to(tmp_path / "elsewhere")
    (library.folder / "folder.jsonl").mkdir()
    assert library.names() == ["a"]


def test_a_damaged_file_is_listed_with_its_trouble(library: Library) -> None:
    say(library, "a", "x")
    library.path("a").write_bytes(b"\xff\n")
    assert library.info("a").trouble == "session a cannot be read: it is not a line of JSON"


BAD_NAMES = ["", " ", "..", ".", ".x", "-x", "a/b", "../a", "a\\b", "a\0b", "a\nb", "\x1b[2J", "a ", " a", "a.", "a:b"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "x" * 101, "\u202egpj", "a\udc80"])
def test_names_that_are_more_than_names(library: Library, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        library.path(name)
    assert caught.value.message.isprintable()


@given(st.text(max_size=30))
def test_a_name_is_refused_or_stays_in_the_folder(name: str) -> None:
    try:
        path = Library(Path("/sessions")).path(name)
    except UsageError:
        return
    assert path.parent == Path("/sessions")
    assert path.name == name + ".jsonl"
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["holidays", "2026-11-30-1015", "Straße 7", "日本", "a.b", "a (2)"])
def test_names_that_people_give(library: Library, name: str) -> None:
    say(library, name, "x")
    assert library.names() == [name]


def test_names_of_conversations_that_nobody_named() -> None:
    now = datetime.fromisoformat("2026-11-30T10:15:30+00:00")
    assert dated_name((), now) == "2026-11-30-1015"
    assert dated_name({"2026-11-30-1015", "2026-11-30-1015-2"}, now) == "2026-11-30-1015-3"


def test_the_second_is_told_who_has_it_open(library: Library) -> None:
    say(library, "a", "x")
    code = (
        "import sys; from pathlib import Path; from llmcli.sessions.library import Library\n"
        "with Library(Path(sys.argv[1])).open('a'):\n"
        "    print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(library.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        for refused in (
            lambda: library.open("a").__enter__(),
            lambda: library.rename("a", "b"),
            lambda: library.remove("a"),
        ):
            with pytest.raises(
                SessionBusyError, match=rf"session a is open in another llmcli \(process {child.pid} on "
            ):
                refused()
        assert library.read("a").history.turns[0].user == "x"  # looking is free
        library.fork("a", "copy")
        child.kill()  # the lock goes with the process, however it ends
        child.wait()
        with library.open("a") as log:
            assert len(log.history.turns) == 1
    finally:
        child.kill()
        child.communicate()


def test_fork_rename_remove(library: Library) -> None:
    say(library, "a", "one")
    library.fork("a", "b")
    say(library, "b", "two")
    library.rename("b", "c")
    assert sorted(library.names()) == ["a", "c"]
    assert [turn.user for turn in library.read("c").history.turns] == ["one", "two"]
    assert [turn.user for turn in library.read("a").history.turns] == ["one"]
    assert library.remove("a") > 100
    assert library.names() == ["c"]


def test_nothing_is_written_over(library: Library) -> None:
    say(library, "a", "one")
    say(library, "b", "two")
    for change in (library.fork, library.rename):
        with pytest.raises(LlmcliError, match="there is a session b already"):
            change("a", "b")
        with pytest.raises(LlmcliError, match="there is a session a already"):
            change("a", "a")
    assert [turn.user for turn in library.read("b").history.turns] == ["two"]


def test_what_is_not_there(library: Library) -> None:
    for missing in (
        lambda: library.read("x"),
        lambda: library.remove("x"),
        lambda: library.rename("x", "y"),
        lambda: library.fork("x", "y"),
        lambda: library.open("x").__enter__(),
    ):
        with pytest.raises(SessionMissingError, match="there is no session x"):
            missing()


def test_two_chats_that_begin_in_the_same_minute(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmcli.sessions.library.local_now", lambda: BEGUN)
    with library.open_new() as first, library.open_new() as second:
        assert (first.name, second.name) == ("2026-11-30-1015", "2026-11-30-1015-2")
        second.begin(HEADER)
        second.add(Turn("hi", text="yes", content="yes"))
    with library.open_new() as third:
        assert third.name == "2026-11-30-1015"


def test_a_chat_that_came_and_went_meanwhile_keeps_its_name(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmcli.sessions.library.local_now", lambda: BEGUN)
    say(library, "2026-11-30-1015", "x")
    monkeypatch.setattr(library, "names", list)  # read before that one was written
    with library.open_new() as log:
        assert log.name == "2026-11-30-1015-2"


def test_what_is_not_a_file_is_not_opened(library: Library) -> None:
    say(library, "a", "x")
    os.mkfifo(library.path("pipe"))
    library.path("folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(LlmcliError, match="is not a file"):
            library.read(name)
        with pytest.raises(LlmcliError, match="is not a file"), library.open(name, create=True):
            pass
    assert library.names() == ["a"]


def test_one_that_is_removed_while_they_are_listed(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    say(library, "a", "x")
    monkeypatch.setattr(library, "names", lambda: ["gone", "a"])
    assert [info.name for info in library.infos()] == ["a"]
