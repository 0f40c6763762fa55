"""A conversation in other clothes: Markdown for people, JSON for programs, and back from what was exported.

Words only: token ids stay in the session's own file.
"""

from __future__ import annotations

import json
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.sessions.events import Header
from llmcli.sessions.file import session_bytes, turn_json
from llmcli.sessions.turns import History, Turn

_EXPORT_VERSION = 1


def as_markdown(name: str, header: Header, history: History) -> str:
    """One document: a heading per message; thinking is folded away."""
    pieces = [f"# {name}", f"Model: {header.model.name}  \nBegun: {header.created}"]
    if history.system is not None:
        pieces += ["## System", history.system]
    for turn in history.turns:
        pieces += ["## You", turn.user, "## Assistant"]
        if turn.reasoning.strip():
            pieces.append(f"<details><summary>Thinking</summary>\n\n{turn.reasoning.strip()}\n\n</details>")
        pieces.append(turn.text.strip("\n") + _ending(turn))
    return "\n\n".join(pieces) + "\n"


def _ending(turn: Turn) -> str:
    return "" if turn.finish_reason == "stop" else f"\n\n*({turn.finish_reason})*"


def as_json(name: str, header: Header, history: History) -> dict[str, Any]:
    """One object; `messages` is what other programs take."""
    system = [] if history.system is None else [{"role": "system", "content": history.system}]
    return {
        "llmcli_export": _EXPORT_VERSION,
        "name": name,
        "model": {"name": header.model.name, "content_id": header.model.content_id, "path": header.model.path},
        "created": header.created,
        "system": history.system,
        "dropped_turns": history.dropped,
        "turns": [turn_json(turn) for turn in history.turns],
        "messages": [
            *system,
            *(
                message
                for turn in history.turns
                for message in ({"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.text})
            ),
        ],
    }


def exported(suffix: str, name: str, header: Header, history: History) -> bytes:
    """A conversation in the format of a file's suffix: .md, .json, else a session file."""
    if suffix == ".md":
        return as_markdown(name, header, history).encode("utf-8", "backslashreplace")
    if suffix == ".json":
        return json.dumps(as_json(name, header, history), indent=2).encode() + b"\n"
    return session_bytes(header, history)


def from_json(text: str) -> History:
    """The words of an exported conversation, or of a list of messages. Raises LlmcliError where it is neither."""
    try:
        value = json.loads(text)
        messages = value["messages"] if isinstance(value, dict) else value
        said = [(str(one["role"]), _content(one["content"])) for one in messages]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise LlmcliError("it is not an exported conversation: JSON with messages of role and content") from None
    history, asked = History(), list[str]()
    for role, content in said:
        if role in ("system", "developer"):
            history.system = content if history.system is None else f"{history.system}\n\n{content}"
        elif role == "user":
            asked.append(content)
        elif role == "assistant" and asked:
            history.add(Turn("\n\n".join(asked), text=content, content=content, system=history.system))
            asked.clear()
    if asked:  # a question without an answer
        history.add(Turn("\n\n".join(asked), finish_reason="interrupted"))
    return history


def _content(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
