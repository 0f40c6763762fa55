"""Session files: what is written is what is read, whatever happens to the file in between."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcli.base.errors import LlmcliError
from llmcli.sessions.disk import require_writable
from llmcli.sessions.events import Header, ModelNote
from llmcli.sessions.file import Reading, SessionDamagedError, SessionLog, session_bytes
from llmcli.sessions.turns import History, Turn

MODEL = ModelNote("tiny", "a" * 64, "/models/tiny.gguf")
HEADER = Header(MODEL, None, "Be brief.", "2026-11-30T10:15:00+00:00")


def turn(log: SessionLog, user: str, text: str = "yes", **fields: object) -> Turn:
    """A turn behind those of `log`, whose prompt begins with all that was said."""
    earlier = log.history.turns[-1].ids if log.history.turns else (1,)
    return Turn(
        **{
            "user": user,
            "text": text,
            "content": text,
            "prompt_ids": (*earlier, *range(len(user))),
            "completion_ids": tuple(range(100, 100 + len(text))),
            "system": log.history.system,
            "hidden": log.history.hidden,
            "at": "2026-11-30T10:16:00+00:00",
            **fields,
        }  # type: ignore[arg-type]
    )


def new(path: Path) -> SessionLog:
    log = SessionLog(path)
    log.begin(HEADER)
    return log


@pytest.fixture(name="path")
def session_path(tmp_path: Path) -> Path:
    return tmp_path / "s.jsonl"


@pytest.fixture(name="log")
def two_turns(path: Path) -> SessionLog:
    log = new(path)
    log.add(turn(log, "one"))
    log.add(turn(log, "two", "no"))
    return log


def test_a_file_is_lines_that_a_person_can_read(log: SessionLog, path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {
        "llmcli_session": 1,
        "model": {"name": "tiny", "content_id": "a" * 64, "path": "/models/tiny.gguf"},
        "template": None,
        "system": "Be brief.",
        "created": "2026-11-30T10:15:00+00:00",
    }
    assert lines[2] == {
        "type": "turn",
        "user": "two",
        "text": "no",
        "words_sum": log.history.turns[1].words_sum,
        "finish_reason": "stop",
        "at": "2026-11-30T10:16:00+00:00",
        "kept_tokens": len(log.history.turns[0].ids),
        "prompt_ids": [0, 1, 2],
        "completion_ids": [100, 101],
    }
    assert oct(path.stat().st_mode & 0o777) == "0o600"


def test_what_is_read_is_what_was_said(log: SessionLog, path: Path) -> None:
    log.hide(1, 2)
    log.add(turn(log, "three", "a\nb", reasoning="hm", content="<think>hm</think>a\nb"))
    log.set_system(None)
    log.add(turn(log, "four", finish_reason="interrupted"))
    found = Reading(path)
    assert found.history == log.history
    assert found.header == HEADER
    assert found.warnings == []
    assert found.history.visible() == [log.history.turns[0], *log.history.turns[2:]]


_WORDS = st.text(max_size=8)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), _WORDS, _WORDS),
        st.tuples(st.just("undo"), st.integers(1, 3)),
        st.tuples(st.just("clear")),
        st.tuples(st.just("system"), st.none() | _WORDS),
        st.tuples(st.just("hide"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("model")),
    ),
    max_size=12,
)


@settings(max_examples=50, deadline=None)
@given(_STEPS)
def test_any_conversation_survives_writing_reopening_and_copying(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "s.jsonl"
    log = new(path)
    for kind, *arguments in steps:
        if kind == "say":
            if len(str(arguments[0])) % 2:
                log.ask(str(arguments[0]))
            log.add(turn(log, *map(str, arguments)))
        elif kind == "undo":
            log.undo(int(str(arguments[0])))
        elif kind == "clear":
            log.clear()
        elif kind == "system":
            log.set_system(arguments[0])  # type: ignore[arg-type]
        elif kind == "hide" and int(str(arguments[0])) <= int(str(arguments[1])) <= len(log.history.turns):
            log.hide(int(str(arguments[0])), int(str(arguments[1])))  # written with the turn that needed the room
            log.add(turn(log, "more"))
        elif kind == "model":
            log.change_model(MODEL, ("x", "y"))
        if path.exists():
            again = SessionLog(path)
            assert (again.history, again.header) == (log.history, log.header)
            assert again.warnings == []
    if path.exists():
        log.copy_to(path.with_name("copy.jsonl"))
        copied = Reading(path.with_name("copy.jsonl"))
        assert copied.warnings == []
        copied.history.asked = log.history.asked
        assert copied.history == log.history


def test_surrogates_and_control_bytes_go_through(path: Path) -> None:
    log = new(path)
    said = "\x1b]0;x\x07 \udc80 \u2028 \0"
    log.add(turn(log, said, said))
    assert path.read_bytes().count(b"\n") == 2
    assert Reading(path).history.turns[0].user == said


def test_a_turn_cut_off_anywhere_is_lost_and_the_others_are_not(log: SessionLog, path: Path) -> None:
    whole = path.read_bytes()
    second = whole.rindex(b"\n", 0, -1) + 1
    for length in (second + 1, (second + len(whole)) // 2, len(whole) - 2):
        path.write_bytes(whole[:length])
        found = Reading(path)
        assert [one.user for one in found.history.turns] == ["one"]
        assert found.warnings == ["the last line of session s was cut off: the turn in flight is lost"]
        again = SessionLog(path)
        again.add(turn(again, "three"))
        assert Reading(path).warnings == []
        assert [one.user for one in Reading(path).history.turns] == ["one", "three"]
    assert log.history.turns[0] == Reading(path).history.turns[0]


@pytest.mark.parametrize("count", [1, 3], ids=["header", "turns"])
def test_a_last_line_that_lacks_only_its_newline_is_whole(count: int, log: SessionLog, path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)[:count]
    path.write_bytes(b"".join(lines).removesuffix(b"\n"))
    again = SessionLog(path)
    assert (again.header, again.warnings) == (HEADER, [])
    assert again.history.turns == log.history.turns[: count - 1]
    for user in ("three", "four"):
        again.ask(user)
        again.add(turn(again, user))
    assert path.read_bytes().startswith(b"".join(lines))
    assert Reading(path).warnings == []
    assert Reading(path).history == again.history


def test_a_question_outlives_its_process(log: SessionLog, path: Path) -> None:
    log.ask("three")
    again = SessionLog(path)
    assert (again.lost_question, again.history.unanswered, again.warnings) == ("three", "three", [])
    assert again.history.turns == log.history.turns
    again.ask("four")
    again.add(turn(again, "four"))
    assert (Reading(path).lost_question, Reading(path).history) == (None, again.history)
    again.ask("five")
    again.ask(None)  # something failed before anything was computed
    assert (Reading(path).lost_question, Reading(path).history) == (None, again.history)


def test_a_question_is_not_waited_for_by_the_disk_and_its_turn_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real = list[bool](), os.fsync

    def fsync(handle: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    log = new(path)
    for expected in ([False, True], [False]):  # the folder once
        log.ask("one")
        assert synced == []
        log.add(turn(log, "one"))
        assert synced == expected
        synced.clear()


def test_a_lost_question_is_the_first_to_be_taken_back(path: Path) -> None:
    log = new(path)
    log.ask("one")
    again = SessionLog(path)
    assert again.undo(2) == 1
    found = Reading(path)
    assert (found.lost_question, found.history.unanswered, found.history.turns) == (None, None, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_session_that_is_not_to_be_written_is_told_at_once() -> None:
    with tempfile.TemporaryDirectory() as folder:  # others may go through it
        os.chmod(folder, 0o777)
        path = Path(folder, "s.jsonl")
        log = new(path)
        log.add(turn(log, "one"))
        os.chmod(path, 0o444)
        os.seteuid(65534)
        try:
            with pytest.raises(LlmcliError, match="session s cannot be written: Permission denied") as caught:
                require_writable(path)
            with pytest.raises(LlmcliError, match="session s cannot be written: Permission denied") as asked:
                log.ask("two")
        finally:
            os.seteuid(0)
        assert (caught.value.exit_code, asked.value.exit_code) == (1, 1)
        assert [one.user for one in Reading(path).history.turns] == ["one"]


def test_words_that_were_changed_do_not_fit_their_sum(log: SessionLog, path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"two"', b'"zwei"'))
    first, second = Reading(path).history.turns
    assert first.noted_sum == first.words_sum
    assert second.noted_sum == log.history.turns[1].words_sum != second.words_sum
    SessionLog(path).copy_to(path.with_name("copy.jsonl"))
    assert Reading(path.with_name("copy.jsonl")).history.turns[1].noted_sum == second.noted_sum  # a copy hides nothing
    data = path.read_bytes()
    path.write_bytes(re.sub(rb'"words_sum": "[0-9a-f]*", ', b"", data))  # as an earlier version wrote it
    SessionLog(path).copy_to(path.with_name("old.jsonl"))
    assert [one.noted_sum for one in Reading(path.with_name("old.jsonl")).history.turns] == ["", ""]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"\xff\xfe\n", "it is not a line of JSON"),
        (b"[1, 2]\n", "it is not a JSON object"),
        (b'{"type": "turn", "user": 7}\n', "text is not a text"),
        (b'{"type": "undo", "turns": -1}\n', "turns is not a count"),
        (b'{"type": "drop", "start": 0, "end": 9}\n', "turns 0 to 9 of 1"),
        (b"[" * 100_000 + b"\n", "it is not a line of JSON"),
        (b'{"type": "undo", "turns": 1' + b"9" * 5000 + b"}\n", "it is not a line of JSON"),
    ],
)
def test_a_damaged_line_is_left_out_and_said(log: SessionLog, path: Path, bad: bytes, why: str) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], bad, *lines[2:]]))
    found = Reading(path)
    assert found.warnings == [f"line 3 of session s is damaged and left out: {why}"]
    assert [one.text for one in found.history.turns] == ["yes", "no"]
    assert found.history.turns[0] == log.history.turns[0]
    assert found.history.turns[1].ids == ()  # its tokens counted from what may have been lost
    assert path.read_bytes().splitlines(keepends=True)[2] == bad


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"\n", "it is not a line of JSON"),
        (b"\x00\x01\x02\n", "it is not a line of JSON"),
        (b"{}\n", "it is not a session file"),
        (b'{"llmcli_session": true}\n', "it is not a session file"),
        (b'{"llmcli_session": 1, "model": 3}\n', "model is not an object"),
        (b'{"llmcli_session": 2}\n', "it was written by a newer llmcli (format 2, this one knows 1)"),
    ],
)
def test_what_is_no_session_is_refused_in_one_line(path: Path, first: bytes, why: str) -> None:
    path.write_bytes(first)
    with pytest.raises(SessionDamagedError) as caught:
        SessionLog(path)
    assert caught.value.message == f"session s cannot be read: {why}"
    assert path.read_bytes() == first


def test_a_line_of_a_newer_version_is_refused(log: SessionLog, path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b'{"type": "branch"}\n')
    with pytest.raises(SessionDamagedError, match="a line of an unknown kind"):
        SessionLog(path)
    assert log.name == "s"


def test_a_line_of_10_mb(path: Path) -> None:
    log = new(path)
    log.add(turn(log, "x" * 10_000_000, prompt_ids=(1, 2)))
    assert Reading(path).history.turns[0].user == "x" * 10_000_000


def test_nothing_is_written_before_something_was_asked(path: Path) -> None:
    log = new(path)
    log.set_system("other")
    log.clear()
    assert not path.exists()
    log.add(Turn("nothing", finish_reason="interrupted"))
    assert Reading(path).history.unanswered == "nothing"
    assert Reading(path).history.system == "other"


def test_a_full_disk_keeps_the_file_whole_and_the_turn_for_later(
    log: SessionLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = path.read_bytes(), os.write

    def full(handle: int, data: bytes) -> int:
        if len(data) > 10:
            return real(handle, bytes(data)[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(LlmcliError, match="session s cannot be written: No space left on device"):
            log.add(turn(log, "three"))
    assert path.read_bytes() == before
    assert (log.is_unsaved, log.save_rest(), log.save_rest(), log.is_unsaved) == (True, True, False, False)
    assert [one.user for one in Reading(path).history.turns] == ["one", "two", "three"]
    log.add(turn(log, "four"))
    assert Reading(path).history == log.history
    assert [one.user for one in log.history.turns] == ["one", "two", "three", "four"]


def test_another_conversation_in_its_place(log: SessionLog, path: Path) -> None:
    other = History(system="S")
    other.add(Turn("uno", text="si", content="si", prompt_ids=(7, 8), completion_ids=(9,), system="S"))
    log.replace(other)
    assert Reading(path).history.turns == other.turns
    assert Reading(path).history.system == "S"
    assert b'"one"' in path.read_bytes()  # nothing is ever taken out of the file


def test_a_session_as_bytes_is_a_session(log: SessionLog, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(session_bytes(HEADER, log.history))
    assert Reading(path).history == log.history


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_bytes_do_more_than_be_refused_or_left_out(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    path.unlink(missing_ok=True)
    log = new(path)
    log.add(turn(log, "one"))
    log.hide(0, 1)
    log.add(turn(log, "two"))
    log.undo(1)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path.write_bytes(content)
    try:
        again = SessionLog(path)
    except SessionDamagedError:
        assert path.read_bytes() == content
        return
    assert all(one.prompt_ids == () or max(one.prompt_ids) < 1 << 31 for one in again.history.turns)
    if again.header is not None:
        again.add(turn(again, "three"))
        assert Reading(path).history == again.history


@pytest.mark.parametrize("loss", ["gone", "shorter", "folder"])
def test_a_file_that_somebody_removed_is_written_anew(loss: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions" / "s.jsonl"
    path.parent.mkdir()
    log = new(path)
    log.add(turn(log, "one"))
    if loss == "shorter":
        os.truncate(path, 50)
    else:
        path.unlink()
        if loss == "folder":
            path.parent.rmdir()
    log.add(turn(log, "two"))
    log.add(turn(log, "three"))
    assert Reading(path).history == log.history
    assert [one.user for one in log.history.turns] == ["one", "two", "three"]


def test_a_full_disk_at_the_first_turn_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(LlmcliError, match="session s cannot be written: No space left on device"):
            log.add(turn(log, "one"))
    assert list(path.parent.iterdir()) == []
    log.add(turn(log, "two"))
    assert [one.user for one in Reading(path).history.turns] == ["one", "two"]


def full_disk(_handle: int) -> None:
    raise OSError(28, "No space left on device")


def test_an_empty_file_is_a_session_in_which_nothing_was_said(path: Path) -> None:
    path.touch()
    log = new(path)
    log.add(turn(log, "one"))
    assert [one.user for one in Reading(path).history.turns] == ["one"]


def test_short_lines_that_repeat_a_long_prompt_fill_no_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmcli.sessions.events._MOST_HELD_IDS", 1000)
    log = new(path)
    for number in range(50):
        log.add(turn(log, "x" * (90 if number == 0 else 1), "y"))
    turns = Reading(path).history.turns
    assert [one.user for one in turns] == [one.user for one in log.history.turns]
    assert sum(len(one.ids) for one in turns) <= 1000
    assert turns[-1] == log.history.turns[-1]
    reopened = SessionLog(path)
    reopened.add(turn(reopened, "more"))
    assert Reading(path).history.turns[-1] == reopened.history.turns[-1]
