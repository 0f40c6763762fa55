"""Where a user's text stands in a rendered prompt, so that none of it becomes a control token.

A template mixes its own text, in which "<|im_end|>" ends a turn, with messages, in which it is ten characters that
somebody wrote. Rendering loses the difference. It is found again by rendering once more with stand-ins: every
character of the messages that occurs in a special token's text is swapped for a character that occurs nowhere else,
a letter for one that has both cases too, so that upper() does to it what it does to the letter. Where the second
text, swapped back, equals the first, its stand-ins mark what came from the messages, also where a special text only
forms across the join of message and template.

A template that looks into a message (splits it at "</think>") does something else when the text is swapped. Then
the words it may look for stay as they are, in steps, until both texts agree again; what is special among them is the
template's in an answer, which it takes apart, and the user's elsewhere. If the texts never agree, every special text
that occurs in a message counts as the user's wherever it stands: a broken prompt, but no forged one.

Knows strings and a function that renders; knows nothing of Jinja and tokens.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from llmcli.base.records import dataclass

# The prompt for these contents; None where the template refuses them, which is one more way to do something else.
Render = Callable[[Sequence[str]], str | None]
Span = tuple[int, int]

# Planes 15 and 16, which belong to nobody.
_PRIVATE_USE = range(0xF0000, 0x10FFFE)
# Capitals of scripts with both cases that are rarely written: Deseret, Osage, Old Hungarian, Warang Citi, Adlam.
_CAPITALS = (
    range(0x10400, 0x10428),
    range(0x104B0, 0x104D4),
    range(0x10C80, 0x10CB3),
    range(0x118A0, 0x118C0),
    range(0x1E900, 0x1E922),
)


@dataclass(frozen=True, slots=True)
class Contents:
    """What the messages say, and what is known about the template.

    texts       the content of each message
    answers     whether a message is the assistant's: templates cut thinking out of those
    literals    strings written in the template, which it may look for in a message
    """

    texts: Sequence[str]
    answers: Sequence[bool]
    literals: Collection[str]


class SpecialTexts:
    """The texts that a tokenizer turns into control tokens."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts) - {""}
        # First two characters -> the lengths of the texts that begin with them, the greatest first. Two, since "<" is
        # everywhere in some messages and "<|" is not.
        self._lengths: dict[str, list[int]] = {}
        for text in self._texts:
            self._lengths.setdefault(text[:2], []).append(len(text))
        self._lengths = {start: sorted(set(lengths), reverse=True) for start, lengths in self._lengths.items()}
        self._firsts = {start[0] for start in self._lengths}
        # White space stays what it is: templates trim it. A special text of white space alone is not one of control.
        self.alphabet = frozenset(ch for text in self._texts for ch in text.strip())

    def spans(self, text: str) -> Iterator[Span]:
        """Every place in `text` where one begins, with the longest that does; they may overlap."""
        for first in self._firsts:
            at = text.find(first)
            while at >= 0:
                for length in (*self._lengths.get(text[at : at + 2], ()), 1):
                    if (found := text[at : at + length]) in self._texts:
                        yield at, at + len(found)
                        break
                at = text.find(first, at + 1)

    def found_in(self, text: str) -> set[str]:
        """Those that begin in `text`, at each place the longest."""
        return {text[start:end] for start, end in self.spans(text)}


def users_spans(rendered: str, contents: Contents, specials: SpecialTexts, render: Render) -> list[Span]:
    """The parts of `rendered` that must not be read as control tokens, in order and apart from each other.

    `rendered` is what `render` gives for the texts as they are.
    """
    spans = list(specials.spans(rendered))
    if not spans or not any(contents.texts):
        return []
    marked, suspects = _marked(rendered, contents, specials, render)
    found = []
    for start, end in spans:
        if rendered[start:end] in suspects:
            found.append((start, end))
            continue
        if marked[start:end] == rendered[start:end]:
            continue
        places = [at for at in range(start, end) if marked[at] != rendered[at]]
        found.append((places[0], places[-1] + 1))
    return _merged(found)


