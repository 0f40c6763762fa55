"""What a session may be called. The name is the file's name, so that people find it; what could be more is refused."""

from __future__ import annotations

import re
from collections.abc import Container
from datetime import datetime

from llmcli.base.errors import UsageError
from llmcli.base.text import printable

_MOST_BYTES = 100
_DATED = re.compile(r"\d{4}-\d\d-\d\d-\d{4}(-\d+)?")
_FORBIDDEN = set('/\\:*?"<>|')  # paths, and what file systems of other machines refuse


def check_name(name: str) -> str:
    """`name`, if it is one. Raises UsageError."""
    if trouble := _trouble(name):
        raise UsageError(f"{printable(name)[:_MOST_BYTES]!r} is no name for a session: {trouble}")
    return name


def _trouble(name: str) -> str | None:
    if not name.strip():
        return "it is empty"
    if printable(name) != name or not name.isprintable():
        return "it has control characters"
    if len(name.encode()) > _MOST_BYTES:
        return f"it has more than {_MOST_BYTES} bytes"
    if bad := sorted(_FORBIDDEN & set(name)):
        return f"it has a {bad[0]}"
    if name[0] in ".-" or name != name.strip() or name.endswith("."):
        return "it begins with a dot, a dash or a space, or ends with a dot or a space"
    return None


def is_dated(name: str) -> bool:
    """Whether it looks like a `dated_name`, which nobody chose."""
    return _DATED.fullmatch(name) is not None


def dated_name(taken: Container[str], now: datetime) -> str:
    """A name for a conversation that nobody named: when it began."""
    first = now.strftime("%Y-%m-%d-%H%M")
    name, number = first, 2
    while name in taken:
        name, number = f"{first}-{number}", number + 1
    return name
