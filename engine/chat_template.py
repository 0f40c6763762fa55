"""From a conversation to a prompt: rendered by the model's template, control tokens told from user text.

The parts live in files of their own (template, template_presets, user_text); callers need this one only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmcli.base.errors import ModelError
from llmcli.base.records import dataclass
from llmcli.engine.reasoning import opening_tag_at_end
from llmcli.engine.template import NO_VARIABLES, ChatTemplate, Message, TemplateBrokenError, warm_up
from llmcli.engine.template_presets import FALLBACK, PRESETS, load_template
from llmcli.engine.user_text import Contents, SpecialTexts, users_spans

__all__ = [
    "FALLBACK",
    "PRESETS",
    "ChatTemplate",
    "Fragment",
    "Message",
    "RenderedPrompt",
    "fold_system",
    "load_template",
    "prepare",
    "warm_up",
]

# Ends of messages are looked for among the first and the last ones: each costs a rendering, and prefixes are reused
# at the end of the system prompt and of recent turns.
_FIRST_ENDS, _LAST_ENDS = 2, 14


@dataclass(frozen=True, slots=True)
class Fragment:
    """A stretch of a prompt that is tokenized in one go, with the texts of control tokens read as such or not."""

    text: str
    parse_special: bool


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as text, ready to be tokenized.

    fragments         in order; one alone unless a message holds the text of a control token
    messages          the messages as they were rendered
    message_ends      per message, the offset in `text` where its turn ends, so that the same conversation with more
                      or other messages after it has the same text up to there; None where that is not known
    system_merged     the template has no system role: the prompt stands in the first user message
    reasoning_opened  the text ends with the tag that opens thinking
    """

    fragments: tuple[Fragment, ...]
    messages: tuple[Message, ...]
    message_ends: tuple[int | None, ...]
    system_merged: bool
    reasoning_opened: bool

    @property
    def text(self) -> str:
        """The whole prompt."""
        return "".join(fragment.text for fragment in self.fragments)


def prepare(
    template: ChatTemplate,
    messages: Sequence[Message],
    special_texts: Collection[str],
    *,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] = NO_VARIABLES,
    last_ends: int = _LAST_ENDS,
) -> RenderedPrompt:
    """Render a conversation and tell the template's control tokens from the same texts inside messages.

    special_texts   what the tokenizer reads as control tokens when told to parse them. Tokens that it always reads
                    (llama.cpp's "user defined") do not belong here: nothing can keep them out of a message.
    last_ends       of how many messages at the end the end is looked for; each costs a rendering
    Raises ModelError as ChatTemplate.render does.
    """
    now = template.clock()  # one time for all renderings, which are compared with each other
    merged = bool(messages) and messages[0].role == "system" and not template.supports_system()
    turns = tuple(fold_system(messages) if merged else messages)

    def render(turns: Sequence[Message], *, generate: bool = add_generation_prompt) -> str:
        return template.render(turns, add_generation_prompt=generate, extra=extra, now=now)

    def with_contents(texts: Sequence[str]) -> str | None:
        return _if_accepted(render, [replace(turn, content=text) for turn, text in zip(turns, texts, strict=True)])

    text = render(turns)
    contents = Contents(
        [turn.content for turn in turns], [turn.role == "assistant" for turn in turns], template.literals()
    )
    spans = users_spans(text, contents, SpecialTexts(special_texts), with_contents)
    ends = _message_ends(text, turns, last_ends, lambda some: _if_accepted(render, some, generate=False))
    tag = opening_tag_at_end(text) if add_generation_prompt else None
    return RenderedPrompt(
        fragments=tuple(_fragments(text, spans)),
        messages=turns,
        message_ends=ends,
        system_merged=merged,
        reasoning_opened=tag is not None and tag >= (ends[-1] or 0 if ends else 0),
    )


def _if_accepted(render: Callable[..., str], messages: Sequence[Message], **options: bool) -> str | None:
    try:
        return render(messages, **options)
    except TemplateBrokenError:
        raise
    except ModelError:
        return None


def _fragments(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[Fragment]:
    done = 0
    for start, end in (*spans, (len(text), len(text))):
        if start > done:
            yield Fragment(text[done:start], parse_special=True)
        if end > start:
            yield Fragment(text[start:end], parse_special=False)
        done = end


def _message_ends(
    text: str, messages: Sequence[Message], last: int, render: Callable[[Sequence[Message]], str | None]
) -> tuple[int | None, ...]:
    """Where `text` and the text of the first messages alone part, for each message.

    A template that refuses a conversation that ends there (a system prompt alone) is given another next message in
    place of the real one: both texts then agree up to where the next message's own words begin.
    """
    ends: list[int | None] = []
    for count in range(1, len(messages) + 1):
        if _FIRST_ENDS < count <= len(messages) - last:
            ends.append(None)
            continue
        shorter = render(messages[:count])
        if shorter is None and count < len(messages):
            following = messages[count]
            other = "b" if following.content.strip()[:1] == "a" else "a"
            shorter = render([*messages[:count], replace(following, content=other)])
        end = 0 if shorter is None else _common_length(text, shorter)
        ends.append(end if end > max((known or 0 for known in ends), default=0) else None)
    return tuple(ends)


def _common_length(one: str, other: str) -> int:
    """How many characters the two have in common at their start, by halving: slices compare at memory speed."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """The leading system prompts moved into the first user message, a blank line between them."""
    rest = list(messages)
    prompts: list[str] = []
    while rest and rest[0].role == "system":
        prompts.append(rest.pop(0).content)
    first = next((at for at, message in enumerate(rest) if message.role == "user"), None)
    asked = [] if first is None else [rest.pop(first).content]
    if text := "\n\n".join(filter(None, prompts + asked)):
        rest.insert(first or 0, Message("user", text))
    return rest
