from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from pathlib import Path

import pytest

from llmcli.cache_store import block_file
from llmcli.cache_store.block_file import read_header, read_part, replace_file, write_temp
from llmcli.cache_store.block_format import DamagedError, pack_header
from tests.test_cache_store_block_format import new_block

BIG = os.urandom(200_000)
BLOCK = new_block([1, 2], {"attn": BIG, "window": b"w" * 70_000, "state": b"tiny"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "block.kv"
    write_temp(file, [memoryview(pack_header(BLOCK)), *BLOCK.parts.values()])
    return file


def test_parts_are_read_alone_and_read_only(path: Path) -> None:
    for name, wanted in (("attn", BIG), ("window", b"w" * 70_000), ("state", b"tiny")):
        view = read_part(path, BLOCK.key, name)
        assert view == wanted
        assert view.readonly
    header, facts = read_header(path)
    assert (header.key, header.file_bytes) == (BLOCK.key, facts.st_size)


def test_a_view_outlives_its_file(path: Path) -> None:
    view = read_part(path, BLOCK.key, "attn")
    path.unlink()
    assert view == BIG


def test_reading_without_maps_gives_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_file, "_map", lambda handle, entry: None)
    assert read_part(path, BLOCK.key, "attn") == BIG


def test_damage_in_one_part_leaves_the_others_readable(path: Path) -> None:
    header, _ = read_header(path)
    with path.open("r+b") as file:
        file.seek(header.parts["window"].offset)
        file.write(b"X")
    with pytest.raises(DamagedError, match="checksum"):
        read_part(path, BLOCK.key, "window")
    assert read_part(path, BLOCK.key, "attn") == BIG


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parts are not mapped elsewhere")
def test_a_page_that_cannot_be_had_is_an_error_and_no_signal(path: Path) -> None:
    """The file is cut between map and use: fetching the pages fails where touching them would kill. In a child."""
    child = os.fork()
    if child == 0:
        real = mmap.mmap

        class CutWhenMapped(real):  # type: ignore[valid-type, misc]
            def madvise(self, *args: int) -> None:
                os.truncate(path, 4096)
                super().madvise(*args)

        block_file.mmap.mmap = CutWhenMapped  # type: ignore[attr-defined]
        try:
            read_part(path, BLOCK.key, "attn")
        except DamagedError as error:
            os._exit(0 if "checksum" in error.message else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_parts_are_mapped_and_their_pages_fetched(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this call a cut file or a failing disk would end the process."""
    advice: list[int] = []
    try:
        mmap.mmap(-1, 4096).madvise(22)
    except OSError:
        pytest.skip("this kernel cannot promise pages: parts are read instead")

    class Noted(mmap.mmap):
        def madvise(self, *args: int) -> None:
            advice.extend(args)
            super().madvise(*args)

    monkeypatch.setattr(mmap, "mmap", Noted)
    view = read_part(path, BLOCK.key, "attn")
    assert isinstance(view.obj, Noted)
    assert advice == [22]  # MADV_POPULATE_READ
    assert bytes(read_part(path, BLOCK.key, "state")) == b"tiny"
    assert advice == [22]


def test_another_key_or_part(path: Path) -> None:
    with pytest.raises(DamagedError, match="another block"):
        read_part(path, b"x" * 32, "attn")
    with pytest.raises(DamagedError, match="no part 'nope'") as caught:
        read_part(path, BLOCK.key, "nope")
    assert not caught.value.removable


@pytest.mark.parametrize("kind", ["folder", "link", "fifo"])
def test_what_is_not_a_file_is_never_followed_or_waited_for(path: Path, tmp_path: Path, kind: str) -> None:
    odd = tmp_path / "odd.kv"
    if kind == "folder":
        odd.mkdir()
    elif kind == "link":
        odd.symlink_to(path)
    else:
        os.mkfifo(odd)
    with pytest.raises(DamagedError) as caught:
        read_header(odd)
    assert not caught.value.removable


def test_a_missing_file_is_not_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "none")


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_files_are_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        assert write_temp(tmp_path / "t", [memoryview(b"abc"), memoryview(b"de")]) == 5
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o600
    assert (tmp_path / "t").read_bytes() == b"abcde"


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="No space"):
        write_temp(tmp_path / "t", [memoryview(b"abc")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 7, 10, 100])
@pytest.mark.parametrize("has_writev", [True, False])
def test_short_writes_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, *, has_writev: bool
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:at_once]))
    if has_writev:
        monkeypatch.setattr(os, "writev", lambda handle, some: real(handle, b"".join(some)[:at_once]))
    else:
        monkeypatch.delattr(os, "writev")
    pieces = [b"012", b"3", b"", b"456789", b"abc"] * 7  # more than go at once
    assert write_temp(tmp_path / "t", (memoryview(piece) for piece in pieces)) == 7 * 13
    monkeypatch.undo()
    assert (tmp_path / "t").read_bytes() == b"0123456789abc" * 7


def test_replace_file(tmp_path: Path) -> None:
    replace_file(tmp_path / "f", tmp_path / ".tmp-1", b"one")
    replace_file(tmp_path / "f", tmp_path / ".tmp-2", b"two")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("f", b"two")]
