"""What Tab offers in the chat: commands, their choices, paths and session names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from llmcli.base.text import printable
from llmcli.cli.chat_commands import ChatCommand

_MOST_PATHS = 200


class ChatCompleter(Completer):
    """Completes a line that begins with a slash; everything else is a message and stays alone.

    sessions   the names of the saved conversations, read when they are wanted
    """

    def __init__(self, commands: Sequence[ChatCommand], sessions: Callable[[], Sequence[str]]) -> None:
        self._commands, self._sessions = commands, sessions

    def get_completions(self, document: Document, _complete_event: CompleteEvent) -> Iterable[Completion]:
        """The completions at the cursor."""
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        name, space, argument = line.partition(" ")
        if not space:
            yield from self._command_names(name)
            return
        command = next((command for command in self._commands if name in command.names), None)
        if command is not None:
            yield from self._arguments(command, argument.lstrip())

    def _command_names(self, begun: str) -> Iterable[Completion]:
        for command in self._commands:
            # Other spellings are offered where they are asked for, so that each command is listed once.
            spellings = [name for name in command.names if name.startswith(begun)][: 1 if begun == "/" else None]
            if spellings:
                shown = f"{spellings[0]} {command.argument}".rstrip()
                yield Completion(spellings[0], -len(begun), display=shown, display_meta=command.summary)

    def _arguments(self, command: ChatCommand, begun: str) -> Iterable[Completion]:
        if command.kind == "file":
            yield from _paths(begun)
            return
        offered = self._sessions() if command.kind == "session" else command.choices
        for name in offered:
            if name.startswith(begun) and name.isprintable():
                yield Completion(name, -len(begun))


def _paths(begun: str) -> Iterable[Completion]:
    """The entries of the folder that `begun` stands in, folders with a slash behind them; hidden ones if asked for."""
    folder, name = os.path.split(begun)
    try:
        entries = sorted(os.scandir(Path(folder).expanduser() if folder else "."), key=lambda entry: entry.name)
    except (OSError, ValueError, RuntimeError):  # no such folder, a NUL in it, no such user
        return
    wanted = [entry for entry in entries if entry.name.startswith(name) and (name or not entry.name.startswith("."))]
    for entry in wanted[:_MOST_PATHS]:
        slash = "/" if _is_folder(entry) else ""
        if entry.name.isprintable():
            yield Completion(entry.name + slash, -len(name), display=printable(entry.name) + slash)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
