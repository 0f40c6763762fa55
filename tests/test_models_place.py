"""Room, rights and bytes."""

from __future__ import annotations

import errno
import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmcli.base.errors import LlmcliError, ModelError, ResourceError
from llmcli.models.place import as_disk_error, disk_errors, require_free, verify

CONTENT = b"GGUF" + b"x" * 96
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def test_room_is_judged_before_the_folder_exists(tmp_path: Path) -> None:
    require_free(tmp_path / "a" / "b", 1, move_with="X")
    with pytest.raises(ResourceError) as caught:
        require_free(tmp_path / "a" / "b", 1 << 60, move_with="LLMCLI_HOME")
    assert "1048576.0 TiB needed" in caught.value.message
    assert "free" in caught.value.message
    assert "LLMCLI_HOME" in str(caught.value.hint)
    assert caught.value.exit_code == 6


def test_the_numbers_are_those_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    require_free(tmp_path, 2 << 20, move_with="X")
    with pytest.raises(ResourceError, match=r"3\.0 MiB needed, 3\.0 MiB free"):
        require_free(tmp_path, (2 << 20) + 1, move_with="X")


@pytest.mark.parametrize(
    ("number", "expected", "code"),
    [(errno.ENOSPC, ResourceError, 6), (errno.EROFS, LlmcliError, 1), (errno.EACCES, LlmcliError, 1)],
)
def test_disk_errors(number: int, expected: type[LlmcliError], code: int) -> None:
    found = as_disk_error(OSError(number, "reason", "/some/file"), Path("/x"), move_with="LLMCLI_HOME")
    assert type(found) is expected
    assert found.exit_code == code
    assert "/some/file" in found.message
    assert "LLMCLI_HOME" in str(found.hint)


def test_other_errors_are_not_the_disks() -> None:
    assert as_disk_error(OSError("no number"), Path("/x"), move_with="X") is None
    assert as_disk_error(ConnectionRefusedError(111, "refused"), Path("/x"), move_with="X") is None


@pytest.mark.parametrize(
    ("number", "expected", "text"),
    [
        (errno.ENOSPC, ResourceError, "the disk is full at /x"),
        (errno.EACCES, LlmcliError, "cannot write /x: reason"),
        (errno.EIO, LlmcliError, "cannot use /x: reason"),
    ],
)
def test_disk_errors_of_a_folder(number: int, expected: type[LlmcliError], text: str) -> None:
    with pytest.raises(LlmcliError) as caught, disk_errors(Path("/x"), move_with="X"):
        raise OSError(number, "reason")
    assert (type(caught.value), caught.value.message) == (expected, text)


def test_verify(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(CONTENT)
    verify(path, size_bytes=100, sha256=DIGEST)
    verify(path, size_bytes=None, sha256=None)
    with pytest.raises(ModelError, match=r"came with 100 bytes, expected 101"):
        verify(path, size_bytes=101, sha256=DIGEST)
    path.write_bytes(CONTENT[:-1] + b"y")
    with pytest.raises(ModelError, match=f"wrong bytes: sha256 [0-9a-f]{{64}}, expected {DIGEST}"):
        verify(path, size_bytes=100, sha256=DIGEST)
    path.write_bytes(b"<!DOCTYPE html>\x1b[31m")
    with pytest.raises(ModelError, match='it starts with "<!DOCTYP", expected "GGUF"'):
        verify(path, size_bytes=None, sha256=None)
