"""What a chat is besides words and answers, whoever shows it: commands, attachments, the session that is open.

Knows no terminal: the two fronts (`chat_pipe`, `chat_terminal`) read lines, hand commands to `do`, and show what
comes back.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from llmcli.base.errors import UserInterruptError
from llmcli.base.settings import Settings
from llmcli.cli import output
from llmcli.cli.reporter import StderrReporter
from llmcli.engine.chat_reply import Reply
from llmcli.engine.conversation import Conversation
from llmcli.sessions.library import Library
from llmcli.sessions.names import is_dated


@dataclass(frozen=True, slots=True)
class FrontOptions:
    """How a front shows a chat. reasoning: "hide" or "show"; stats: a line behind each answer."""

    settings: Settings
    reporter: StderrReporter
    plain: bool = False
    reasoning: str = "show"
    stats: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did.

    lines     to be shown; harmless for a terminal
    reply     an answer to be streamed now
    edit      a text for the user to change and send; `Conversation.edit` takes it
    leave     the chat is over
    """

    lines: tuple[str, ...] = ()
    reply: Reply | None = None
    edit: str | None = None
    leave: bool = False


def ending_of(reply: Reply) -> str | None:
    """How an answer ended that did not end by itself."""
    return "stopped" if reply.finish_reason == "interrupted" else reply.cut_note


class ChatShell:
    """One chat: the conversation, the saved ones, and what is to go with the next message.

    columns       how wide what is shown may be, None where there is no such edge; a front assigns its own
    is_unwanted   whether the user has taken the command back that is being done; the same
    """

    def __init__(
        self,
        conversation: Conversation,
        library: Library,
        settings: Settings,
        notify: Callable[[str], None],
        held: contextlib.ExitStack,
    ) -> None:
        """`held` holds the lock of the open session, and is replaced when another one is opened."""
        self.conversation, self.library, self.settings, self.notify = conversation, library, settings, notify
        self.attachments: list[str] = []
        self.columns: Callable[[], int | None] = lambda: None
        self.is_unwanted: Callable[[], bool] = lambda: False
        self._held = held

    def require_wanted(self) -> None:
        """To be called by a slow command before what it does takes effect. Raises UserInterruptError."""
        if self.is_unwanted():
            raise UserInterruptError

    def is_command(self, line: str) -> bool:
        """Whether a line is a command: a slash and a word. A path, and a comment in code, are words to the model."""
        words = line.split(maxsplit=1)
        return bool(words) and words[0].startswith("/") and len(words[0]) > 1 and not set("/*") & set(words[0][1:])

    def do(self, line: str) -> Outcome:
        """Run one command. Raises LlmcliError for the front to show."""
        from llmcli.cli.chat_commands import find  # which needs what is defined here

        word, *argument = line.split(maxsplit=1)
        try:
            return find(word).run(self, "".join(argument).strip())
        except OSError as error:  # a name too long, a folder that cannot be written: no reason to end the chat
            raise output.os_failure(error) from None

    def compose(self, text: str) -> str:
        """The next message: what /read brought, then `text`."""
        parts, self.attachments = [*self.attachments, text], []
        return "\n\n".join(part.rstrip("\n") for part in parts) if len(parts) > 1 else text

    def way_back(self) -> str | None:
        """How to go on with this conversation another day; None where nothing was said that is saved."""
        conversation = self.conversation
        name, path = conversation.name, conversation.log.path
        if name is None or path is None or not path.exists() or not conversation.history.turns:
            return None
        # A name that the user chose says more than "the last one", and holds on when there is another last one.
        goes_on = self.library.last() == name and is_dated(name)
        return f"session {name}: llmcli chat " + ("--continue" if goes_on else f"--session {shlex.quote(name)}")

    def open_fork(self, name: str) -> None:
        """Copy the conversation to a new session and go on there; the old one stays as it is."""
        self.conversation.log.save_rest()  # which is the last time that anybody can
        self.library.copy(self.conversation.log, name)
        fresh = contextlib.ExitStack()
        self.conversation.use_log(fresh.enter_context(self.library.open(name)))
        self._held.close()
        self._held = fresh

    def close(self) -> None:
        """Let go of the session."""
        self._held.close()
