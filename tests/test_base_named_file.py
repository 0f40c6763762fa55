"""Files at names that the user chose."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from llmcli.base.named_file import write_named


def full_disk(_handle: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_new_file_has_the_rights_of_any_other(over: bool, umask: int, tmp_path: Path) -> None:
    kept = os.umask(umask)
    try:
        write_named(tmp_path / "new", b"data", over=over)
    finally:
        os.umask(kept)
    assert (tmp_path / "new").read_bytes() == b"data"
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~umask
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("over", [False, True])
def test_a_full_disk_leaves_what_was_there(over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    if over:
        path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left on device") as caught:
            write_named(path, b"new", over=over)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == ([("file", b"old")] if over else [])
    write_named(path, b"new", over=over)
    assert path.read_bytes() == b"new"


def test_a_file_that_is_written_over_keeps_its_rights_and_its_links(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_named(link, b"new", over=True)
    assert (link.is_symlink(), path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (True, b"new", 0o640)


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_what_is_there_is_not_written_over(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")

    def link(_temp: Path, target: Path) -> None:
        if not links:
            raise OSError(errno.EPERM, "Operation not permitted")
        raise FileExistsError(errno.EEXIST, "File exists")

    with pytest.raises(FileExistsError):
        write_named(tmp_path / "dangling", b"new", over=False)
    if links:
        write_named(path, b"old", over=False)
        monkeypatch.setattr(os.path, "lexists", lambda _path: False)  # somebody made it a moment later
    else:
        monkeypatch.setattr(os, "link", link)
        write_named(path, b"old", over=False)
    with pytest.raises(FileExistsError) as caught:
        write_named(path, b"new", over=False)
    assert (caught.value.filename, path.read_bytes()) == (str(path), b"old")
    assert sorted(os.listdir(tmp_path)) == ["dangling", "file"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path, got = tmp_path / "pipe", list[bytes]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    write_named(path, b"data", over=True)
    reader.join()
    assert (got, stat.S_ISFIFO(path.stat().st_mode)) == ([b"data"], True)


def test_a_file_that_cannot_be_replaced_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mounted"
    path.write_bytes(b"old")

    def busy(*_names: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    write_named(path, b"new", over=True)
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["mounted"])


@pytest.mark.parametrize("name", ["a" * 300, "none/file"])
def test_names_that_cannot_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"too long|No such file") as caught:
        write_named(tmp_path / name, b"data", over=False)
    assert caught.value.filename == str(tmp_path / name)
    with pytest.raises(ValueError, match="null"):
        write_named("a\0b", b"data", over=False)
