"""Where two prompts part, why, and how they could share more: strings and token ids, no model and no store.

What is kept of a prompt serves another one only up to the first token that differs. So a date in the first line costs
everything behind it. This finds that place, guesses what kind of thing changes there, and works out what would be
shared if all that changes stood at the end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmcli.base.units import format_count
from llmcli.cache_store.keys import GRID_TOKENS
from llmcli.engine.prefix_recipe import common_length

_CONTEXT_TOKENS = 8
_PUT_FIRST = "put what stays the same (instructions, documents) first, and what changes behind it"
_MOST_WORD_CHARS = 40
# A sentence with the space behind it, or a line: what people move around in a prompt.
_UNIT = re.compile(r".*?(?:[.!?](?=\s)\s*|\n+|\Z)", re.DOTALL)
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}\S*|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}|\d{1,2}:\d{2}(?::\d{2})?\S*|1[4-9]\d{8}(?:\d{3})?"
    r"|(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*",
    re.IGNORECASE,
)
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=\S*\d)[0-9a-z_+/=-]{8,}", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d[\d.,]*%?")
_EDGES = ".,;:!?()[]{}<>\"'`*#="
_KINDS = (
    (_DATE, "a date or a time changes"),
    (_ID, "an id changes"),
    (_NUMBER, "a number changes"),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of the two: the user's own text, and the token ids of the whole prompt."""

    text: str
    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Sharing:
    """How many tokens two prompts share, and how many of them a run restores, whichever of the two comes first."""

    shared_tokens: int
    restored_tokens: int


@dataclass(frozen=True, slots=True)
class Why:
    """What was found.

    difference   position_tokens, and the text around it in either; None where the prompts are the same
    nothing_because   why a run restores nothing of what is shared; None where it does, or nothing is shared
    if_last      the sharing if what changes stood behind all that does not; None where that is no more than now
    """

    tokens: tuple[int, int]
    now: Sharing
    nothing_because: str | None
    difference: dict[str, Any] | None
    advice: tuple[str, ...]
    if_last: Sharing | None

    def as_json(self) -> dict[str, Any]:
        """The object with the names of docs/commands/cache.md."""
        return {
            "a_tokens": self.tokens[0],
            "b_tokens": self.tokens[1],
            "shared_tokens": self.now.shared_tokens,
            "restored_tokens": self.now.restored_tokens,
            "nothing_restored_because": self.nothing_because,
            "first_difference": self.difference,
            "advice": list(self.advice),
            "if_changes_came_last": self.if_last
            and {"shared_tokens": self.if_last.shared_tokens, "restored_tokens": self.if_last.restored_tokens},
        }


def compare_prompts(
    one: Prompt,
    other: Prompt,
    *,
    tokenize: Callable[[str], Sequence[int]],
    text_of: Callable[[Sequence[int]], str],
    min_tokens: int,
) -> Why:
    """Compare two prompts.

    tokenize     the ids of the whole prompt around another text of the user
    text_of      how ids read
    min_tokens   what the store restores at least
    """
    now = sharing(one.ids, other.ids, min_tokens)
    same = len(one.ids) == len(other.ids) == now.shared_tokens
    difference = None if same else _difference(one.ids, other.ids, now.shared_tokens, text_of)
    advice, if_last = list[str](), None
    if one.text != other.text:
        advice = advise(one.text, other.text)
        moved = [tokenize(text) for text in with_changes_last(one.text, other.text)]
        if_last = sharing(moved[0], moved[1], min_tokens)
        if advice == [_PUT_FIRST] and not (now.restored_tokens or if_last.restored_tokens):
            most = format_count(max(now.shared_tokens, if_last.shared_tokens), "token")
            advice = [f"in no order do they share enough for a restore: {most} at most"]
        if if_last.shared_tokens <= now.shared_tokens:
            if_last = None
    return Why(
        (len(one.ids), len(other.ids)), now, _nothing_because(now, min_tokens), difference, tuple(advice), if_last
    )


def sharing(one: Sequence[int], other: Sequence[int], min_tokens: int) -> Sharing:
    """What is shared. A restore ends on the grid, and the last token of a prompt is always computed."""
    shared = common_length(one, other)
    restored = min(shared, min(len(one), len(other)) - 1) // GRID_TOKENS * GRID_TOKENS
    return Sharing(shared, restored if restored >= min_tokens else 0)


