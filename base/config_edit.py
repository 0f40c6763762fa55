"""Changing one table of config.toml and nothing else: comments, order and spaces of the rest stay as they are.

The new text is parsed before it is written, and must differ from the old one in that table alone; a file that is
written in a way this module does not see through is left alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmcli.base.bounded_file import read_bounded
from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.files import atomic_write, make_private_dir
from llmcli.base.settings import CONFIG_BYTES
from llmcli.base.text import printable

_HEADER = re.compile(r"^\s*\[")
_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
Value = str | int | float | bool


def set_table(path: Path, section: str, name: str, values: Mapping[str, Value]) -> None:
    """Make `[section.name]` of the file exactly `values`; the file is made where there is none.

    Raises LlmcliError where it cannot be written, UsageError where it cannot be changed safely.
    """
    try:
        old = read_bounded(path, CONFIG_BYTES).decode("utf-8-sig") if path.exists() else ""
        new = with_table(old, section, name, values)
        if not _differs_there_alone(old, new, section, name, values):
            raise UsageError(
                f"{printable(str(path))} cannot be changed safely", hint=f"write [{section}.{name}] into it by hand"
            )
        make_private_dir(path.parent)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        atomic_write(path.resolve(), new.encode("utf-8"), mode=mode)
    except OSError as error:
        raise LlmcliError(f"cannot write {printable(str(path))}: {error.strerror}") from None


def with_table(text: str, section: str, name: str, values: Mapping[str, Value]) -> str:
    """The text with that table in place of the one it has, else at its end."""
    header = f"[{section}.{name}]"
    table = [header, *(f"{key} = {_literal(value)}" for key, value in values.items())]
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.strip() == header), None)
    if start is None:
        gap = [""] if lines and lines[-1].strip() else []
        return "\n".join([*lines, *gap, *table]) + "\n"
    end = next((i for i in range(start + 1, len(lines)) if _HEADER.match(lines[i])), len(lines))
    gap = [""] if end < len(lines) else []
    return "\n".join([*lines[:start], *table, *gap, *lines[end:]]) + "\n"


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    # A basic string of TOML; control characters cannot stand in it as they are.
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(ch if ch.isprintable() else f"\\U{ord(ch):08x}" for ch in escaped) + '"'


def _differs_there_alone(old: str, new: str, section: str, name: str, values: Mapping[str, Value]) -> bool:
    if not _KEY.match(section) or not _KEY.match(name):
        return False
    try:
        before, after = _parse(old), _parse(new)
    except ValueError:
        return False
    for found in (before, after):
        tables = found.get(section, {})
        if not isinstance(tables, dict):
            return False
    changed = after.get(section, {}).pop(name, None)
    before.get(section, {}).pop(name, None)
    for found in (before, after):
        if found.get(section) == {}:
            del found[section]
    return changed == dict(values) and before == after


def _parse(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
