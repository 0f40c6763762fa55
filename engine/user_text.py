"""Where a user's text stands in a rendered prompt, so that none of it becomes a control token.

A template mixes its own text, in which "<|im_end|>" ends a turn, with messages, in which it is ten characters that
somebody wrote. Rendering loses the difference. It is found again by rendering once more with stand-ins: every
character of the messages that occurs in a special token's text is swapped for a private-use character that occurs
nowhere else. Where the second text, swapped back, equals the first, its stand-ins mark what came from the messages,
also where a special text only forms across the join of message and template.

A template that looks into a message (upper, split at "</think>") does something else when the text is swapped. Then
less is swapped, in steps, until both texts agree again. If they never do, every special text that occurs in a message
counts as the user's wherever it stands: a broken prompt, but no forged one.

Knows strings and a function that renders; knows nothing of Jinja and tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

# The prompt for these contents; None where the template refuses them, which is one more way to do something else.
Render = Callable[[Sequence[str]], str | None]
Span = tuple[int, int]

# Planes 15 and 16, which belong to nobody.
_PRIVATE_USE = range(0xF0000, 0x10FFFE)


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
                    if text[at : at + length] in self._texts:
                        yield at, at + length
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
    caseless = frozenset(ch for ch in specials.alphabet if ch.lower() == ch.upper())
    # Letters last: a template that changes their case does not change a stand-in's.
    for alphabet in (specials.alphabet, caseless):
        swap = _stand_ins(alphabet, rendered, contents)
        back = {stand_in: code for code, stand_in in swap.items()}
        for kept in _literals_kept(contents, specials):
            texts = [_swapped(text, keep, swap) for text, keep in zip(contents.texts, kept, strict=True)]
            marked = render(texts)
            if marked is not None and marked.translate(back) == rendered:
                return marked, _leaks(contents, texts, specials, render, swap)
    return rendered, set().union(*(_found_in_any_case(specials, text) for text in contents.texts))


def _stand_ins(alphabet: Collection[str], rendered: str, contents: Contents) -> dict[int, int]:
    used = set(rendered).union(*contents.texts, *contents.literals)
    free = (code for code in _PRIVATE_USE if chr(code) not in used)
    return dict(zip(map(ord, sorted(alphabet)), free, strict=False))


def _literals_kept(contents: Contents, specials: SpecialTexts) -> Iterator[list[frozenset[str]]]:
    """What is not swapped in each message, in steps: nothing; the template's literals; those that are special too,
    in the assistant's messages; in all messages.
    """
    texts = contents.texts
    literals = frozenset(
        literal for literal in contents.literals if literal.strip() and any(literal in text for text in texts)
    )
    plain = frozenset(literal for literal in literals if not specials.found_in(literal))
    steps: list[list[frozenset[str]]] = [
        [frozenset()] * len(texts),
        [plain] * len(texts),
        [literals if is_answer else plain for is_answer in contents.answers],
        [literals] * len(texts),
    ]
    for number, step in enumerate(steps):
        if step not in steps[:number]:
            yield step


def _swapped(text: str, kept: Collection[str], swap: dict[int, int]) -> str:
    if not kept:
        return text.translate(swap)
    parts = _literal_pattern(kept).split(text)
    return "".join(part if number % 2 else part.translate(swap) for number, part in enumerate(parts))


def _leaks(
    contents: Contents, swapped: Sequence[str], specials: SpecialTexts, render: Render, swap: dict[int, int]
) -> set[str]:
    """Special texts that were left as they are in messages, and that the template prints from there.

    Where it only looks for them (to cut thinking out), they are gone from the text, and what stands there is its own.
    """
    left = [specials.found_in(text) for text in swapped]
    if not any(left):
        return set()
    texts = [_exchanged(text, found, swap) for text, found in zip(contents.texts, left, strict=True)]
    rendered = render(texts)
    if rendered is not None and not any(chr(stand_in) in rendered for stand_in in swap.values()):
        return set()
    return set().union(*left)


def _exchanged(text: str, wanted: Collection[str], swap: dict[int, int]) -> str:
    """`text` with stand-ins in the places of `wanted` alone."""
    return _literal_pattern(wanted).sub(lambda found: found[0].translate(swap), text) if wanted else text


def _literal_pattern(literals: Collection[str]) -> re.Pattern[str]:
    # The longest first, so that "</think>" is kept whole where "</" is a literal too.
    return re.compile("(" + "|".join(map(re.escape, sorted(literals, key=len, reverse=True))) + ")")


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
