"""Small files of ours: read whole, and nothing that is no file is waited for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.bounded_file import open_plain, read_bounded


def test_a_file_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10)
    assert read_bounded(path, 10) == b"x" * 10
    with pytest.raises(OSError, match="larger than 9 bytes"):
        read_bounded(path, 9)
    (tmp_path / "link").symlink_to(path)
    assert read_bounded(tmp_path / "link", 10) == b"x" * 10


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (os.mkfifo, errno.EINVAL),
        (lambda path: path.symlink_to("/dev/zero"), errno.EINVAL),
        (os.mkdir, errno.EISDIR),
        (lambda _path: None, errno.ENOENT),
    ],
    ids=["pipe", "device", "folder", "nothing"],
)
def test_what_is_no_file(tmp_path: Path, make: Callable[[Path], object], number: int) -> None:
    make(tmp_path / "f")
    with pytest.raises(OSError) as caught:  # noqa: PT011  # its number is looked at
        read_bounded(tmp_path / "f", 10)
    assert caught.value.errno == number
    assert caught.value.strerror


def test_the_null_device_is_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "f").symlink_to(os.devnull)
    assert read_bounded(tmp_path / "f", 10) == b""


def test_a_file_to_write_is_made_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for text in (b"a", b"b"):
        handle = open_plain(tmp_path / "f", flags)
        os.write(handle, text)
        os.close(handle)
    assert (tmp_path / "f").read_bytes() == b"ab"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_plain(tmp_path / "pipe", flags)
