"""Finds the end of a long array of strings without walking through it: the next key of the metadata.

A vocabulary is a hundred thousand strings, each behind its length, and walking from one to the next is most of the time
that reading a header takes. For a list of models nothing in it is needed. So the bytes are searched for what has to
follow: a length, that many letters which begin like a key, and the type of a value. A token that looks like all of that
would mislead the search, and so would a key of another name in between; what is read from there on then breaks one of
the header's own rules, since the keys are counted, and the caller reads the file properly. A file made to mislead it
gains nothing that it could not simply claim in its metadata.

Where to search is found by looking here and there: a few hundred bytes tell whether they are strings, one behind the
other. So a vocabulary of megabytes costs some small reads; a wrong guess costs time and no more.
"""

from __future__ import annotations

import re

from llmcli.models.gguf_source import MAX_HEADER_BYTES, U32, U64, Source
from llmcli.models.gguf_values import TYPE_NAMES

_LEAST_STRINGS = 256  # shorter arrays are walked through in no time
_LEAST_BYTES, _MOST_BYTES = 10, 80  # of a string and its length, on average; where that is wrong the leap is in vain
_LONGEST_KEY_BYTES = 120  # with its length
_SEARCH_BYTES = 1 << 16  # at a time; from a disk no slower than a page of it, and still in the processor's cache
_PEEK_BYTES = 1 << 10
_CHAIN = 6  # strings in a row that show that a place is inside an array of them
_LONGEST_IN_CHAIN_BYTES = 255
_ZEROS = bytes(7)  # of a length that fits one byte
# How keys start that are found behind a vocabulary: nearly always the first of these, else any. Literal searches run at
# memory speed, the longer the faster; a pattern does not.
_STARTS = ((b"tokenizer.ggml.",), (b"tokenizer.", b"general.", b"quantize.", b"split."))


def leap_strings(source: Source, count: int) -> bool:
    """Go to the next key behind `count` strings that begin at the source's position; False, and stay, without one."""
    start, filled = source.position, source.filled
    most = min(start + _MOST_BYTES * count, source.file_bytes, MAX_HEADER_BYTES)
    if count < _LEAST_STRINGS:
        return False
    first = _last_inside(source, start + _LEAST_BYTES * count, most, 3 * count)
    for words in _STARTS:
        at = first
        while at < most:
            end = min(at + _SEARCH_BYTES, most)
            source.leap(at)
            source.need(end - at, "an array of strings")
            if (found := _first_key(source.data, words, at, end)) is not None:
                source.position = found
                return True
            at = end - _LONGEST_KEY_BYTES if end < most else most
    source.position, source.filled = start, filled
    return False


def _last_inside(source: Source, start: int, end: int, step: int) -> int:
    """A place not far before the end of the strings that go on at `start`; `start` itself where none do.

    The steps are shorter than the arrays of numbers between a vocabulary and its merges, which are strings again.
    """
    if step < _SEARCH_BYTES // 8:  # the end is most likely in the first bytes that are searched
        return start
    inside, outside = start, start + step
    while outside < end and _is_inside(source.read_at(outside, _PEEK_BYTES)):
        inside, outside = outside, outside + step
    while outside - inside > _SEARCH_BYTES:
        middle = (inside + outside) // 2
        if _is_inside(source.read_at(middle, _PEEK_BYTES)):
            inside = middle
        else:
            outside = middle
    return inside


def _is_inside(piece: bytes) -> bool:
    """Whether these bytes are strings in a row, each behind its length, from wherever the first of them starts."""
    at = piece.find(_ZEROS, 1) - 1
    for _ in range(_CHAIN):
        if not 0 <= at <= len(piece) - 8:
            return False
        (size,) = U64.unpack_from(piece, at)
        if not 0 < size <= _LONGEST_IN_CHAIN_BYTES:
            return False
        at += 8 + size
    return True


def _first_key(data: bytearray, words: tuple[bytes, ...], start: int, end: int) -> int | None:
    """The nearest length of a key that starts with one of `words`, between `start` and `end`."""
    nearest = end
    for word in words:
        at = data.find(word, start + 8, nearest)
        while at >= 0 and not _is_key(data, at - 8, end):
            at = data.find(word, at + 1, nearest)
        if at >= 0:
            nearest = at
    return nearest - 8 if nearest < end else None


def _is_key(data: bytearray, start: int, filled: int) -> bool:
    (size,) = U64.unpack_from(data, start)
    behind = start + 8 + size
    if size > _LONGEST_KEY_BYTES - 8 or behind + 4 > filled:  # first: what claims gigabytes must not be cut out
        return False
    if not re.fullmatch(rb"[A-Za-z0-9_.-]+", data[start + 8 : behind]):
        return False
    return U32.unpack_from(data, behind)[0] in TYPE_NAMES
