"""The lines a person typed into the chat, kept in a file for the next one. Not the conversation: that is a session.

One JSON string a line, readable by its owner alone. A line that begins with a space is not kept, as in a shell, nor is
one with more than 16 KiB. A file that cannot be read or written costs the history, never the chat.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History

from llmcli.base.bounded_file import open_plain
from llmcli.base.files import atomic_write, make_private_dir
from llmcli.base.text import printable

_MOST_ENTRIES = 1000
_LONGEST_ENTRY = 16 << 10
_TRIM_ABOVE_BYTES = 4 << 20
_READ_BYTES = 1 << 20


class ChatHistory(History):
    """The history file as prompt_toolkit wants it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._is_volatile = path, False

    @property
    def trouble(self) -> str | None:
        """Why nothing is read and kept, in a line; None where nothing stands in the way."""
        try:
            os.close(open_plain(self._path))
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{printable(str(self._path))}: {error.strerror}: what is typed is not kept"
        return None

    def append_volatile(self, string: str) -> None:
        """Add one for this chat alone."""
        self._is_volatile = True
        try:
            self.append_string(string)
        finally:
            self._is_volatile = False

    def load_history_strings(self) -> Iterable[str]:
        """What was typed, newest first."""
        found = list[str]()
        for line in reversed(self._tail().split(b"\n")):
            with contextlib.suppress(ValueError):  # half a line, or not ours
                entry = json.loads(line)
                if isinstance(entry, str):
                    found.append(entry)
        return found[:_MOST_ENTRIES]

    def store_string(self, string: str) -> None:
        """Add one to the file."""
        if self._is_volatile or len(string) > _LONGEST_ENTRY:
            return
        line = json.dumps(string).encode() + b"\n"
        with contextlib.suppress(OSError):
            make_private_dir(self._path.parent)
            handle = open_plain(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(handle, line)  # one write: two chats do not mix their lines
            finally:
                os.close(handle)

    def _tail(self) -> bytes:
        """The end of the file; a file that has grown large is cut down to it."""
        try:
            with os.fdopen(open_plain(self._path), "rb") as source:
                size = source.seek(0, os.SEEK_END)
                source.seek(max(size - _READ_BYTES, 0))
                data = source.read()
        except OSError:
            return b""
        if size > _TRIM_ABOVE_BYTES:
            data = data[data.find(b"\n") + 1 :]
            with contextlib.suppress(OSError):
                atomic_write(self._path, data)
        return data
