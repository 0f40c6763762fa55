"""Finds the end of a long array of strings without walking through it: the next key of the metadata.

A vocabulary is a hundred thousand strings, each behind its length, and walking from one to the next is most of the time
that reading a header takes. For a list of models nothing in it is needed. So the bytes are searched for what has to
follow: a length, that many letters which begin like a key, and the type of a value. A token that looks like all of that
would mislead the search; what is read from there on then breaks one of the header's own rules, and the caller reads the
file properly. A file made to mislead it gains nothing that it could not simply claim in its metadata.
"""

from __future__ import annotations

import re

from llmcli.models.gguf_source import MAX_HEADER_BYTES, U32, U64, Source
from llmcli.models.gguf_values import TYPE_NAMES

_LEAST_STRINGS = 256  # shorter arrays are walked through in no time
_STEP_BYTES = 1 << 20
_LONGEST_KEY_BYTES = 120
# How keys start that are found behind a vocabulary. Literal searches run at memory speed, a pattern does not.
_STARTS = (b"tokenizer.", b"general.", b"quantize.", b"split.")


def landing_behind(source: Source, count: int) -> int | None:
    """Where the next key starts behind `count` strings that begin at the source's position; None: not found."""
    if count < _LEAST_STRINGS:
        return None
    at = source.position + 8 * count  # their lengths alone take so much
    most = min(source.file_bytes, MAX_HEADER_BYTES)
    while at < most:
        end = min(at + _STEP_BYTES, most)
        source.need(end - source.position, "an array of strings")
        if (found := _first_key(source.data, at, end)) is not None:
            return found
        at = max(at + 1, end - _LONGEST_KEY_BYTES) if end < most else most
    return None


def _first_key(data: bytearray, start: int, end: int) -> int | None:
    """The nearest length of a key between `start` and `end`."""
    nearest = end
    for word in _STARTS:
        at = data.find(word, start + 8, nearest)
        while at >= 0 and not _is_key(data, at - 8, end):
            at = data.find(word, at + 1, nearest)
        if at >= 0:
            nearest = at
    return nearest - 8 if nearest < end else None


def _is_key(data: bytearray, start: int, filled: int) -> bool:
    (size,) = U64.unpack_from(data, start)
    key = data[start + 8 : start + 8 + size]
    behind = start + 8 + size
    if len(key) != size or behind + 4 > filled or not re.fullmatch(rb"[A-Za-z0-9_.-]+", key):
        return False
    return U32.unpack_from(data, behind)[0] in TYPE_NAMES
