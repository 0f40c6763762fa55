"""Thinking and answer told apart in the text of a reasoning model, while it streams.

Reads text only: the tags must be in it. Where they are control tokens (gpt-oss, Command A, Magistral), the caller
has to put the text of those tokens into the stream, though control tokens leave none otherwise; `visible_texts`
says which.

An opening tag counts at the start of the answer, at the start of a line, and after a closing tag; inside a sentence
it is text, so that an answer about the <think> tag is not hidden. White space in front of an opening tag that starts
the answer, and behind a closing tag, is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

Kind = Literal["text", "reasoning"]


class ReasoningTags(NamedTuple):
    """What opens a stretch of thinking and what closes it. No opening tag may be the beginning of another."""

    opening: str
    closing: str


TAGS: tuple[ReasoningTags, ...] = (
    ReasoningTags("<think>", "</think>"),  # DeepSeek, Qwen and most others
    ReasoningTags("<thinking>", "</thinking>"),
    ReasoningTags("<thought>", "</thought>"),
    ReasoningTags("<reasoning>", "</reasoning>"),
    ReasoningTags("<seed:think>", "</seed:think>"),  # Seed-OSS
    ReasoningTags("[THINK]", "[/THINK]"),  # Magistral, Ministral
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ReasoningTags("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss (the harmony format)
)
# What stands between thinking and answer, or in front of an answer without thinking, and belongs to neither.
HEADERS = ("<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>")


def opening_tag_at_end(prompt: str, tags: Sequence[ReasoningTags] = TAGS) -> int | None:
    """Where the thinking tag begins with which `prompt` ends (white space aside); None where there is none."""
    end = len(prompt.rstrip())
    for tag in tags:
        if prompt.endswith(tag.opening, 0, end):
            return end - len(tag.opening)
    return None


def visible_texts(special_texts: Iterable[str]) -> frozenset[str]:
    """Those of a vocabulary's special tokens whose text the splitter has to see: tags, and parts of tags."""
    marks = [*(mark for tag in TAGS for mark in tag), *HEADERS]
    # Shorter ones than "<x>" are no tags, but could be a part of one by accident.
    return frozenset(text for text in special_texts if len(text) > 2 and any(text in mark for mark in marks))


class ReasoningSplitter:
    """Feed the answer with `push`, and `finish` at its end; each gives (kind, text) pieces in order, none empty.

    opened    True where the prompt already ends with an opening tag: the answer begins with thinking, and any
              closing tag ends it
    headers   text dropped where an answer may begin: at the start and behind a closing tag
    """

    def __init__(
        self,
        tags: Sequence[ReasoningTags] = TAGS,
        *,
        opened: bool = False,
        headers: Sequence[str] = HEADERS,
    ) -> None:
        self._tags = tuple(tags)
        self._headers = tuple(headers)
        # The tags that would end the thinking we are in; () while we are in the answer.
        self._closings: tuple[str, ...] = tuple(dict.fromkeys(tag.closing for tag in self._tags)) if opened else ()
        self._buffer = ""
        self._place: Literal["start", "closed", "line", "inside"] = "start"

    def push(self, text: str) -> list[tuple[Kind, str]]:
        """The pieces that are certain now; what may be the beginning of a tag waits."""
        if self._place == "inside" and text and not (self._closings or self._buffer or "\n" in text):
            return [("text", text)]  # most tokens of most answers: nothing here can be a tag, or come before one
        self._buffer += text
        return _joined(self._pieces(final=False))

    def finish(self) -> list[tuple[Kind, str]]:
        """The rest: thinking that was not closed stays thinking."""
        return _joined(self._pieces(final=True))

    def _pieces(self, *, final: bool) -> Iterator[tuple[Kind, str]]:
        while self._buffer:
            before = self._buffer
            yield from self._thinking(final=final) if self._closings else self._text(final=final)
            if self._buffer == before:
                return

    def _thinking(self, *, final: bool) -> Iterator[tuple[Kind, str]]:
        found = [(at, closing) for closing in self._closings if (at := self._buffer.find(closing)) >= 0]
        if found:
            at, closing = min(found)
            yield "reasoning", self._take(at)
            self._take(len(closing))
            self._closings = ()
            self._place = "closed"
            return
        yield "reasoning", self._take(len(self._buffer) - (0 if final else _begun(self._buffer, self._closings)))

    def _text(self, *, final: bool) -> Iterator[tuple[Kind, str]]:
        if self._place == "closed" and self._buffer[0].isspace():
            self._buffer = self._buffer.lstrip()
        elif self._place == "inside" or not self._at_tag(final=final):
            yield from self._line()

    def _at_tag(self, *, final: bool) -> bool:
        """Step over an opening tag or a header that stands here; True where one did or it is too early to say."""
        at_start = self._place == "start"
        rest = self._buffer.lstrip() if at_start else self._buffer.lstrip(" \t")
        headers = () if self._place == "line" else self._headers
        for tag in self._tags:
            if rest.startswith(tag.opening):
                self._buffer = rest[len(tag.opening) :]
                self._closings = (tag.closing,)
                return True
        for header in headers:
            if rest.startswith(header):
                self._buffer = rest[len(header) :]
                return True
        if final:
            return False
        candidates = (*(tag.opening for tag in self._tags), *headers)
        return any(candidate.startswith(rest) for candidate in candidates) if rest else at_start

    def _line(self) -> Iterator[tuple[Kind, str]]:
        """Text up to and with the next line break, else all there is."""
        at = self._buffer.find("\n")
        piece = self._take(len(self._buffer) if at < 0 else at + 1)
        blank = not piece.strip(" \t") and self._place == "line"
        self._place = "line" if at >= 0 or blank else "inside"
        yield "text", piece

    def _take(self, length: int) -> str:
        piece, self._buffer = self._buffer[:length], self._buffer[length:]
        return piece


def _begun(buffer: str, tags: Iterable[str]) -> int:
    """How many characters at the end of `buffer` are the beginning of one of `tags`."""
    return max((_overlap(buffer, tag) for tag in tags), default=0)


def _overlap(buffer: str, tag: str) -> int:
    return next((n for n in range(min(len(tag) - 1, len(buffer)), 0, -1) if buffer.endswith(tag[:n])), 0)


def _joined(pieces: Iterable[tuple[Kind, str]]) -> list[tuple[Kind, str]]:
    """Neighbours of one kind as one piece, without empty ones."""
    joined: list[tuple[Kind, str]] = []
    for kind, text in pieces:
        if text and joined and joined[-1][0] == kind:
            joined[-1] = (kind, joined[-1][1] + text)
        elif text:
            joined.append((kind, text))
    return joined
