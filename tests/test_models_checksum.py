"""Digests, first bytes, headers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.checksum import Checksum, WrongBytesError, check_header, file_has, refuse_other
from tests.pull_case import gguf

DATA = gguf(100)
SHA256 = hashlib.sha256(DATA).hexdigest()
SHA1 = hashlib.sha1(b"blob %d\0" % len(DATA) + DATA).hexdigest()


@pytest.mark.parametrize("expected", [SHA256, SHA1, None])
def test_the_right_bytes(expected: str | None) -> None:
    checksum = Checksum(expected, len(DATA))
    checksum.update(memoryview(DATA[:10]))
    checksum.update(memoryview(DATA[10:]))
    checksum.compare("m.gguf")
    assert checksum.sha256 == SHA256


@pytest.mark.parametrize("expected", ["0" * 64, "0" * 40])
def test_wrong_bytes(expected: str) -> None:
    checksum = Checksum(expected, len(DATA))
    checksum.update(memoryview(DATA))
    with pytest.raises(WrongBytesError, match=f"m.gguf came with wrong bytes: sha(1|256) .*, expected {expected}"):
        checksum.compare("m.gguf")


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    assert not file_has(path, SHA256, None)
    path.write_bytes(DATA)
    assert file_has(path, SHA256, len(DATA))
    assert file_has(path, SHA1, len(DATA))
    assert not file_has(path, SHA256, len(DATA) + 1)
    path.write_bytes(DATA[:-1] + b"!")
    assert not file_has(path, SHA256, len(DATA))
    with pytest.raises(ModelError, match=r"is here, and cannot be read: Is a directory$"):
        file_has(tmp_path, SHA256, None)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"<!DOCTYPE html>", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 123\n", "the real file is 123 bytes"),
        (b"\x01\x02\x03\x04\x05\x06", "not a GGUF file: it starts with the bytes 01 02"),
        (b"PK\x03\x04", "a zip archive"),
    ],
)
def test_what_came_instead(start: bytes, words: str) -> None:
    refuse_other(start, "x.dat")
    with pytest.raises(ModelError) as caught:
        refuse_other(start, "m\x1b.gguf")
    assert words in caught.value.message
    assert "\x1b" not in caught.value.message
    refuse_other(b"GGUF", "m.gguf")


def test_a_header_is_named_as_the_file_will_be(tmp_path: Path) -> None:
    path = tmp_path / "0123.incomplete"
    path.write_bytes(b"GGUF\x09\0\0\0")
    check_header(path, "imatrix.dat")
    with pytest.raises(ModelError) as caught:
        check_header(path, "m.gguf")
    assert "m.gguf" in caught.value.message
    assert str(tmp_path) not in caught.value.message
