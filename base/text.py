"""Text that came from outside: bytes that may not be UTF-8, names that may hold control bytes."""

from __future__ import annotations

import codecs
import os
import unicodedata
from typing import NamedTuple


class Decoded(NamedTuple):  # a dataclass would cost every start 10 ms: this module is part of --version
    """Text, and the byte offset of the first byte that was not UTF-8 (None where all were)."""

    text: str
    bad_offset: int | None


def decode_utf8(data: bytes) -> Decoded:
    """`data` as text: a leading byte order mark is dropped, NUL is kept, wrong bytes become U+FFFD."""
    skipped = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    try:
        return Decoded(data[skipped:].decode("utf-8"), None)
    except UnicodeDecodeError as error:
        return Decoded(data[skipped:].decode("utf-8", "replace"), error.start + skipped)


def decode_word(text: str) -> Decoded:
    """A word of the command line or of the environment, read as UTF-8 whatever the locale.

    Python has decoded it with the locale's encoding, and keeps bytes that do not fit there as lone surrogates. Words of
    config.toml come the same way and are text already; they show themselves only where the locale lacks a character.
    """
    try:
        return decode_utf8(os.fsencode(text))
    except UnicodeEncodeError:
        return Decoded(text, None)


def printable(text: str) -> str:
    """`text` on one line, safe for a terminal: control, format and surrogate characters are shown escaped.

    For names, metadata and paths inside messages; never for an answer, which goes out as it is.
    """
    if text.isprintable():  # nearly always, and a hundred times as fast to find out
        return text
    return "".join(_escaped(ch) if unicodedata.category(ch) in _UNSAFE else ch for ch in text)


_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def _escaped(ch: str) -> str:
    return ch.encode("unicode_escape").decode("ascii")
