"""Names of outputs, what is refused before anything is touched, and the temporary folder."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import LlmcliError, ResourceError, UsageError
from llmcli.base.files import file_lock
from llmcli.quant import place
from llmcli.quant.place import (
    WORK_PREFIX,
    check_space,
    check_target,
    default_name,
    new_file_mode,
    publish,
    target_at,
    why_writing_failed,
    work_folder,
)


def target(path: Path, *, parts: int = 1, forced: bool = False) -> place.Target:
    return target_at(path, parts=parts, forced=forced)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("model-F16.gguf", "model-Q4_0.gguf"),
        ("Model.Q4_1.gguf", "Model-Q4_0.gguf"),
        ("model.gguf", "model-Q4_0.gguf"),
        ("F16.gguf", "F16-Q4_0.gguf"),
        ("m-00001-of-00003.gguf", "m-Q4_0.gguf"),
        ("m-BF16-00002-of-00003.gguf", "m-Q4_0.gguf"),
        ("m-Q8_0-chat.gguf", "m-Q8_0-chat-Q4_0.gguf"),
        ("noending", "noending-Q4_0.gguf"),
    ],
)
def test_default_name(source: str, name: str) -> None:
    assert default_name(Path(source), "Q4_0") == name


def test_one_file(tmp_path: Path) -> None:
    found = target(tmp_path / "x.gguf")
    assert (found.folder, found.files, found.stem) == (tmp_path, (tmp_path / "x.gguf",), "x.gguf")


@pytest.mark.parametrize("name", ["x.gguf", "x", "x-00001-of-00003.gguf", "x-00007-of-00009.gguf"])
def test_parts(tmp_path: Path, name: str) -> None:
    found = target(tmp_path / name, parts=2)
    assert [file.name for file in found.files] == ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]
    assert found.stem == "x"


def test_the_name_of_a_part_is_no_name_for_one_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name of one part of 3") as caught:
        target(tmp_path / "x-00001-of-00003.gguf")
    assert "x.gguf" in (caught.value.hint or "")


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.gguf").symlink_to(tmp_path / "real" / "x.gguf")
    assert target(tmp_path / "link.gguf").first == tmp_path / "real" / "x.gguf"


@pytest.fixture(name="model")
def a_model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def links(model: Path) -> dict[str, Path]:
    folder = model.parent / "sub"
    folder.mkdir()
    (folder / "link.gguf").symlink_to(model)
    (folder / "twice.gguf").symlink_to(folder / "link.gguf")
    os.link(model, folder / "hard.gguf")
    (model.parent / "way").symlink_to(model.parent)
    return {
        "itself": model,
        "dots": folder / ".." / "model.gguf",
        "link": folder / "link.gguf",
        "link to a link": folder / "twice.gguf",
        "hard link": folder / "hard.gguf",
        "through a folder": model.parent / "way" / "model.gguf",
    }


@pytest.mark.parametrize("name", ["itself", "dots", "link", "link to a link", "hard link", "through a folder"])
def test_the_input_under_any_name_is_refused(model: Path, name: str) -> None:
    path = links(model)[name]
    with pytest.raises(LlmcliError, match="are the same file"):
        check_target(target(path, forced=True), [model])
    assert model.read_bytes() == b"weights"


def test_the_input_through_a_link_is_refused(model: Path) -> None:
    link = links(model)["link"]
    with pytest.raises(LlmcliError, match="are the same file"):
        check_target(target(model, forced=True), [link])


def test_case_counts_where_the_file_system_says_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without case MODEL.gguf is there, and is the same inode."""
    real_stat = os.stat

    def stat_without_case(path: object, **options: Any) -> os.stat_result:
        return real_stat(str(path).replace("MODEL", "model"), **options)

    monkeypatch.setattr(os, "stat", stat_without_case)
    with pytest.raises(LlmcliError, match="are the same file"):
        check_target(target(model.with_name("MODEL.gguf"), forced=True), [model])


def test_one_part_of_several_may_not_be_an_input(tmp_path: Path) -> None:
    second = tmp_path / "x-00002-of-00002.gguf"
    second.write_bytes(b"weights")
    with pytest.raises(LlmcliError, match="are the same file"):
        check_target(target(tmp_path / "x.gguf", parts=2, forced=True), [second])


def test_an_output_that_is_there(model: Path) -> None:
    other = model.with_name("other.gguf")
    other.write_bytes(b"old")
    with pytest.raises(LlmcliError, match="there already") as caught:
        check_target(target(other), [model])
    assert "--force" in (caught.value.hint or "")
    check_target(target(other, forced=True), [model])


def test_no_folder(model: Path) -> None:
    with pytest.raises(LlmcliError, match="does not exist") as caught:
        check_target(target(model.parent / "no" / "x.gguf"), [model])
    assert "mkdir -p" in (caught.value.hint or "")


