"""A conversation as the tokens of its next prompt, such that what was decoded before stays as it was decoded.

Text tokenized again is not always the tokens it came from: a model may write "un" + "likely" where the tokenizer says
"unlikely". So the rendered text is compared with the texts of earlier prompts and answers, whose tokens are kept, the
latest first; the first that it begins with gives its tokens, and only what follows is tokenized. That is nearly
always the whole conversation so far. A template that leaves out earlier thinking, or trims an answer, parts from the
last answer on; after turns were left out, the text parts behind those that stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmcli.base.errors import ModelError, UsageError
from llmcli.engine.chat_template import ChatTemplate, Message, RenderedPrompt, fold_system, prepare
from llmcli.engine.reasoning import opening_tag_at_end
from llmcli.engine.tokenizer import Tokenizer
from llmcli.sessions.turns import NOTHING_HIDDEN, History, Turn


@dataclass(frozen=True, slots=True)
class Laid:
    """The next prompt.

    opening        the end of `text` that belongs to the answer already: the tag that opens thinking
    stable_tokens  how many tokens come before it: the next prompt may part there, and hardly earlier
    taken_tokens   how many first tokens were taken over from an earlier turn, and not tokenized again
    earlier        the tokens of the turn before, where they are known; ids[:taken_tokens] is their beginning, or not
    system_tokens  where the system prompt ends, 0 where there is none
    """

    ids: tuple[int, ...]
    text: str
    opening: str
    stable_tokens: int
    reasoning_opened: bool
    system_merged: bool
    taken_tokens: int
    earlier: tuple[int, ...]
    system_tokens: int

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Where other conversations are likely to part from this one."""
        return (self.system_tokens,) if self.system_tokens else ()


