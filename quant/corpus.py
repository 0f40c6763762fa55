"""Text to measure models on: the user's or ours, cut into windows of tokens the way llama.cpp's tools cut it.

Two texts ship with the package: one to make importance matrices of, one to judge the result by. They share nothing,
because a matrix flatters on its own text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmcli.base.errors import UsageError
from llmcli.base.text import printable
from llmcli.base.units import format_count
from llmcli.engine.tokenizer import Tokenizer

CALIBRATION, EVALUATION = "calibration.txt", "evaluation.txt"
DEFAULT_WINDOW_TOKENS = 512
_SPARE_TOKENS = 256
LEAST_WINDOW_TOKENS = 32  # products of fewer than 16 tokens are not looked at, and half a window is not scored


@dataclass(frozen=True, slots=True)
class Text:
    """A text and the name it is told by."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """What tells one text from another, in hex."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


def shipped(name: str) -> Text:
    """One of the package's own texts: CALIBRATION or EVALUATION."""
    return Text(name, (Path(__file__).parent / name).read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Windows:
    """A text as token ids, of which every window is read by the model on its own.

    bos   put in place of the first token of each window, where the model wants one
    """

    tokens: tuple[int, ...]
    window_tokens: int
    count: int
    bos: int | None

    def window(self, index: int) -> list[int]:
        """The tokens of one window."""
        start = index * self.window_tokens
        found = list(self.tokens[start : start + self.window_tokens])
        if self.bos is not None:
            found[0] = self.bos
        return found

    def __iter__(self) -> Iterator[list[int]]:
        return (self.window(index) for index in range(self.count))


def cut(
    text: Text,
    tokenizer: Tokenizer,
    window_tokens: int,
    *,
    most: int | None = None,
    skip: int = 0,
    parse_special: bool = False,
) -> Windows:
    """The text in windows of `window_tokens`; what is left over at the end is not used.

    most   windows at most; skip: so many windows are left out at the beginning
    Raises UsageError where not even one window is full.
    """
    check_window(window_tokens)
    needed = None if most is None else (skip + most) * window_tokens
    ids = _ids(text.text, tokenizer, needed, parse_special=parse_special)[skip * window_tokens :]
    count = len(ids) // window_tokens
    if not count:
        behind = f" behind the first {format_count(skip, 'window')}" if skip else ""
        raise UsageError(
            f"{printable(text.name)} has {format_count(len(ids), 'token')}{behind}, "
            f"and a window needs {window_tokens:,}",
            hint="a longer text" + (f", or -c {len(ids)}" if len(ids) >= LEAST_WINDOW_TOKENS else ""),
        )
    bos = tokenizer.bos if tokenizer.adds_bos else None
    return Windows(tuple(ids), window_tokens, min(count, most or count), bos)


def _ids(text: str, tokenizer: Tokenizer, needed: int | None, *, parse_special: bool) -> list[int]:
    """The ids of the text, or of so much of it that the first `needed` are there.

    A corpus may take a minute to tokenize, of which a few windows are wanted. Near the end of a part the ids may differ
    from those of the whole, so that it has to give some more than are needed.
    """
    for characters in (8 * needed, 64 * needed) if needed else ():
        if 2 * characters < len(text):
            part = text[: text.rfind("\n", 0, characters) + 1 or characters]
            ids = tokenizer.with_bos(tokenizer.tokenize(part, parse_special=parse_special))
            if needed is not None and len(ids) >= needed + _SPARE_TOKENS:
                return ids
    return tokenizer.with_bos(tokenizer.tokenize(text, parse_special=parse_special))


def check_window(window_tokens: int) -> None:
    """Raise UsageError for a window that is too short to measure anything."""
    if window_tokens < LEAST_WINDOW_TOKENS:
        raise UsageError(f"-c {window_tokens} is too short a window: expected at least {LEAST_WINDOW_TOKENS} tokens")


def pieces(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut `count` tokens in pieces of at most `most`: (start, end)."""
    for start in range(0, count, most):
        yield start, min(count, start + most)