def _marked(rendered: str, contents: Contents, specials: SpecialTexts, render: Render) -> tuple[str, set[str]]:
    """`rendered` with stand-ins for what came from messages, and special texts that count as the user's anywhere."""
    found = {literal for literal in contents.literals if literal.strip() and any(literal in t for t in contents.texts)}
    special = {literal for literal in found if specials.found_in(literal)}
    trial = _Trial(rendered, contents, specials, render, _stand_ins(specials.alphabet, rendered, contents))
    return (
        trial.run(frozenset(), frozenset(), in_answers_only=True)
        or trial.run(found - special, frozenset(), in_answers_only=True)
        or trial.least(found - special, special, in_answers_only=True)
        or trial.least(found - special, special, in_answers_only=False)
        or (rendered, set().union(*(_found_in_any_case(specials, text) for text in contents.texts)))
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """Renderings with one choice of stand-ins."""

    rendered: str
    contents: Contents
    specials: SpecialTexts
    render: Render
    swap: Mapping[int, int]

    def run(
        self, plain: AbstractSet[str], special: AbstractSet[str], *, in_answers_only: bool
    ) -> tuple[str, set[str]] | None:
        """The text with stand-ins for all but some literals; None where the template makes something else of it.

        plain     left as they are in every message
        special   left as they are too, which are special texts or hold one
        Beside the text: what is left of special texts in messages, and so is not marked. Where the template reads one
        out of an answer (a tag that closes thinking, to cut it off), it is the template's from there on.
        """
        kept = [plain | special if is_answer or not in_answers_only else plain for is_answer in self.contents.answers]
        texts = [_swapped(text, keep, self.swap) for text, keep in zip(self.contents.texts, kept, strict=True)]
        marked = self.render(texts)
        back = {stand_in: code for code, stand_in in self.swap.items()}
        if marked is None or marked.translate(back) != self.rendered:
            return None
        read = set().union(*(self.specials.found_in(literal) for literal in special))
        left: set[str] = set()
        for text, is_answer in zip(texts, self.contents.answers, strict=True):
            left |= self.specials.found_in(text) - (read if is_answer else set())
        return marked, left

    def least(
        self, plain: AbstractSet[str], special: AbstractSet[str], *, in_answers_only: bool
    ) -> tuple[str, set[str]] | None:
        """The same with no more of `special` left as they are than is needed: those the template really looks for."""
        result = self.run(plain, special, in_answers_only=in_answers_only) if special else None
        for literal in sorted(special) if result else ():
            fewer = special - {literal}
            if better := self.run(plain, fewer, in_answers_only=in_answers_only):
                special, result = fewer, better
        return result


def _stand_ins(alphabet: Collection[str], rendered: str, contents: Contents) -> dict[int, int]:
    """A stand-in for each character of `alphabet`, and for its other case where it has one."""
    used = set(rendered).union(*contents.texts, *contents.literals)
    single = (code for code in _PRIVATE_USE if chr(code) not in used)
    pairs = ((ord(ch.lower()), ord(ch)) for ch in map(chr, itertools.chain(*_CAPITALS)) if not {ch, ch.lower()} & used)
    swap: dict[int, int] = {}
    for ch in sorted(alphabet):
        lower, upper = ch.lower(), ch.upper()
        # Not so for a few, as the German sharp s: its capital is two letters.
        has_cases = ch in (lower, upper) and lower != upper and (lower.upper(), upper.lower()) == (upper, lower)
        if ord(ch) in swap:
            continue
        if has_cases and len(lower) == len(upper) == 1 and (pair := next(pairs, None)):
            swap[ord(lower)], swap[ord(upper)] = pair
        elif stand_in := next(single, None):
            swap[ord(ch)] = stand_in
    return swap


def _swapped(text: str, kept: AbstractSet[str], swap: Mapping[int, int]) -> str:
    """`text` with stand-ins, but for the literals in `kept`."""
    if not kept:
        return text.translate(swap)
    # The longest first, so that "</think>" is kept whole where "</" is a literal too.
    pattern = "(" + "|".join(map(re.escape, sorted(kept, key=len, reverse=True))) + ")"
    parts = re.split(pattern, text)
    return "".join(part if number % 2 else part.translate(swap) for number, part in enumerate(parts))


def _found_in_any_case(specials: SpecialTexts, text: str) -> set[str]:
    return specials.found_in(text) | specials.found_in(text.lower()) | specials.found_in(text.upper())


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
