"""Where each of several texts parts from the one most like it: what a list shows to tell one from another."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TypeVar

_MOST_BACK_CHARS = 24
_Key = TypeVar("_Key")


def partings(texts: Mapping[_Key, str]) -> dict[_Key, int]:
    """How many characters each text shares with another one, at most: a neighbour in their order shares the most."""
    ordered = sorted(texts.items(), key=lambda item: item[1])
    shared = [_common_chars(one, other) for (_, one), (_, other) in itertools.pairwise(ordered)]
    pairs = zip(ordered, [0, *shared], [*shared, 0], strict=False)  # of no texts there is a 0 too much
    return {key: max(before, behind) for (key, _), before, behind in pairs}


def _common_chars(one: str, other: str) -> int:
    """By halving, since there can be many."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[:middle] == other[:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def word_start(text: str, at: int) -> int:
    """Where the word that holds `at` begins, if that is near."""
    start = max(text.rfind(space, 0, at) for space in " \n\t") + 1
    return start if at - start <= _MOST_BACK_CHARS else at