class ChatLayout:
    """Renders with one template and tokenizes with one vocabulary; remembers the texts of prompts."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template, self._tokenizer = template, tokenizer
        self._texts: dict[tuple[int, ...], str] = {}  # of the last prompts, by their ids

    def lay_out(self, history: History, user: str, *, hidden: tuple[int, int] | None = None) -> Laid:
        """The prompt that asks `user` behind `history`. Raises ModelError where the template refuses it.

        hidden   turns to leave out, where they are not those of the history
        """
        start, end = history.hidden if hidden is None else hidden
        turns = [*history.turns[:start], *history.turns[end:]]
        rendered = self._prepare(history.system, turns, user)
        known, base = next(self._beginnings(rendered.text, history, start, end), ("", ()))
        fragments = _behind(rendered, len(known))
        if base:
            ids = (*base, *self._tokenizer.tokenize_behind(fragments))
        else:
            ids = tuple(self._tokenizer.with_bos(self._tokenizer.tokenize_fragments(fragments)))
        if not ids:
            raise UsageError("the prompt has no tokens: the chat template gives none")
        opening = _opening(rendered.text) if rendered.reasoning_opened else ""
        return Laid(
            ids=ids,
            text=rendered.text,
            opening=opening,
            stable_tokens=len(self._without_opening(ids, opening)),
            reasoning_opened=rendered.reasoning_opened,
            system_merged=rendered.system_merged,
            taken_tokens=len(base),
            earlier=turns[-1].ids if turns else (),
            system_tokens=self._system_tokens(history.system, rendered, ids),
        )

    def remember(self, laid: Laid) -> None:
        """Keep the text of a prompt that is asked, for the next one."""
        self._texts = {laid.ids: laid.text}

    def _prepare(self, system: str | None, turns: Sequence[Turn], user: str) -> RenderedPrompt:
        return prepare(self.template, _messages(system, turns, user), self._tokenizer.control_texts, last_ends=1)

    def _beginnings(self, text: str, history: History, start: int, end: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Known beginnings of `text` with their tokens, the longest first: up to an answer's end, or to its start."""
        gap = (start, end) if start < end else NOTHING_HIDDEN
        for position in (*range(len(history.turns) - 1, end - 1, -1), *range(min(start, end) - 1, -1, -1)):
            turn = history.turns[position]
            if not turn.prompt_ids or (position >= end and turn.hidden != gap):
                continue  # its prompt had other turns before it
            try:
                asked = self.asked_text(history, position)
            except ModelError:  # one that was accepted before: another version of the template
                continue
            opening = _opening(asked)
            whole, before = asked + turn.content.removeprefix(opening), asked.removesuffix(opening)
            if text.startswith(whole):
                yield whole, turn.ids
            elif text.startswith(asked):
                yield asked, turn.prompt_ids
            elif text.startswith(before):
                yield before, self._without_opening(turn.prompt_ids, opening)

    def _without_opening(self, ids: tuple[int, ...], opening: str) -> tuple[int, ...]:
        """A prompt's tokens up to the tag that opens thinking; () where it is not made of tokens of its own."""
        if not opening:
            return ids
        tail = tuple(self._tokenizer.tokenize_behind([(opening, True)]))
        return ids[: -len(tail)] if tail and ids[-len(tail) :] == tail else ()

    def asked_text(self, history: History, position: int) -> str:
        """The text of the prompt of an earlier turn. Raises ModelError where the template refuses it now."""
        turn = history.turns[position]
        if (known := self._texts.get(turn.prompt_ids)) is not None:
            return known
        messages: Sequence[Message] = _messages(turn.system, history.before(position), turn.user)
        if turn.system is not None and not self.template.supports_system():
            messages = fold_system(messages)
        return self.template.render(messages)

    def _system_tokens(self, system: str | None, rendered: RenderedPrompt, ids: Sequence[int]) -> int:
        """How many tokens lie wholly before the end of the system prompt; 0 where that is not known."""
        end = rendered.message_ends[0] if system is not None and not rendered.system_merged else None
        if not end:
            return 0
        wanted = len(rendered.text[:end].encode("utf-8", "surrogatepass"))
        nbytes, position = 0, 1 if self._bos_is_added(rendered.text, ids) else 0
        while position < len(ids):
            nbytes += len(self._tokenizer.piece(ids[position], special=True))
            if nbytes > wanted:
                break
            position += 1
        return position

    def _bos_is_added(self, text: str, ids: Sequence[int]) -> bool:
        return self._tokenizer.adds_bos and not text.startswith(self._tokenizer.text_of(ids[0]))


def _messages(system: str | None, turns: Sequence[Turn], user: str) -> list[Message]:
    messages = [] if system is None else [Message("system", system)]
    for turn in turns:
        messages += [Message("user", turn.user), Message("assistant", turn.content)]
    return [*messages, Message("user", user)]


def _opening(asked: str) -> str:
    """The end of a prompt that belongs to the answer already: the tag that opens thinking; "" where there is none."""
    tag = opening_tag_at_end(asked)
    return "" if tag is None else asked[tag:]


def _behind(rendered: RenderedPrompt, start: int) -> list[tuple[str, bool]]:
    """The fragments from character `start` on."""
    found, position = [], 0
    for fragment in rendered.fragments:
        text = fragment.text[max(0, start - position) :]
        position += len(fragment.text)
        if text:
            found.append((text, fragment.parse_special))
    return found


def aligned(ids: Sequence[int], text: str, pieces: Sequence[bytes], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The first of `ids` that are wholly in `text`, and the tokens of what is left of it.

    They are not all of them where a stop string ended the answer inside a token or before the last ones.
    """
    data, done, count = text.encode("utf-8", "surrogatepass"), 0, 0
    for piece in pieces:
        if not data.startswith(piece, done):
            break
        done, count = done + len(piece), count + 1
    rest = data[done:].decode("utf-8", "replace")
    return (*ids[:count], *(tokenizer.tokenize_behind([(rest, False)]) if rest else ()))
