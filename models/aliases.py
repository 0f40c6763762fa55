"""Short names in config.toml: [alias] is changed in place, and everything else in the file stays as the user wrote it.

tomlkit keeps comments, order and spelling. Whatever it makes is read again by the standard library's parser and has to
mean exactly what was there plus the change; else nothing is written. One process changes the file at a time.
"""

from __future__ import annotations

import codecs
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmcli.base.bounded_file import read_bounded
from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.files import atomic_write, file_lock, make_private_dir
from llmcli.base.settings import CONFIG_BYTES, Settings
from llmcli.base.text import printable
from llmcli.models.reference import looks_like_path, parse_hub

_SECTION = "alias"
_LOCK_NAME = "config.lock"
_NEW_FILE_MODE = 0o600
_MAX_NAME_CHARS = 100


def set_alias(name: str, reference: str, settings: Settings) -> None:
    """Let `name` stand for `reference`, in place of what it stood for.

    Raises UsageError for a name that could not be used or would lead back to itself, LlmcliError where the file
    cannot be changed.
    """
    _check_name(name)
    _check_reference(name, reference, settings)

    def change(table: Any) -> None:
        table[name] = reference

    _edit(settings, change)


def remove_alias(name: str, settings: Settings) -> None:
    """Forget a name. Raises LlmcliError where there is none, or the file cannot be changed."""
    if name not in settings.aliases:
        raise LlmcliError(f"there is no alias {printable(name)!r}", hint="llmcli alias ls")

    def change(table: Any) -> None:
        del table[name]

    _edit(settings, change)


def _check_name(name: str) -> None:
    if not name or name != name.strip() or printable(name) != name or len(name) > _MAX_NAME_CHARS:
        problem = "an alias is a short word without control characters"
    elif name.startswith("-") or looks_like_path(name) or "/" in name or parse_hub(name):
        problem = "it would be taken for an option, a file or a repository"
    elif ":" in name:
        problem = "a colon stands between a repository and its QUANT"
    else:
        return
    raise UsageError(f"{printable(name)!r} cannot be an alias: {problem}", hint="for example: tiny")


def _check_reference(name: str, reference: str, settings: Settings) -> None:
    if not reference.strip() or printable(reference) != reference:
        raise UsageError(f"{printable(reference)!r} is no reference to a model", hint="a file, or owner/repo:QUANT")
    seen, meant = {name}, reference
    while meant not in seen and meant in settings.aliases:
        seen.add(meant)
        meant = settings.aliases[meant]
    if meant in seen:
        raise UsageError(f"{printable(name)} would lead back to itself, by way of {printable(reference)}")


def _edit(settings: Settings, change: Callable[[Any], None]) -> None:
    """Make `change` to the [alias] table of the file as it is now, which another process may have changed."""
    make_private_dir(settings.state_dir)
    with file_lock(settings.state_dir / _LOCK_NAME):
        # Through a link to the file itself: dotfiles are often kept elsewhere.
        path = Path(os.path.realpath(settings.config_file))
        try:
            before, mark = _read(path)
            after, expected = _changed(before, change), _parsed(before)
            change(expected.setdefault(_SECTION, {}))
            is_right = _without_nothing(_parsed(after)) == _without_nothing(expected)
        except (ValueError, LookupError, TypeError, AttributeError):  # not TOML, or [alias] is something else
            is_right = False
        if not is_right:
            raise LlmcliError(
                f"{printable(str(path))} is written in a way that cannot be changed safely",
                hint="change [alias] in it by hand",
            )
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(path, mark + after.encode(), mode=_mode(path))


def _read(path: Path) -> tuple[str, bytes]:
    """(the text, the byte order mark in front of it, if there is one)."""
    try:
        data = read_bounded(path, CONFIG_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return "", b""
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    return data[len(mark) :].decode("utf-8"), mark


def _changed(text: str, change: Callable[[Any], None]) -> str:
    """Raises ValueError (tomlkit's errors are such) and what `change` raises."""
    import tomlkit

    document = tomlkit.parse(text)
    if _SECTION not in document:
        document[_SECTION] = tomlkit.table()
    change(document[_SECTION])
    table = document[_SECTION]
    if not table and not table.as_string().strip():  # not even a comment is left in it
        del document[_SECTION]
    made = tomlkit.dumps(document)
    return made if not made or made.endswith("\n") else made + "\n"  # which is lost where the last key goes


def _without_nothing(config: dict[str, Any]) -> dict[str, Any]:
    """The same without an empty [alias]: one that is not there says no less."""
    return {key: value for key, value in config.items() if key != _SECTION or value != {}}


def _parsed(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return _NEW_FILE_MODE
