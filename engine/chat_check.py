"""Whether the token ids of a conversation still are those of its words.

A session is a file that a person can read, and so edit: the model is to be given the words that stand there. Turns have
a checksum of the words that their ids were made of; those of earlier versions have none, and are compared with the
text of their ids.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from llmcli.engine.account import visible_tokens
from llmcli.engine.reasoning import ReasoningSplitter, opening_tag_at_end
from llmcli.engine.tokenizer import Tokenizer
from llmcli.sessions.turns import History, Turn


def ids_trouble(history: History, tokenizer: Tokenizer) -> str | None:
    """Why the ids cannot be used, None where they can. Answers that were edited are put right on the way.

    Answers that were edited where they are shown alone, beside their form for the template, lose that other form.
    """
    history.turns[:] = [_mended(turn) for turn in history.turns]
    if history.has_ids_from(tokenizer.n_vocab):  # llama.cpp would refuse every turn
        return "token ids that this model lacks"
    before: tuple[int, ...] = ()
    for turn in history.turns:
        if turn.prompt_ids and not _fits(turn, before, tokenizer):
            return "words that its token ids do not fit (edited by hand?)"
        before = turn.ids
    return None


def _mended(turn: Turn) -> Turn:
    if turn.noted_sum in (None, turn.words_sum) or turn.content == turn.text:
        return turn
    return turn if _same(_without_thinking(turn.content), turn.text) else replace(turn, content=turn.text)


def _without_thinking(content: str) -> str:
    splitter = ReasoningSplitter()
    return "".join(text for kind, text in [*splitter.push(content), *splitter.finish()] if kind == "text")


def _same(one: str, other: str) -> bool:
    """White space aside, of which a stream may drop some."""
    return one.split() == other.split()


def _fits(turn: Turn, before: Sequence[int], tokenizer: Tokenizer) -> bool:
    if turn.noted_sum != "":
        return turn.noted_sum in (None, turn.words_sum)
    answer = _text(turn.completion_ids, tokenizer, visible_tokens(tokenizer))
    opening = turn.content.removesuffix(answer)
    if not turn.content.endswith(answer) or (opening and opening_tag_at_end(opening) != 0):
        return False
    # What is new in this prompt has the question; a template may have trimmed it, a tokenizer changed its spelling.
    new = turn.prompt_ids[len(before) :] if turn.prompt_ids[: len(before)] == tuple(before) else turn.prompt_ids
    return _is_in(turn.user, new, tokenizer) and _is_in(turn.system or "", turn.prompt_ids, tokenizer)


def _is_in(words: str, ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    given = _text(ids, tokenizer)
    if words.strip() in given:
        return True
    return _text(tokenizer.tokenize(words.strip(), parse_special=False), tokenizer).strip() in given


def _text(ids: Sequence[int], tokenizer: Tokenizer, visible: Collection[int] = ()) -> str:
    return b"".join(tokenizer.piece(one, special=one in visible) for one in ids).decode("utf-8", "replace")
