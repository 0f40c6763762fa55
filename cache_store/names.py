"""Names and pins: small files of their own, so that they outlive the index.

A name stands for a chain up to one block. Pinned blocks are never evicted, and neither is anything before them,
because only the ends of chains are. A pin without a name is stored under the block's key.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict
from pathlib import Path

from llmcli.base.errors import UsageError
from llmcli.base.records import dataclass
from llmcli.cache_store.block_file import read_small, remove, replace_file
from llmcli.cache_store.keys import KEY_BYTES, Key
from llmcli.cache_store.layout import TEMP_PREFIX, Layout
from llmcli.cache_store.writers import Writer

MAX_NAME_BYTES = 100
_MAX_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Name:
    """A name (or a bare pin), the block it stands for, and when it was given."""

    name: str
    key: Key
    parent: Key
    pinned: bool
    created_s: float


class Names:
    """The names of one store."""

    def __init__(self, layout: Layout, writer: Writer) -> None:
        self._layout = layout
        self._writer = writer

    def save(self, name: str, key: Key, parent: Key, *, pinned: bool) -> Name:
        """Let `name` stand for the block `key` behind `parent`. Raises UsageError for a bad name, OSError."""
        entry = Name(name, key, parent, pinned, time.time())
        fields = asdict(entry) | {"key": key.hex(), "parent": parent.hex()}
        data = json.dumps(fields).encode()
        replace_file(self._path(name), self._writer.temp_path(self._layout.names), data)
        return entry

    def get(self, name: str) -> Name | None:
        """What `name` stands for; None where nobody gave it."""
        try:
            return _read(self._path(name))
        except UsageError:
            return None

    def remove(self, name: str) -> bool:
        """Forget a name; the blocks stay until they are evicted or removed."""
        return remove(self._path(name))

    def all(self) -> list[Name]:
        """Every readable name, in order."""
        return names_in(self._layout)

    def pinned(self) -> frozenset[Key]:
        """The keys that must not be evicted."""
        return frozenset(name.key for name in self.all() if name.pinned)

    def _path(self, name: str) -> Path:
        require_name(name)
        return self._layout.names / name.encode("utf-8", "replace").hex()


def names_in(layout: Layout) -> list[Name]:
    """Every readable name of a store that need not be open, in order."""
    with contextlib.suppress(OSError):
        files = [n for n in os.listdir(layout.names) if not n.startswith(TEMP_PREFIX)]
        found = (_read(layout.names / file) for file in files)
        return sorted((name for name in found if name), key=lambda name: name.name)
    return []


def require_name(name: str) -> None:
    """Raise UsageError unless this can be a name."""
    nbytes = len(name.encode("utf-8", "replace"))
    if not 1 <= nbytes <= MAX_NAME_BYTES or not name.isprintable() or name != name.strip():
        raise UsageError(f"{name!r} cannot be a prefix name", hint=f"use 1 to {MAX_NAME_BYTES} bytes of printable text")


def _read(path: Path) -> Name | None:
    """The entry in `path`; None where it is missing or not one of ours."""
    try:
        fields = json.loads(read_small(path, _MAX_FILE_BYTES))
        name, created_s = fields["name"], float(fields["created_s"])
        key, parent = bytes.fromhex(fields["key"]), bytes.fromhex(fields["parent"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(name, str) or name.encode("utf-8", "replace").hex() != path.name:
        return None
    if len(key) != KEY_BYTES or len(parent) != KEY_BYTES:
        return None
    return Name(name, Key(key), Key(parent), fields.get("pinned") is True, created_s)
