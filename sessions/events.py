"""The lines of a session file: one JSON object each, a header and then what happened, in order.

    {"llmcli_session": 1, "model": {…}, "template": …, "system": …, "created": …}
    {"type": "ask", "user": …}
    {"type": "turn", "user": …, "text": …, "kept_tokens": 812, "prompt_ids": [ … ], "completion_ids": [ … ], …}
    {"type": "undo", "turns": 1}   {"type": "clear"}   {"type": "system", "text": …}   {"type": "drop", …}
    {"type": "model", "model": {…}, "template": …}

Nothing is ever changed in a file: taking a turn back is one more line. A turn's prompt is written as its difference to
the turn before, because each prompt begins with all that was said: `kept_tokens` of that, then `prompt_ids`. A question
stands there from when it is asked (`ask`), so that it outlives a crash; its turn comes behind it. Reading is strict,
since a file can hold anything: whatever is not as it should be raises EventError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from llmcli.sessions.turns import History, Turn

VERSION = 1
_HEADER = "llmcli_session"
_MOST_ID = 1 << 31
_MOST_HELD_IDS = 1 << 25  # 256 MiB


class EventError(ValueError):
    """A line that is not what it should be; the text says what."""


class NewerVersionError(EventError):
    """A line of a later llmcli."""


@dataclass(frozen=True, slots=True)
class ModelNote:
    """Which model a conversation is with. content_id decides, name and path are for people and to find it again."""

    name: str
    content_id: str
    path: str


@dataclass(frozen=True, slots=True)
class Header:
    """The first line. template: (name, source) of the one that was asked for; None: the model's own."""

    model: ModelNote
    template: tuple[str, str] | None
    system: str | None
    created: str

    def as_line(self) -> bytes:
        """As it is written."""
        return _line({_HEADER: VERSION, **asdict(self)})

    @classmethod
    def from_line(cls, line: bytes) -> Header:
        """Raises EventError."""
        fields = _fields(line)
        version = fields.get(_HEADER)
        if not isinstance(version, int) or isinstance(version, bool):
            raise EventError("it is not a session file")
        if version > VERSION:
            raise NewerVersionError(f"it was written by a newer llmcli (format {version}, this one knows {VERSION})")
        return cls(_model(fields), _template(fields), _optional_text(fields, "system"), _text(fields, "created"))


def turn_line(turn: Turn, before: Turn | None) -> bytes:
    """A turn as it is written behind the turn `before`."""
    earlier: tuple[int, ...] = before.ids if before else ()
    kept = common_length(earlier, turn.prompt_ids)
    fields: dict[str, Any] = {"type": "turn", "user": turn.user, "text": turn.text}
    if turn.reasoning:
        fields["reasoning"] = turn.reasoning
    if turn.content != turn.text:
        fields["content"] = turn.content
    if noted := turn.words_sum if turn.noted_sum is None else turn.noted_sum:
        fields["words_sum"] = noted
    fields |= {
        "finish_reason": turn.finish_reason,
        "at": turn.at,
        "kept_tokens": kept,
        "prompt_ids": turn.prompt_ids[kept:],
        "completion_ids": turn.completion_ids,
    }
    return _line(fields)


def event_line(kind: str, **fields: Any) -> bytes:
    """Any other event: ask (user), undo (turns), clear, system (text), drop (start, end), model (model, template)."""
    return _line({"type": kind, **fields})


def model_line(model: ModelNote, template: tuple[str, str] | None) -> bytes:
    """From here on the conversation is with another model."""
    return event_line("model", model=asdict(model), template=template)


