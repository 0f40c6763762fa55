"""Disks: tried with a small file, and the kind of file system out of a mount table that is made up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llmcli.hardware.disk import DiskSpeed, drop_from_page_cache, file_system, try_disk


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    found = try_disk(tmp_path / "not" / "made", most_bytes=1 << 20)
    assert found.path == str(tmp_path / "not" / "made")
    assert found.write_bytes_s
    assert found.read_bytes_s is None or found.read_bytes_s > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no permissions there")
def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    found = try_disk(tmp_path)
    assert (found.write_bytes_s, found.read_bytes_s) == (None, None)


def test_the_innermost_mount_counts(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "23 22 0:5 / /data rw - nfs4 server:/data rw\n"
        "24 22 0:6 / /data\\040two rw shared:1 - tmpfs tmpfs rw\n"
        "25 22 0:7 / /database rw - xfs /dev/sdb rw\n"
        "nonsense\n"
    )
    assert file_system(Path("/home/me"), root) == "ext4"
    assert file_system(Path("/data"), root) == "nfs4"
    assert file_system(Path("/data/models"), root) == "nfs4"
    assert file_system(Path("/data two/x"), root) == "tmpfs"
    assert file_system(Path("/database/x"), root) == "xfs"
    assert file_system(Path("/"), tmp_path / "none") is None


@pytest.mark.parametrize(
    ("kind", "expected"), [("nfs4", True), ("cifs", True), ("fuse.sshfs", True), ("ext4", False), (None, False)]
)
def test_network(kind: str | None, *, expected: bool) -> None:
    assert DiskSpeed("/x", kind, 1.0, 1.0).is_network is expected


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache is told on Linux")
def test_page_cache(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"x" * 10000)
    (tmp_path / "c").write_bytes(b"y")
    assert drop_from_page_cache(tmp_path) == 2
    assert (tmp_path / "a" / "b").read_bytes() == b"x" * 10000
