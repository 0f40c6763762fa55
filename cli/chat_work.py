"""The engine's side of an interactive chat: one thread that does one job after the other and tells what happens.

Knows the conversation and nothing of the terminal: whatever is to be seen is handed over as an event. The thread of the
terminal calls `start`, `interrupt`, `hurry` and `close`; everything else happens in the thread of the engine.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from llmcli.base.errors import LlmcliError
from llmcli.cli.chat_shell import ChatShell
from llmcli.engine.chat_reply import Reply
from llmcli.engine.conversation import ContextUse
from llmcli.engine.generate import Part

_RATE_AFTER_S = 0.5


@dataclass(frozen=True, slots=True)
class Reading:
    """The prompt is being computed."""

    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Came:
    """A part of the answer, how fast it comes (None where that cannot be said yet), and the tokens up to it."""

    part: Part
    tok_s: float | None
    used_tokens: int


@dataclass(frozen=True, slots=True)
class Said:
    """Lines for the user; `failed` where something could not be done, `in_passing` where they belong to an answer."""

    lines: tuple[str, ...]
    failed: bool = False
    in_passing: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer is over."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class Rest:
    """A job is done: what the status line shows, and what the user does next.

    edit    a text to be edited and sent in place of the last turn
    leave   the chat is over
    """

    use: ContextUse
    model: str
    session: str | None
    edit: str | None = None
    leave: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """A bug: the exception that ended the engine's thread."""

    error: BaseException


Event = Reading | Came | Said | Answered | Rest | Broken
Job = Callable[[], "Rest | None"]


class ChatWork:
    """The thread. `post` is called in it, with every event."""

    def __init__(self, shell: ChatShell, post: Callable[[Event], None]) -> None:
        self._shell, self._post = shell, post
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # Called by the thread of the terminal

    def begin(self) -> None:
        """Start the thread."""
        conversation = self._shell.conversation
        conversation.on_progress = lambda done, total: self._post(Reading(done, total))
        self._thread.start()

    def message(self, text: str) -> None:
        """Say this to the model."""
        self._start(lambda: self._answer(lambda: self._shell.conversation.say(self._shell.compose(text))))

    def replace(self, text: str) -> None:
        """Say this in place of the last turn."""
        self._start(lambda: self._answer(lambda: self._shell.conversation.edit(text)))

    def command(self, line: str, more_lines: tuple[str, ...] = ()) -> None:
        """Do what a line with a slash asks for; `more_lines` go below what it says."""
        self._start(lambda: self._command(line, more_lines))

    def interrupt(self) -> None:
        """End the answer on its way."""
        self._stopped.set()
        self._shell.conversation.interrupt()

    def close(self) -> None:
        """End the answer and the thread, and wait for it."""
        self.interrupt()
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _start(self, job: Callable[[], None]) -> None:
        self._stopped.clear()
        self._shell.conversation.hurry()
        self._jobs.put(job)

    # The thread of the engine

    def _run(self) -> None:
        try:
            while job := self._jobs.get():
                job()
        except BaseException as error:  # noqa: BLE001  # raised again in the thread of the terminal
            self._post(Broken(error))

    def _answer(self, ask: Callable[[], Reply]) -> None:
        try:
            self._stream(ask())
        except LlmcliError as error:
            self._failed(error)
        self._post(self._rest())
        self._settle()

    def _command(self, line: str, more_lines: tuple[str, ...]) -> None:
        edit, leave = None, False
        try:
            outcome = self._shell.do(line)
            if outcome.lines:
                self._post(Said((*outcome.lines, *more_lines)))
            if outcome.reply:
                self._stream(outcome.reply)
            edit, leave = outcome.edit, outcome.leave
        except LlmcliError as error:
            self._failed(error)
        self._post(self._rest(edit=edit, leave=leave))
        if not leave:
            self._settle()

    def _stream(self, reply: Reply) -> None:
        if self._stopped.is_set():  # before the answer was asked for, which takes such a request back
            self._shell.conversation.interrupt()
        first_s = None
        try:
            for part in reply.parts():
                now = time.monotonic()
                first_s = first_s or now
                rate = (reply.completion_tokens - 1) / (now - first_s) if now - first_s > _RATE_AFTER_S else None
                self._post(Came(part, rate, reply.prompt_tokens + reply.completion_tokens))
        except LlmcliError:
            if first_s is not None:  # what came stays
                self._post(Answered(reply))
            raise
        self._post(Answered(reply))
        self._shell.conversation.require_saved()

    def _settle(self) -> None:
        if self._jobs.empty():
            try:
                self._shell.conversation.settle()
            except LlmcliError as error:
                self._failed(error)

    def _failed(self, error: LlmcliError) -> None:
        hint = f" ({error.hint})" if error.hint else ""
        self._post(Said((error.message + hint,), failed=True))

    def _rest(self, *, edit: str | None = None, leave: bool = False) -> Rest:
        conversation = self._shell.conversation
        name = conversation.engine.resolved.name
        return Rest(conversation.use(), name, conversation.name, edit=edit, leave=leave)
