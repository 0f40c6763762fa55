"""`llmcli sessions …`: looking at saved conversations and changing them, in the shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.cli.main import call
from llmcli.sessions.events import Header, ModelNote
from llmcli.sessions.turns import Turn
from tests.chat_case import library
from tests.cli_run_case import refused
from tests.fixtures.cli_process import Completed

HEADER = Header(ModelNote("tiny\x1b", "a" * 64, "/models/tiny.gguf"), None, "Be brief.", "2026-11-30T10:15:00+00:00")
Sessions = Callable[..., Completed]


@pytest.fixture(name="sessions")
def in_process(capfdbinary: pytest.CaptureFixture[bytes]) -> Sessions:
    def run(*args: str) -> Completed:
        code = call(["sessions", *args])
        return Completed(code, *capfdbinary.readouterr(), 0.0, 0)

    return run


@pytest.fixture(autouse=True)
def two_sessions() -> None:
    for name in ("b", "a"):
        with library().open(name, create=True) as log:
            log.begin(HEADER)
            log.add(Turn("what\nis \x1b[2J it?", text="a thing\n", content="a thing\n", prompt_ids=(1, 2)))
            log.add(Turn("and?", text="so", reasoning="hm", content="so", finish_reason="length"))


def test_ls(sessions: Sessions) -> None:
    lines = sessions("ls").out.splitlines()
    assert lines[0].split() == ["NAME", "TURNS", "TOKENS", "USED", "BYTES", "MODEL", "BEGINS", "WITH"]
    assert lines[1].startswith("a ")
    assert lines[1].endswith(r"what is \x1b[2J it?")
    found = json.loads(sessions("ls", "--json").out)
    assert [one["name"] for one in found] == ["a", "b"]
    assert found[0]["turns"] == 2
    assert found[0]["title"] == "what is \x1b[2J it?"
    assert found[0]["trouble"] is None
    for name in ("a", "b"):
        sessions("rm", "--yes", name)
    assert sessions("ls").out == "nothing is saved\n"
    assert sessions("ls", "--json").out == "[]\n"


def test_show(sessions: Sessions) -> None:
    done = sessions("show", "a")
    assert done.stdout.decode() == (
        "tiny\\x1b, begun 2026-11-30T10:15:00+00:00\n2 turns\n\nsystem:\nBe brief.\n\n"
        "> what\n> is \x1b[2J it?\n\na thing\n\n> and?\n\nso [length]\n"
    )
    assert "> what" not in sessions("show", "--last", "1", "a").out
    assert "(hm)" in sessions("show", "--reasoning", "a").out
    assert json.loads(sessions("show", "--json", "--last", "1", "a").out)["turns"][0]["text"] == "so"
    assert refused(sessions("show", "x"), 1) == "error: there is no session x (llmcli sessions ls)"
    assert "no name for a session" in refused(sessions("show", "../a"), 2)


def test_export(sessions: Sessions, tmp_path: Path) -> None:
    assert sessions("export", "a").out.startswith("# a\n\nModel: tiny")
    target = str(tmp_path / "a.json")
    assert sessions("export", "a", "-o", target).code == 0
    assert json.loads(Path(target).read_text())["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "is there already" in refused(sessions("export", "a", "-o", target), 1)
    assert sessions("export", "a", "-o", target, "--force", "--format", "session").code == 0
    assert Path(target).read_bytes() == library().path("a").read_bytes()
    assert "--format says how" in refused(sessions("export", "a", "-o", str(tmp_path / "a.pdf")), 2)
    assert "No such file" in refused(sessions("export", "a", "-o", str(tmp_path / "x" / "a.md")), 1)


@pytest.mark.parametrize("force", [False, True])
def test_an_export_for_which_there_is_no_room_leaves_what_was_there(
    force: bool, sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, options = tmp_path / "a.md", ["--force"] if force else []
    if force:
        target.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", _full_disk)
        told = refused(sessions("export", "a", "-o", str(target), *options), 6)
    assert told == f"error: cannot write {target}: No space left on device"
    assert [one.read_text() for one in tmp_path.glob("*.md")] == (["old"] if force else [])
    assert sessions("export", "a", "-o", str(target), *options).code == 0
    assert target.read_text().startswith("# a\n")


def _full_disk(_handle: int) -> None:
    raise OSError(28, "No space left on device")


def test_fork_and_rename(sessions: Sessions) -> None:
    assert sessions("fork", "a", "c").out == "a copied to c\n"
    assert sessions("rename", "b", "d").out == "b is d now\n"
    assert sorted(library().names()) == ["a", "c", "d"]
    assert "there is a session d already" in refused(sessions("rename", "a", "d"), 1)
    assert "there is no session b" in refused(sessions("fork", "b", "e"), 1)
    with library().open("a"):
        assert "session a is open in another llmcli" in refused(sessions("rename", "a", "z"), 1)


def test_rm_shows_asks_and_does(sessions: Sessions) -> None:
    done = sessions("rm", "--dry-run", "a")
    assert done.out.startswith("  a: 2 turns, ")
    assert r"\x1b" in done.out
    assert len(library().names()) == 2
    done = sessions("rm", "a")
    assert done.code == 2
    assert "there is no terminal" in done.err
    found = json.loads(sessions("rm", "--yes", "--json", "-q", "a", "a").out)
    assert found["removed"] == ["a"]
    assert found["removed_bytes"] == found["planned_bytes"] > 100
    assert "there is no session a" in refused(sessions("rm", "--yes", "a"), 1)
    assert sessions("rm", "--all", "--yes").out.startswith("1 conversation removed, ")
    assert library().names() == []
    assert "name the conversations, or give --all" in refused(sessions("rm", "--yes"), 2)
    assert sessions("rm", "--all", "--yes").out == "0 conversations removed, 0 B freed\n"


def test_rm_leaves_an_open_one(sessions: Sessions) -> None:
    with library().open("a"):
        done = sessions("rm", "--yes", "a")
        assert done.code == 1
        assert "is open in another llmcli" in done.err
    assert library().exists("a")


def test_path(sessions: Sessions) -> None:
    assert sessions("path").out == f"{library().folder}\n"
