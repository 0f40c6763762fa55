"""Reading forward through a file that is not trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.gguf_source import MAX_HEADER_BYTES, U32, U64, Source, open_regular, shown


def source_of(data: bytes, tmp_path: Path) -> Source:
    path = tmp_path / "file"
    path.write_bytes(data)
    return Source(path)


def test_numbers_and_texts_in_turn(tmp_path: Path) -> None:
    data = U32.pack(7) + U64.pack(3) + b"abc" + U32.pack(9)
    with source_of(data, tmp_path) as source:
        assert source.number(U32, "one") == 7
        assert source.text(10, "two") == b"abc"
        assert source.number(U32, "three") == 9
        assert source.position == source.file_bytes == len(data)
        with pytest.raises(ModelError, match="at offset 19, four needs 4 bytes, and the file has 0 left"):
            source.number(U32, "four")


def test_a_text_that_is_too_long(tmp_path: Path) -> None:
    expected = "at offset 0, name is 11 bytes long, expected at most 10"
    with source_of(U64.pack(11) + b"x" * 11, tmp_path) as source, pytest.raises(ModelError, match=expected):
        source.text(10, "name")


def test_no_more_is_read_than_is_needed(tmp_path: Path) -> None:
    with source_of(bytes(5 << 20), tmp_path) as source:
        source.need(1, "one byte")
        assert len(source.data) == 1 << 20
        source.need(1 << 20, "more", at=1)
        assert len(source.data) == 2 << 20
        assert source.read_at((5 << 20) - 2, 100) == b"\0\0"


def test_a_header_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, MAX_HEADER_BYTES + 2)  # sparse: no disk is used, and none of it is read
    with Source(path) as source:
        with pytest.raises(ModelError, match="the header is longer than 134217728 bytes, the limit"):
            source.need(MAX_HEADER_BYTES + 1, "everything")
        assert source.data == b""


def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path: Path) -> None:
    with source_of(bytes(3 << 20), tmp_path) as source:
        source.need(1, "one byte")
        os.truncate(source.path, 1 << 20)
        with pytest.raises(ModelError, match="is cut off"):
            source.need(2 << 20, "two megabytes")


def test_the_file_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with source_of(b"x", tmp_path):
        pass
    handle = open_regular(tmp_path / "file")
    os.close(handle)
    assert (len(os.listdir("/proc/self/fd")) if before else 0) == before


def test_paths_are_shown_harmless() -> None:
    assert shown(Path("a\x1b[31m\nb")) == "a\\x1b[31m\\nb"


def test_what_is_leapt_over_is_not_read(tmp_path: Path) -> None:
    data = bytes(range(256)) * 2048
    path = tmp_path / "file"
    path.write_bytes(data)
    with Source(path, leaps=True) as leaping, Source(path) as walking:
        for source in (leaping, walking):
            source.pass_over(300_000, "many bytes")
            assert source.number(U32, "a number") == int.from_bytes(data[300_000:300_004], "little")
        assert leaping.data[:300_000] == bytes(300_000)
        assert walking.data[:300_000] == data[:300_000]
        for source in (leaping, walking):
            with pytest.raises(
                ModelError, match="at offset 300004, rest needs 300000 bytes, and the file has 224284 left"
            ):
                source.pass_over(300_000, "rest")
