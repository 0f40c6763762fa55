"""Files that people have in place of a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.models.sniff import what_is

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 4920734016\n" % (b"a" * 64)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "an empty file"),
        (b"<!DOCTYPE html><html>", "an HTML page"),
        (b"\n\n  <HTML lang=en>", "an HTML page"),
        (b"\xef\xbb\xbf<!doctype HTML>", "an HTML page"),
        (b'<?xml version="1.0"?><!DOCTYPE html PUBLIC "x"><html>', "an HTML page"),
        (b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code>', "an XML document"),
        (LFS, "a Git LFS pointer (the real file is 4920734016 bytes)"),
        (LFS.replace(b"\n", b"\r\n"), "a Git LFS pointer (the real file is 4920734016 bytes)"),
        (LFS[:60], "a Git LFS pointer"),
        (b"lmgg\x01\0\0\0", "an old GGML file"),
        (b"fmgg\x01\0\0\0", "an old GGML file (GGMF)"),
        (b"tjgg\x03\0\0\0", "an old GGML file (GGJT)"),
        (b"algg\x01\0\0\0", "an old GGML file (a GGLA adapter)"),
        (b"nsgg\x09\0\0\0", "a saved llama.cpp session, not a model"),
        (b"qsgg\x03\0\0\0", "a saved llama.cpp state, not a model"),
        ((1234).to_bytes(8, "little") + b'{"__metadata__":', "a safetensors file"),
        (b"PK\x03\x04\0\0", "a zip archive (a PyTorch checkpoint or a package)"),
        (b"\x80\x02}q\0", "a pickled PyTorch checkpoint"),
        (b"\x1f\x8b\x08", "a gzip archive"),
        (b"\0" * 512, "a file of zero bytes (a download that never finished)"),
        (b'{"error":"Repository not found"}', "a JSON document"),
        (b"Entry not found", "a text file"),
        (b"GGUF\x03\0\0\0", None),
        (b"\x12\x34\x00\xff\x80random", None),
    ],
)
def test_what_is(data: bytes, expected: str | None) -> None:
    assert what_is(data) == expected


@given(st.binary(max_size=600))
def test_anything_has_an_answer(data: bytes) -> None:
    found = what_is(data)
    assert found is None or found.isprintable()
    assert what_is(b"GGUF" + data) is None
