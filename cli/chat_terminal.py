"""`llmcli chat` at a terminal: the event loop that brings keys, the engine's events and the screen together.

The engine works in a thread of its own (`chat_work`); this one never waits for it, so that a key shows at once while an
answer streams. What is typed ahead waits in a queue, in order.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import signal
import sys
from collections.abc import Callable
from typing import Any

from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.key_binding import merge_key_bindings

from llmcli.base.errors import LlmcliError
from llmcli.cli.chat_commands import COMMANDS
from llmcli.cli.chat_completer import ChatCompleter
from llmcli.cli.chat_display import ChatDisplay
from llmcli.cli.chat_editor import Editor
from llmcli.cli.chat_external import edited
from llmcli.cli.chat_history import ChatHistory
from llmcli.cli.chat_keys import KEY_LINES, LEAVES, chat_keys
from llmcli.cli.chat_pace import FramePace
from llmcli.cli.chat_screen import ChatScreen
from llmcli.cli.chat_shell import ChatShell, FrontOptions
from llmcli.cli.chat_turn_text import given_back
from llmcli.cli.chat_work import Answered, Broken, Came, ChatWork, Event, Reading, Rest, Said

_INTERRUPTED = 130
_HELP = ("/help", "/?")
_EDITOR_ECHO_S = 0.1
_PATIENCE_S = 10.0  # with the engine, once a signal ends the chat
# A frame would keep the interpreter for 5 ms, Python's own patience, from the engine's thread that has its next token.
_SWITCH_S = 0.0005
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))


def run_terminal(shell: ChatShell, options: FrontOptions) -> int:
    """Chat until the user leaves; the exit code. Stdin and stdout are terminals, and not dumb ones."""
    chat = ChatTerminal(shell, options)
    with options.reporter.redirected(chat.note):
        code = chat.run()
    if chat.ended_by is not None:  # the terminal is as it was: save what is not yet, and end as the signal wants it
        with contextlib.suppress(LlmcliError):  # which was told when it happened
            shell.conversation.log.save_rest()
        signal.signal(chat.ended_by, signal.SIG_DFL)
        signal.raise_signal(chat.ended_by)
    return code


class ChatTerminal:
    """One chat. ended_by: the signal that ended it."""

    def __init__(self, shell: ChatShell, options: FrontOptions) -> None:
        self._shell, self._options = shell, options
        self._work = ChatWork(shell, self._post)
        settings = options.settings
        history = ChatHistory(settings.chat_history_file)
        self._editor = Editor(history, ChatCompleter(COMMANDS, shell.library.names), self._sent)
        self._editor.buffer.on_text_changed += self._typed
        self._screen = ChatScreen(settings, self._editor, merge_key_bindings([self._editor.keys(), chat_keys(self)]))
        self._display = ChatDisplay(self._screen, options)
        shell.columns = lambda: self._screen.width
        self._handlers: dict[type, Callable[[Any], None]] = {
            Came: self._display.came,
            Reading: self._display.reading,
            Said: self._display.said,
            Answered: self._display.answered,
            Rest: self._rest,
            Broken: lambda event: self._fail(event.error),
        }
        self._events: collections.deque[Event] = collections.deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wanted = False
        self._pace = FramePace()
        self._queue: list[tuple[str, str]] = []
        self._undone: tuple[str, ...] = ()  # commands that waited behind an answer that was stopped
        self._busy = self._leaving = self._editing = False
        self.ended_by: signal.Signals | None = None
        if trouble := history.trouble:
            self.note(f"warning: {trouble}")

    def run(self) -> int:
        """Chat until the user leaves; the exit code."""
        sys.setswitchinterval(_SWITCH_S)
        try:
            return self._screen.app.run(pre_run=self._begin, set_exception_handler=False)
        except EOFError:  # the terminal is gone
            return 0
        finally:
            self._loop = None
            self._screen.release()
            self._work.close(_PATIENCE_S if self.ended_by else None)

    def note(self, line: str) -> None:
        """A line for the user, from any thread."""
        self._post(Said((line,), in_passing=True))

    # Events of the engine

    def _post(self, event: Event) -> None:
        """Called in the engine's thread: leave the event for the loop, and wake it once."""
        self._events.append(event)
        loop = self._loop
        if loop is not None and not self._wanted:
            self._wanted = True
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Draw now, or when the last frame is old enough."""
        wait_s = self._pace.wait_s()
        if wait_s > 0 and self._loop is not None:
            self._loop.call_later(wait_s, self._frame)
        else:
            self._frame()

    def _frame(self) -> None:
        self._wanted = False
        if not self._screen.app.is_running:
            return
        if self._screen.gone:
            self._leave(0)
            return
        while self._events:
            event = self._events.popleft()
            self._handlers[type(event)](event)
        self._display.draw()
        self._pace.drawn()

    def _rest(self, event: Rest) -> None:
        self._busy = False
        self._display.rested(event)
        self._tell_undone()
        if event.leave:
            self._leave(0)
        elif event.edit is not None:
            self._edit(event.edit, replaces=True)
        else:
            self._next()

    # Turns

    def _sent(self, shown: str, text: str) -> None:
        """Enter was pressed."""
        if text.strip():
            self._queue.append((shown, text))
            self._next()

    def _next(self) -> None:
        """Begin what waits, if nothing else is going on."""
        begins = self._queue.pop(0) if self._queue and not self._busy else None
        self._display.queued([shown for shown, _ in self._queue])
        if begins:
            self._begin_turn(*begins)
        elif self._leaving and not self._busy:
            self._leave(0)

    def _begin_turn(self, shown: str, text: str) -> None:
        self._display.sent(shown)
        self._busy = True
        line = text.strip()
        if self._shell.is_command(line):
            self._display.status.doing = "working"
            self._work.command(line, KEY_LINES if line in _HELP else ())
        else:
            self._display.status.doing = "reading"
            self._work.message(text)
        self._display.draw()

    def _edit(self, text: str, *, replaces: bool) -> None:
        """Let the user's editor change a text: the last turn, or what stands in the line."""

        async def run() -> None:
            new = None
            self._screen.release()
            self._editing = True
            try:
                new = await run_in_terminal(lambda: edited(text, self._options.settings))
            except LlmcliError as error:
                hint = f" ({error.hint})" if error.hint else ""
                self.note_failure(error.message + hint)
            finally:  # a Ctrl-C that was meant for the editor reaches the loop when it goes on
                asyncio.get_running_loop().call_later(_EDITOR_ECHO_S, self._edit_is_over)
            if not replaces:
                if new is not None:
                    self._editor.put_long(new)
            elif new is not None and new.strip():
                self._busy = True
                self._display.sent(new)
                self._display.status.doing = "reading"
                self._work.replace(new)
            else:
                self._next()

        self._screen.app.create_background_task(run())

    def _edit_is_over(self) -> None:
        self._editing = False

    def note_failure(self, line: str) -> None:
        """Something could not be done."""
        self._display.said(Said((line,), failed=True))

    # What keys do

    def stop(self) -> None:
        """Ctrl-C: end what is going on, else empty the line, else say how to leave, else leave."""
        if self._editing:
            return
        if self._busy:
            self._work.interrupt()
            self._take_back()
            if self._work.leave_command():
                self._busy, self._display.status.doing = False, ""
                self._tell_undone()
        elif self._editor.text:
            self._editor.clear()
        elif self._display.hint:
            self._leave(_INTERRUPTED)
        else:
            self._display.hint = LEAVES
        self._display.draw()

    def _take_back(self) -> None:
        """What waited behind an answer that is stopped goes back into the line: it may not be meant any more."""
        if self._queue:
            waiting = [shown for shown, _ in self._queue]
            line, self._undone = given_back(waiting, self._editor.text, self._shell.is_command)
            self._editor.put(line)
        self._queue, self._leaving, self._display.hint = [], False, ""
        self._display.queued([])

    def _tell_undone(self) -> None:
        undone, self._undone = self._undone, ()
        if undone:
            self._display.said(Said((f"not done: {', '.join(undone)}",)))

    def end_of_input(self) -> None:
        """Ctrl-D in an empty line: leave, behind what is going on."""
        if self._busy:
            self._leaving = True
            self._display.hint = "leaving when this is done; Ctrl-C stops it"
            self._display.draw()
        else:
            self._leave(0)

    def toggle_thinking(self) -> None:
        """Ctrl-O: show thinking, or hide it."""
        self._display.toggle_thinking()

    def edit_line(self) -> None:
        """Ctrl-X Ctrl-E: what stands in the line, in the user's editor."""
        self._edit(self._editor.whole(), replaces=False)

    def suspend(self) -> None:
        """Ctrl-Z: back to the shell, for now."""
        self._screen.release()
        self._screen.app.suspend_to_background()

    def line_is_empty(self) -> bool:
        """Whether nothing stands in the line."""
        return not self._editor.text

    def _typed(self, _buffer: object) -> None:
        if self._display.hint and not self._leaving:
            self._display.hint = ""
            self._display.draw()

    def _leave(self, code: int) -> None:
        if not self._screen.app.is_done:
            self._screen.app.exit(result=code)

    # Beginning and end

    def _begin(self) -> None:
        """Called by the application when its loop runs."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._failed)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._ended, number)
        self._display.greet(self._shell.conversation)
        self._work.begin()
        self._frame()

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A bug in a callback of the loop."""
        self._fail(context.get("exception") or RuntimeError(str(context.get("message"))))

    def _fail(self, error: BaseException) -> None:
        if not self._screen.app.is_done:
            self._screen.app.exit(exception=error)

    def _ended(self, number: signal.Signals) -> None:
        """SIGTERM, SIGHUP or SIGQUIT."""
        self.ended_by = number
        self._leave(128 + number)
