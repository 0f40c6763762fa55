"""How saved conversations are put into words and objects; the same in `llmcli sessions` and in a chat."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from llmcli.base.text import printable
from llmcli.base.units import format_age, format_bytes
from llmcli.cli.table import table_lines
from llmcli.sessions.library import SessionInfo

_HEAD = ("NAME", "TURNS", "TOKENS", "USED", "BYTES", "MODEL", "BEGINS WITH")
_NUMBERS = range(1, 5)
_LESS_NEEDED = tuple(
    _HEAD.index(name) for name in ("BYTES", "TOKENS", "MODEL", "TURNS", "USED")
)  # the first goes first


def info_json(info: SessionInfo, now_s: float) -> dict[str, Any]:
    """A session as an object."""
    return {
        "name": info.name,
        "path": str(info.path),
        "model": {"name": info.model or None, "content_id": info.content_id or None},
        "turns": info.turns,
        "tokens": info.tokens,
        "file_bytes": info.file_bytes,
        "created": info.created or None,
        "unused_s": max(0.0, now_s - info.used_s),
        "title": info.title,
        "trouble": info.trouble,
    }


def info_lines(infos: Sequence[SessionInfo], columns: int | None) -> list[str]:
    """A table of sessions that fits `columns`, where there is such an edge."""
    now_s = time.time()
    rows = [_HEAD]
    for info in infos:
        begins = f"({info.trouble})" if info.trouble else info.title
        counts = (f"{info.turns:,}", f"{info.tokens:,}", format_age(now_s - info.used_s), format_bytes(info.file_bytes))
        rows.append((printable(info.name), *counts, printable(info.model), printable(begins)))
    return table_lines(rows, right=_NUMBERS, columns=columns, less_needed=_LESS_NEEDED)
