"""The state of a file: the same until something about it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmcli.models.file_identity import file_identity


def test_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"12345")
    os.utime(path, ns=(7, 1_700_000_000_000_000_001))
    (tmp_path / "link").symlink_to(path)
    status = path.stat()
    found = file_identity(str(tmp_path / "link"))
    assert list(found) == [
        os.path.realpath(path), status.st_dev, status.st_ino, 5, 1_700_000_000_000_000_001, status.st_ctime_ns,
    ]  # fmt: skip
    assert found == file_identity(str(path))


def test_any_change_makes_another(tmp_path: Path) -> None:
    path, other = tmp_path / "m.gguf", tmp_path / "other"
    path.write_bytes(b"12345")
    os.utime(path, (7, 7))
    seen = [file_identity(str(path))]
    path.write_bytes(b"123456")
    os.utime(path, (7, 7))
    seen.append(file_identity(str(path)))
    os.utime(path, (7, 8))
    seen.append(file_identity(str(path)))
    other.write_bytes(b"123456")
    os.utime(other, (7, 8))
    os.replace(other, path)
    seen.append(file_identity(str(path)))
    assert len(set(seen)) == len(seen)


def test_the_real_path_may_come_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"")
    assert file_identity(str(tmp_path / "m"), lambda path: f"real {path}").real_path == f"real {tmp_path / 'm'}"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_identity(str(tmp_path / "gone"))
