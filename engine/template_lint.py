"""What a chat template can do and where it would surprise: found out by rendering it, within its limits.

Nothing is read off the text alone that can be tried. Each finding is a fact by name, and what deserves a warning is
a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from llmcli.base.errors import ModelError
from llmcli.base.records import dataclass
from llmcli.engine.reasoning import TAGS, opening_tag_at_end
from llmcli.engine.template import ChatTemplate, Message, TemplateBrokenError

_SYSTEM, _ASKED, _ANSWERED, _AGAIN = "lint-system-4c1d", "lint-user-4c1d", "lint-answer-4c1d", "lint-again-4c1d"
_TOOL = {
    "type": "function",
    "function": {
        "name": "lint_tool_4c1d",
        "description": "looks something up",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
# Two moments that differ in everything a template could print.
_DAYS = (datetime(2001, 2, 3, 4, 5, 6, tzinfo=timezone.utc), datetime(2032, 11, 28, 17, 48, 59, tzinfo=timezone.utc))
# What a template writes about thinking; gpt-oss puts its tags together from pieces, one of which many others have.
_THINKING_MARKS = {"<|channel|>analysis", *(mark for tag in TAGS for mark in tag if mark != "<|end|>")}
_TIME_S = 1.0
_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True)
class TemplateLint:
    """The findings.

    error             why it cannot be used; all else is False then
    system_role       a system prompt reaches the text; else llmcli puts it into the first user message
    needs_alternation two messages of one role after another are refused
    generation_prompt a prompt ends with what stands before an answer in a conversation
    thinking          it knows a tag for thinking; `thinking_switch` is the variable that turns it on or off
    thinking_opened   the prompt ends with the opening tag
    tools             a list of tools reaches the text
    adds_bos          it writes the BOS token itself
    uses_date         it prints the time: what was stored of a prompt is of no use on another day
    """

    error: str | None = None
    system_role: bool = False
    needs_alternation: bool = False
    generation_prompt: bool = False
    thinking: bool = False
    thinking_switch: str | None = None
    thinking_opened: bool = False
    tools: bool = False
    adds_bos: bool = False
    uses_date: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know before relying on it."""
        if self.error:
            return (self.error,)
        found = []
        if not self.system_role:
            found.append("no system role: a system prompt is put into the first user message")
        if not self.generation_prompt:
            found.append("a prompt does not end as one before an answer does: the model may go on with the user's turn")
        if self.uses_date:
            found.append("it prints the date or time, so prompts change and stored prefixes stop matching")
        return tuple(found)


def lint_template(source: str, *, bos_text: str = "", eos_text: str = "") -> TemplateLint:
    """Try the template out. Never raises for what it does, and stops at the first limit that it goes over."""
    template = ChatTemplate(source, bos_text=bos_text, eos_text=eos_text, name="the model's own", time_s=_TIME_S)
    try:
        return _findings(template, bos_text)
    except ModelError as error:
        return TemplateLint(error=error.message)


def _findings(template: ChatTemplate, bos_text: str) -> TemplateLint:
    source = template.source
    user, answer, again = Message("user", _ASKED), Message("assistant", _ANSWERED), Message("user", _AGAIN)
    opened = template.render([user], now=_DAYS[0])
    if _ASKED not in opened:
        return TemplateLint(error="the chat template drops what the user says")
    whole = _tried(template, [user, answer, again])
    if whole is None or any(word not in whole for word in (_ASKED, _ANSWERED, _AGAIN)):
        return TemplateLint(error="the chat template fails on a conversation of three messages")
    switch = next((name for name in _SWITCHES if _switches(template, user, name)), None)
    return TemplateLint(
        system_role=template.supports_system(),
        needs_alternation=_tried(template, [user, again]) is None,
        generation_prompt=opened.startswith(whole[: whole.index(_ANSWERED)].rstrip()),
        thinking=switch is not None or any(mark in source for mark in _THINKING_MARKS),
        thinking_switch=switch,
        thinking_opened=opening_tag_at_end(opened) is not None,
        tools=_tools_reach(template, user),
        adds_bos=bool(bos_text) and opened.startswith(bos_text),
        uses_date=_tried(template, [user], now=_DAYS[1]) != opened,
    )


def _tried(template: ChatTemplate, messages: Sequence[Message], **options: Any) -> str | None:
    """The text, None where the template refuses the messages."""
    try:
        return template.render(messages, **{"now": _DAYS[0], **options})
    except TemplateBrokenError:
        raise
    except ModelError:
        return None


def _switches(template: ChatTemplate, user: Message, name: str) -> bool:
    """Whether the variable changes the prompt."""
    if name not in template.source:
        return False
    on, off = (_tried(template, [user], extra={name: value}) for value in (True, False))
    return on != off


def _tools_reach(template: ChatTemplate, user: Message) -> bool:
    if "tools" not in template.source:
        return False
    name = str(_TOOL["function"]["name"])  # type: ignore[index]
    system = Message("system", _SYSTEM)
    texts = (_tried(template, turns, extra={"tools": [_TOOL]}) for turns in ([user], [system, user]))
    return any(name in (text or "") for text in texts)
