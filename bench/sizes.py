"""What is measured: how many prompt tokens, how many generated ones, behind how many others; and how lists are written.

Lists and ranges are those of llama-bench: `512`, `512,1024`, `1-4`, `0-1024+256`, `64-4096*2`. Knows nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from llmcli.base.errors import UsageError

_PIECE = re.compile(r"(-?\d{1,10})(?:-(\d{1,10})(?:([+*])(\d{1,10}))?)?\Z", re.ASCII)
_PAIR = re.compile(r"(\d{1,10}),(\d{1,10})\Z", re.ASCII)
MOST_VALUES = 1000
_HOW = "write it like 512, 512,1024 or 64-4096*2"


@dataclass(frozen=True, slots=True)
class Sizes:
    """One test: `n_prompt` tokens computed at once, then `n_gen` one by one, behind `n_depth` others."""

    n_prompt: int = 0
    n_gen: int = 0
    n_depth: int = 0

    @property
    def total_tokens(self) -> int:
        """What the context must hold."""
        return self.n_prompt + self.n_gen + self.n_depth

    @property
    def timed_tokens(self) -> int:
        """What a rate counts: the tokens at depth are computed before the clock starts."""
        return self.n_prompt + self.n_gen

    @property
    def kind(self) -> str:
        """`pp` (prompt), `tg` (generation) or `pg` (both)."""
        if self.n_prompt and self.n_gen:
            return "pg"
        return "tg" if self.n_gen else "pp"

    @property
    def name(self) -> str:
        """As llama-bench calls it: pp512, tg128, pp512+tg128, tg64 @ d1024."""
        parts = [f"pp{self.n_prompt}"] * bool(self.n_prompt) + [f"tg{self.n_gen}"] * bool(self.n_gen)
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")


def parse_list(text: str, *, least: int = 0) -> tuple[int, ...]:
    """The numbers of a list with ranges, none below `least`. Raises UsageError for anything else."""
    found: list[int] = []
    for piece in text.split(","):
        match = _PIECE.match(piece.strip())
        if not match:
            raise UsageError(f"{text!r} is not a list of numbers", hint=_HOW)
        for value in _values(text, match):
            if value < least:
                raise UsageError(f"{value} is less than {least}")
            found.append(value)
            if len(found) > MOST_VALUES:
                raise UsageError(f"{text!r} stands for more than {MOST_VALUES:,} values")
    return tuple(found)


def _values(text: str, match: re.Match[str]) -> Iterator[int]:
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[4] or 1)
    if last < first:
        raise UsageError(f"the range in {text!r} ends before it begins")
    value = first
    while value <= last:
        yield value
        following = value * step if match[3] == "*" else value + step
        if following <= value and value < last:
            raise UsageError(f"the range in {text!r} does not go on from {value}")
        if following <= value:
            return
        value = following


def parse_pair(text: str) -> tuple[int, int]:
    """`512,128`: prompt and generated tokens of one test, at least one of them. Raises UsageError for anything else."""
    match = _PAIR.match(text.strip())
    if not match or not (int(match[1]) or int(match[2])):
        raise UsageError(f"{text!r} is not a pair of prompt and generated tokens", hint="write it like 512,128")
    return int(match[1]), int(match[2])