def test_no_regular_file(model: Path) -> None:
    pipe = model.with_name("pipe.gguf")
    os.mkfifo(pipe)
    with pytest.raises(LlmcliError, match="no regular file"):
        check_target(target(pipe, forced=True), [model])
    with pytest.raises(LlmcliError, match="no regular file"):
        check_target(target(Path("/dev/null"), forced=True), [model])


def test_space(tmp_path: Path) -> None:
    check_space(tmp_path, 1)
    with pytest.raises(ResourceError, match=r"the output needs 1024\.0 TiB") as caught:
        check_space(tmp_path, 1 << 50)
    assert caught.value.exit_code == 6


def test_the_work_folder_is_gone_afterwards(tmp_path: Path) -> None:
    with work_folder(target(tmp_path / "x.gguf")) as folder:
        (folder / "half").write_bytes(b"half")
        assert folder.parent == tmp_path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []


def test_the_work_folder_is_gone_after_a_failure(tmp_path: Path) -> None:
    def fail() -> None:
        with work_folder(target(tmp_path / "x.gguf")) as folder:
            (folder / "half").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_and_a_living_one_is_not(tmp_path: Path) -> None:
    dead, alive, strange = (tmp_path / f"{WORK_PREFIX}{name}" for name in ("dead", "alive", "strange"))
    for folder in (dead, alive, strange):
        folder.mkdir()
        (folder / "x.gguf").write_bytes(b"half")
    (dead / "lock").touch()
    with file_lock(alive / "lock"), work_folder(target(tmp_path / "x.gguf")):
        assert not dead.exists()
        assert (alive / "x.gguf").exists()
        assert strange.exists()  # without a lock: perhaps being made this moment


@pytest.mark.parametrize(
    ("number", "code", "why"),
    [(errno.EROFS, 1, "Read-only file system"), (errno.EACCES, 1, "Permission denied"), (errno.ENOSPC, 6, "No space")],
)
def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, why: str
) -> None:
    def refuse(**_options: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("llmcli.quant.place.tempfile.mkdtemp", refuse)
    with pytest.raises(LlmcliError, match=why) as caught, work_folder(target(tmp_path / "x.gguf")):
        pass
    assert caught.value.exit_code == code
    assert str(tmp_path) in caught.value.message


def test_why_writing_failed_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    assert "failed" in why_writing_failed(folder, "a.gguf").message
    assert list(folder.iterdir()) == []
    assert "No such file" in why_writing_failed(tmp_path / "gone", "a.gguf").message
    assert "File name too long" in why_writing_failed(folder, "a" * 300).message


def made(folder: Path, *names: str) -> list[Path]:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(name.encode())
    return [folder / name for name in names]


def test_publish(tmp_path: Path) -> None:
    goal = target(tmp_path / "x.gguf", parts=2)
    publish(made(tmp_path / "work", "a", "b"), goal, mode=0o640)
    assert [file.read_bytes() for file in goal.files] == [b"a", b"b"]
    assert stat.S_IMODE(goal.first.stat().st_mode) == 0o640
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_has_appeared_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    goal = target(tmp_path / "x.gguf")
    goal.first.write_bytes(b"theirs")
    if not links:

        def no_links(_source: object, _target: object) -> None:
            raise PermissionError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(LlmcliError, match="appeared meanwhile"):
        publish(made(tmp_path / "work", "a"), goal, mode=0o644)
    assert goal.first.read_bytes() == b"theirs"


def test_without_hard_links_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(_source: object, _target: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    goal = target(tmp_path / "x.gguf")
    publish(made(tmp_path / "work", "a"), goal, mode=0o644)
    assert goal.first.read_bytes() == b"a"


def test_force_replaces(tmp_path: Path) -> None:
    goal = target(tmp_path / "x.gguf", forced=True)
    goal.first.write_bytes(b"old")
    publish(made(tmp_path / "work", "a"), goal, mode=0o644)
    assert goal.first.read_bytes() == b"a"


def test_mode_follows_the_mask(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == new_file_mode()


def test_a_folder_that_is_made_goes_where_nothing_comes_into_it(tmp_path: Path) -> None:
    made = target_at(tmp_path / "out" / "x.gguf", parts=1, forced=False, makes_folder=True)
    check_target(made, [])
    check_space(made.folder, 1)
    with pytest.raises(ResourceError):
        check_space(made.folder, 1 << 60)
    with pytest.raises(ZeroDivisionError), work_folder(made):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with work_folder(made) as folder:
        (folder / "x.gguf").write_bytes(b"whole")
        publish([folder / "x.gguf"], made, mode=0o644)
    assert [path.name for path in made.folder.iterdir()] == ["x.gguf"]


def test_a_name_that_the_file_system_cannot_have(tmp_path: Path) -> None:
    with pytest.raises(LlmcliError, match="File name too long") as caught:
        check_target(target(tmp_path / ("a" * 300 + ".gguf")), ())
    assert caught.value.exit_code == 1