def _nothing_because(now: Sharing, min_tokens: int) -> str | None:
    if now.restored_tokens or not now.shared_tokens:
        return None
    if now.shared_tokens < min_tokens and min_tokens > GRID_TOKENS:
        return f"fewer than {min_tokens:,} are not restored (--cache-min-tokens)"
    if now.shared_tokens < GRID_TOKENS:
        return (
            f"fewer than {GRID_TOKENS} never are, since a restore ends on a multiple of {GRID_TOKENS}, "
            "where a run without the store cuts its computing too: so both give the same answer"
        )
    least = f", and ends at {min_tokens:,} at least" if min_tokens > GRID_TOKENS else ""
    return f"a restore ends on a multiple of {GRID_TOKENS} before the last token of the prompt{least}"


def _difference(
    one: Sequence[int], other: Sequence[int], position: int, text_of: Callable[[Sequence[int]], str]
) -> dict[str, Any]:
    start, end = max(0, position - _CONTEXT_TOKENS), position + _CONTEXT_TOKENS
    return {"position_tokens": position, "a": text_of(one[start:end]), "b": text_of(other[start:end])}


def units(text: str) -> list[str]:
    """The text as sentences and lines; joined they are the text."""
    return [unit for unit in _UNIT.findall(text) if unit]


def with_changes_last(one: str, other: str) -> tuple[str, str]:
    """Both texts with what they have in common in front, in the order of the first, and the rest behind it."""
    units_one, units_other = units(one), units(other)
    bare_one, bare_other = ([unit.strip() for unit in some] for some in (units_one, units_other))
    common = Counter(bare_one) & Counter(bare_other)
    front, back_one = _split(units_one, common)
    _, back_other = _split(units_other, common)
    head = "".join(front).rstrip()
    return tuple(head + "\n\n" + "".join(back).strip() for back in (back_one, back_other))  # type: ignore[return-value]


def _split(some: Sequence[str], common: Counter[str]) -> tuple[list[str], list[str]]:
    left, front, back = Counter(common), list[str](), list[str]()
    for unit in some:
        is_common = left[unit.strip()] > 0
        left[unit.strip()] -= is_common
        (front if is_common else back).append(unit)
    return front, back


def advise(one: str, other: str) -> list[str]:
    """What may be done, the likeliest first. The texts differ."""
    found = []
    if one.split() == other.split():
        return ["only white space differs: write both in one way (line ends, blank lines, trailing spaces)"]
    word_one, word_other = _words_at(one, other)
    kind = next((told for pattern, told in _KINDS if _is(pattern, word_one) and _is(pattern, word_other)), None)
    if kind and word_one != word_other:
        found.append(f"{kind} ({word_one} / {word_other}): put it behind what stays the same, or leave it out")
    if _is_reordered(one, other):
        found.append("the same parts stand in another order: keep one order, for example sort files by name")
    if not found:
        if other.startswith(one) or one.startswith(other):
            found.append("one continues the other: everything that they share comes first already")
        else:
            found.append(_PUT_FIRST)
    return found


def _is(pattern: re.Pattern[str], word: str) -> bool:
    return pattern.fullmatch(word) is not None


def _words_at(one: str, other: str) -> tuple[str, str]:
    """The words at the first difference, without punctuation around them."""
    at = common_length(one, other)  # type: ignore[arg-type]  # characters are compared as ids are
    while at and not one[at - 1].isspace():
        at -= 1
    words = []
    for text in (one, other):
        found = re.match(r"\S*", text[at : at + 1000])
        words.append((found[0] if found else "").strip(_EDGES)[:_MOST_WORD_CHARS])
    return words[0], words[1]


def _is_reordered(one: str, other: str) -> bool:
    """Whether parts that both have follow each other differently."""
    orders = []
    counts = [Counter(unit.strip() for unit in units(text)) for text in (one, other)]
    common = {unit for unit in counts[0] & counts[1] if unit}
    for text in (one, other):
        stripped = (unit.strip() for unit in units(text))
        orders.append(list(dict.fromkeys(unit for unit in stripped if unit in common)))
    return orders[0] != orders[1]