@dataclass(slots=True)
class Replay:
    """The state of a conversation while its lines are read.

    ids_known    False behind a damaged line: the next turn's ids count from one that is not there
    held_ids     at least as many ids as the turns hold
    asking       a question whose turn has not come yet
    """

    header: Header
    history: History
    ids_known: bool = True
    held_ids: int = 0
    asking: str | None = None

    @classmethod
    def of(cls, header: Header) -> Replay:
        """Before anything was said."""
        return cls(header, History(system=header.system))

    def apply(self, line: bytes) -> None:
        """One more line. Raises EventError, and then nothing has changed."""
        fields = _fields(line)
        kind = _text(fields, "type")
        if kind not in ("turn", "ask"):
            self.lose_question()
        if kind == "turn":
            self._turn(fields)
            self.asking = None
        elif kind == "ask":
            self._ask(_optional_text(fields, "user"))
        elif kind == "undo":
            self.history.undo(_count(fields, "turns"))
        elif kind == "clear":
            self.history.clear()
        elif kind == "system":
            self.history.system = _optional_text(fields, "text")
        elif kind == "drop":
            self._drop(_count(fields, "start"), _count(fields, "end"))
        elif kind == "model":
            self._change_model(_model(fields), _template(fields))
        else:
            raise NewerVersionError(f"it has a line of an unknown kind ({kind[:20]!r}), of a newer llmcli")

    def _ask(self, user: str | None) -> None:
        if user is not None:
            self.lose_question()
        self.asking = user

    def lose_question(self) -> None:
        """What was asked gets no answer any more: the process that asked has ended."""
        if self.asking is not None:
            self.history.unanswered, self.asking = self.asking, None

    def lose_ids(self) -> None:
        """A line was left out."""
        self.ids_known = False

    def _turn(self, fields: Mapping[str, Any]) -> None:
        text, kept = _text(fields, "text"), _count(fields, "kept_tokens")
        turn = Turn(
            user=_text(fields, "user"),
            text=text,
            reasoning=_text(fields, "reasoning", ""),
            content=_text(fields, "content", text),
            prompt_ids=(*self._kept(kept), *_ids(fields, "prompt_ids")),
            completion_ids=_ids(fields, "completion_ids"),
            finish_reason=_text(fields, "finish_reason"),
            system=self.history.system,
            hidden=self.history.hidden,
            at=_text(fields, "at"),
            noted_sum=_text(fields, "words_sum", ""),
        )
        self.ids_known = self.ids_known or not kept  # one that keeps nothing stands for itself
        self.history.add(turn if self.ids_known else turn.without_ids())
        self._bound_ids()

    def _bound_ids(self) -> None:
        """A short line can repeat a long prompt: the oldest turns lose their ids before memory is full of them."""
        turns = self.history.turns
        self.held_ids += len(turns[-1].ids) if turns else 0
        if self.held_ids <= _MOST_HELD_IDS:
            return
        self.held_ids = 0
        for at in reversed(range(len(turns))):
            count = len(turns[at].ids)
            if self.held_ids + count > _MOST_HELD_IDS // 2 and at < len(turns) - 1:
                turns[at] = turns[at].without_ids()
            else:
                self.held_ids += count

    def _kept(self, count: int) -> tuple[int, ...]:
        earlier = self.history.turns[-1].ids if self.history.turns else ()
        if count > len(earlier) and self.ids_known:
            raise EventError(f"it keeps {count} tokens of {len(earlier)}")
        return earlier[:count]

    def _drop(self, start: int, end: int) -> None:
        try:
            self.history.hide(start, end)
        except ValueError as error:
            raise EventError(str(error)) from None

    def _change_model(self, model: ModelNote, template: tuple[str, str] | None) -> None:
        self.header = replace(self.header, model=model, template=template)
        self.history.change_model()
        self.ids_known = True


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences share from their start."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _line(fields: Mapping[str, Any]) -> bytes:
    """Readable UTF-8; lone surrogates, which UTF-8 has no bytes for, make the line ASCII with escapes."""
    text = json.dumps(fields, ensure_ascii=False, separators=(", ", ": "))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(fields).encode() + b"\n"


def _fields(line: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise EventError("it is not a line of JSON") from None
    if not isinstance(fields, dict):
        raise EventError("it is not a JSON object")
    return fields


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise EventError(f"{name} is not a text")
    return value


def _optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    return None if fields.get(name) is None else _text(fields, name)


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise EventError(f"{name} is not a count")
    return value


def _ids(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < _MOST_ID for one in value):
        raise EventError(f"{name} is not a list of token ids")
    return tuple(value)


def _model(fields: Mapping[str, Any]) -> ModelNote:
    value = fields.get("model")
    if not isinstance(value, dict):
        raise EventError("model is not an object")
    return ModelNote(_text(value, "name"), _text(value, "content_id"), _text(value, "path"))


def _template(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    value = fields.get("template")
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(one, str) for one in value):
        raise EventError("template is not a name and a text")
    return value[0], value[1]
