"""/save and /load: a conversation written to a file that the user names, and read from one."""

from __future__ import annotations

import os
from pathlib import Path

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.named_file import write_named
from llmcli.base.text import decode_utf8, printable
from llmcli.base.units import format_count
from llmcli.cli import output
from llmcli.cli.chat_shell import ChatShell
from llmcli.engine.conversation import Conversation
from llmcli.sessions.events import Header
from llmcli.sessions.export import exported, from_json
from llmcli.sessions.file import SUFFIX, Reading
from llmcli.sessions.turns import History

_MOST_BYTES = 256 << 20


def save_conversation(conversation: Conversation, file: str) -> str:
    """Write it as the file's name ends: .md, .json, else as a session. The line that says so."""
    path, log = Path(os.path.expanduser(file)), conversation.log
    if log.header is None or not log.history.turns:
        raise UsageError("there is nothing to save yet")
    data = exported(path.suffix.lower(), log.name or path.stem, log.header, log.history)
    try:
        write_named(path, data, over=False)  # what is there was not meant to be lost
    except FileExistsError:
        raise LlmcliError(f"{printable(file)} is there already", hint="another name") from None
    except OSError as error:
        raise output.os_failure(error, "cannot write ") from None
    except ValueError as error:
        raise LlmcliError(f"cannot write {printable(file)}: {error}") from None
    return f"{format_count(len(log.history.turns), 'turn')} written to {printable(file)}"


def load_conversation(shell: ChatShell, file: str) -> str:
    """Put the conversation of a file, or of a saved session, in the place of this one. The line that says so."""
    header, history = _found(shell, file)
    if not history.turns and history.unanswered is None:
        raise LlmcliError(f"there is no turn in {printable(file)}", hint="this conversation stays as it is")
    shell.require_wanted()
    conversation = shell.conversation
    if header is None or header.model.content_id != conversation.engine.inspected.content_id:
        history.change_model()
    conversation.replace(history)
    other = f"; it was with the model {printable(header.model.name)}" if header and not _same(header, shell) else ""
    return f"{format_count(len(history.turns), 'turn')} from {printable(file)}{other}"


def _same(header: Header, shell: ChatShell) -> bool:
    return header.model.content_id == shell.conversation.engine.inspected.content_id


def _found(shell: ChatShell, file: str) -> tuple[Header | None, History]:
    path = Path(os.path.expanduser(file))
    if not path.is_file():
        if file in shell.library.names():
            return _session(shell, shell.library.path(file))
        if path.exists():
            raise LlmcliError(f"cannot read {printable(file)}: it is not a file")
        raise LlmcliError(f"there is no file and no session {printable(file)}", hint="/sessions")
    if path.suffix.lower() == SUFFIX:
        return _session(shell, path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise LlmcliError(f"{printable(file)} is too large for a conversation")
        data = path.read_bytes()
    except OSError as error:
        raise LlmcliError(f"cannot read {printable(file)}: {error.strerror}") from None
    return None, from_json(decode_utf8(data).text)


def _session(shell: ChatShell, path: Path) -> tuple[Header, History]:
    try:
        found = Reading(path)
    except OSError as error:
        raise LlmcliError(f"cannot read {printable(str(path))}: {error.strerror}") from None
    for warning in found.warnings:
        shell.notify(warning)
    return found.header, found.history
