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

from llmcli.base.errors import LlmcliError, UserInterruptError
from llmcli.cli.chat_shell import ChatShell, Outcome
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


class ChatWork:
    """The thread. `post` is called in it, with every event."""

    def __init__(self, shell: ChatShell, post: Callable[[Event], None]) -> None:
        self._shell, self._post = shell, post
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()  # of the job that was begun last
        self._lock = threading.Lock()
        self._is_awaited = False  # whether a command is being done for whose end the terminal waits
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # Called by the thread of the terminal

    def begin(self) -> None:
        """Start the thread."""
        conversation = self._shell.conversation
        conversation.on_progress = lambda done, total: self._post(Reading(done, total))
        self._thread.start()

    def message(self, text: str) -> None:
        """Say this to the model."""
        conversation = self._shell.conversation
        self._start(lambda stopped: self._answer(lambda: conversation.say(self._shell.compose(text)), stopped))

    def replace(self, text: str) -> None:
        """Say this in place of the last turn."""
        self._start(lambda stopped: self._answer(lambda: self._shell.conversation.edit(text), stopped))

    def command(self, line: str, more_lines: tuple[str, ...] = ()) -> None:
        """Do what a line with a slash asks for; `more_lines` go below what it says."""
        self._start(lambda stopped: self._command(line, more_lines, stopped))

    def interrupt(self) -> None:
        """End the answer on its way."""
        self._stopped.set()
        self._shell.conversation.interrupt()

    def leave_command(self) -> bool:
        """Wait no longer for the command that is being done; whether there is one. No Rest will come of it."""
        with self._lock:
            is_left, self._is_awaited = self._is_awaited, False
        return is_left

    def close(self, patience_s: float | None = None) -> None:
        """End the answer and the thread, and wait for it; for so long."""
        self.interrupt()
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(patience_s)

    def _start(self, job: Callable[[threading.Event], None]) -> None:
        stopped = self._stopped = threading.Event()
        self._shell.conversation.hurry()
        self._jobs.put(lambda: job(stopped))

    # The thread of the engine

    def _run(self) -> None:
        try:
            while job := self._jobs.get():
                job()
        except BaseException as error:  # noqa: BLE001  # raised again in the thread of the terminal
            self._post(Broken(error))

    def _answer(self, ask: Callable[[], Reply], stopped: threading.Event) -> None:
        try:
            self._stream(ask(), stopped)
        except LlmcliError as error:
            self._failed(error)
        self._post(self._rest())
        self._settle()

    def _command(self, line: str, more_lines: tuple[str, ...], stopped: threading.Event) -> None:
        outcome, is_left = Outcome(), False
        try:
            try:
                outcome = self._outcome(line, stopped)
            finally:
                is_left = self._is_left()
            if outcome.lines:
                self._post(Said((*outcome.lines, *more_lines)))
            if outcome.reply:
                self._stream(outcome.reply, stopped)
        except UserInterruptError:
            self._post(Said(("stopped: nothing is changed",)))
        except LlmcliError as error:
            self._failed(error)
        if not is_left:
            self._post(self._rest(edit=outcome.edit, leave=outcome.leave))
        if not outcome.leave:
            self._settle()

    def _outcome(self, line: str, stopped: threading.Event) -> Outcome:
        self._shell.is_unwanted = stopped.is_set
        with self._lock:
            self._is_awaited = True
        self._shell.require_wanted()
        return self._shell.do(line)

    def _is_left(self) -> bool:
        """The command is done: whether nobody waits for that any more."""
        with self._lock:
            is_awaited, self._is_awaited = self._is_awaited, False
        return not is_awaited

    def _stream(self, reply: Reply, stopped: threading.Event) -> None:
        if stopped.is_set():  # before the answer was asked for, which takes such a request back
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
