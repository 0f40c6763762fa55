"""Text to token ids and back, by the model's own vocabulary.

BOS is added here by hand and never by llama_tokenize: a prompt whose text already starts with it gets exactly one.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from llmcli.base.errors import ModelError
from llmcli.engine import native

# enum llama_token_attr (llama.h)
_UNKNOWN, _CONTROL, _USER_DEFINED = 1 << 0, 1 << 3, 1 << 4
_NULL_TOKEN = -1
_NO_VOCABULARY = 0  # enum llama_vocab_type: a test file without a tokenizer
_PIECE_BYTES = 256


class SpecialIds(NamedTuple):
    """Tokens that stand for no ordinary text, in id order.

    control   read from a text only where that is asked for, and written as no text (unknown tokens count here)
    defined   added by the model's author: always read from a text, and written as text
    """

    control: tuple[int, ...]
    defined: tuple[int, ...]


class Tokenizer:
    """The vocabulary of a loaded model; valid as long as the model is."""

    def __init__(self, vocab: Any) -> None:
        self._lib = native.lib()
        self.handle = vocab
        self.n_vocab: int = self._lib.llama_vocab_n_tokens(vocab)
        self._has_text = self._lib.llama_vocab_type(vocab) != _NO_VOCABULARY
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}

    @property
    def bos(self) -> int | None:
        """The id of the beginning-of-sequence token, None where the vocabulary has none."""
        return _id_or_none(self._lib.llama_vocab_bos(self.handle))

    @property
    def eos(self) -> int | None:
        """The id of the end-of-sequence token, None where the vocabulary has none."""
        return _id_or_none(self._lib.llama_vocab_eos(self.handle))

    @property
    def adds_bos(self) -> bool:
        """Whether the model wants every sequence to start with BOS."""
        return bool(self._lib.llama_vocab_get_add_bos(self.handle)) and self.bos is not None

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        """The ids of `text` alone, without BOS or EOS; NUL is a character like any other.

        parse_special: whether the text of a control token becomes that token (template text) or stays text (user text).
        Raises ModelError where the vocabulary cannot tokenize at all.
        """
        data = text.encode("utf-8", "surrogatepass")
        capacity = len(data) + 16
        for _ in range(2):
            buffer = (ctypes.c_int32 * capacity)()
            count = self._lib.llama_tokenize(self.handle, data, len(data), buffer, capacity, False, parse_special)
            if count >= 0:
                return buffer[:count]
            capacity = -count
        raise ModelError("the model's tokenizer cannot tokenize this text")

    def tokenize_fragments(self, fragments: Iterable[tuple[str, bool]]) -> list[int]:
        """The ids of consecutive (text, parse_special) fragments, as if they were one text cut at their borders."""
        ids: list[int] = []
        for text, parse_special in fragments:
            ids += (
                self._continue(text, parse_special=parse_special)
                if ids
                else self.tokenize(text, parse_special=parse_special)
            )
        return ids

    def tokenize_behind(self, fragments: Iterable[tuple[str, bool]]) -> list[int]:
        """The ids of fragments that go on behind other tokens."""
        return [token for text, special in fragments for token in self._continue(text, parse_special=special)]

    def _continue(self, text: str, *, parse_special: bool) -> list[int]:
        # SentencePiece vocabularies put a space before every text they are given. In the middle of a text that is
        # wrong, so the fragment is tokenized behind a newline, whose own ids are then taken off again.
        lead = self._newline_ids
        ids = self.tokenize("\n" + text, parse_special=parse_special)
        return ids[len(lead) :] if ids[: len(lead)] == lead else self.tokenize(text, parse_special=parse_special)

    @functools.cached_property
    def _newline_ids(self) -> list[int]:
        return self.tokenize("\n", parse_special=False)

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        """`ids` with exactly one BOS in front where the model wants one; unchanged where it does not."""
        if not self.adds_bos:
            return list(ids)
        start = 0
        while start < len(ids) and ids[start] == self.bos:
            start += 1
        return [self.bos, *ids[start:]]  # type: ignore[list-item]  # adds_bos implies bos is not None

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that `token` adds to a text; b"" for a control token unless `special`."""
        key = token if not special else ~token
        if (found := self._pieces.get(key)) is None:
            found = self._pieces[key] = self._read_piece(token, special=special)
        return found

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        if not self._has_text:  # llama.cpp would end the process
            return b""
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        count = self._lib.llama_token_to_piece(self.handle, token, buffer, _PIECE_BYTES, 0, special)
        if count < 0:
            buffer = ctypes.create_string_buffer(-count)
            count = self._lib.llama_token_to_piece(self.handle, token, buffer, -count, 0, special)
        return buffer.raw[: max(count, 0)]

    def text_of(self, token: int) -> str:
        """The vocabulary's own spelling of `token`, as it stands in the file."""
        return (self._lib.llama_vocab_get_text(self.handle, token) or b"").decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        """Whether `token` ends a generation (any end-of-generation token, not EOS alone)."""
        if (found := self._ends.get(token)) is None:
            found = self._ends[token] = bool(self._lib.llama_vocab_is_eog(self.handle, token))
        return found

    @functools.cached_property
    def special(self) -> SpecialIds:
        """The special tokens; asked of llama.cpp token by token unless it was set (special_tokens.py remembers it)."""
        attr, handle = self._lib.llama_vocab_get_attr, self.handle
        kinds = [attr(handle, i) for i in range(self.n_vocab)]
        return SpecialIds(
            control=tuple(i for i, kind in enumerate(kinds) if kind & (_UNKNOWN | _CONTROL)),
            defined=tuple(i for i, kind in enumerate(kinds) if kind & _USER_DEFINED),
        )

    @property
    def control_texts(self) -> frozenset[str]:
        """The texts that become tokens only with parse_special; those of `defined` tokens always do."""
        return frozenset(filter(None, map(self.text_of, self.special.control)))

    def is_special(self, token: int) -> bool:
        """Whether `token` is a control or unknown token, or one defined by the model's author."""
        return bool(self._lib.llama_vocab_get_attr(self.handle, token) & (_UNKNOWN | _CONTROL | _USER_DEFINED))

    @functools.cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Every end-of-generation token."""
        is_eog = self._lib.llama_vocab_is_eog
        return tuple(i for i in range(self.n_vocab) if is_eog(self.handle, i))

    def longest_piece_bytes(self) -> int:
        """The most text one token can stand for: a lower bound for a text's token count, without tokenizing it."""
        return max((len(self.piece(i)) for i in range(self.n_vocab)), default=1) or 1


def _id_or_none(token: int) -> int | None:
    return None if token == _NULL_TOKEN else token
