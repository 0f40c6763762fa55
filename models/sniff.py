"""Recognises what people have in place of a model, by its first bytes."""

from __future__ import annotations

import re

MAGIC = b"GGUF"

_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = re.compile(rb"^size (\d{1,20})\s*$", re.MULTILINE)
_SAFETENSORS_MAX_HEADER_BYTES = 100_000_000  # the format's own limit

# The old formats wrote their magic as a little-endian number, so that it stands in the file backwards.
_OLD_MAGICS = {
    b"lmgg": "an old GGML file",
    b"fmgg": "an old GGML file (GGMF)",
    b"tjgg": "an old GGML file (GGJT)",
    b"algg": "an old GGML file (a GGLA adapter)",
    b"nsgg": "a saved llama.cpp session, not a model",
    b"qsgg": "a saved llama.cpp state, not a model",
}
_STARTS = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or a package)"),
    (b"\x80\x02", "a pickled PyTorch checkpoint"),
    (b"\x80\x03", "a pickled PyTorch checkpoint"),
    (b"\x80\x04", "a pickled PyTorch checkpoint"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF document"),
)
_HTML_STARTS = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script", b"<meta")


def what_is(first_bytes: bytes) -> str | None:
    """What a file with these first bytes is, as words for a message ("an HTML page").

    None for a GGUF file, and for anything that is not recognised. A few hundred bytes are enough.
    """
    if not first_bytes:
        return "an empty file"
    if first_bytes.startswith(MAGIC):
        return None
    if first_bytes.startswith(_LFS):
        size = _LFS_SIZE.search(first_bytes)
        return f"a Git LFS pointer (the real file is {int(size[1])} bytes)" if size else "a Git LFS pointer"
    if old := _OLD_MAGICS.get(first_bytes[:4]):
        return old
    for start, name in _STARTS:
        if first_bytes.startswith(start):
            return name
    if _is_safetensors(first_bytes):
        return "a safetensors file"
    return _as_text(first_bytes)


def in_words(first_bytes: bytes) -> str:
    """Bytes as a reader can compare them: letters where all are, else numbers in base 16."""
    if first_bytes and all(0x20 <= byte < 0x7F for byte in first_bytes):
        return f'"{first_bytes.decode("ascii")}"'
    return f"the bytes {first_bytes.hex(' ')}"


def _is_safetensors(first_bytes: bytes) -> bool:
    """Eight bytes with the length of a JSON object, then the object."""
    length = int.from_bytes(first_bytes[:8], "little")
    return 1 < length <= _SAFETENSORS_MAX_HEADER_BYTES and first_bytes[8:9] == b"{"


def _as_text(first_bytes: bytes) -> str | None:
    if not first_bytes.strip(b"\0"):
        return "a file of zero bytes (a download that never finished)"
    text = first_bytes.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith(_HTML_STARTS):
        return "an HTML page"
    if text.startswith(b"<?xml"):
        return "an HTML page" if b"<html" in text else "an XML document"
    if text.startswith((b'{"', b"{\n", b"{ ", b"[{")):
        return "a JSON document"
    if b"\0" not in first_bytes and all(byte >= 32 or byte in b"\t\n\r\f\x1b" for byte in first_bytes):
        return "a text file"
    return None
