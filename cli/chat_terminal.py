"""`llmcli chat` at a terminal: the event loop that brings keys, the engine's events and the screen together.

The engine works in a thread of its own (`chat_work`); this one never waits for it, so that a key shows at once while an
answer streams. What is typed ahead waits in a queue, in order.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import signal
import time
from types import MappingProxyType
from typing import Any

from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings
from rich.text import Text

from llmcli.base.errors import LlmcliError
from llmcli.base.units import format_count
from llmcli.cli.chat_answer import QUIET, AnswerView, thinking_rows
from llmcli.cli.chat_commands import COMMANDS
from llmcli.cli.chat_completer import ChatCompleter
from llmcli.cli.chat_editor import PROMPT, PROMPT_BELOW, Editor
from llmcli.cli.chat_external import edited
from llmcli.cli.chat_history import ChatHistory
from llmcli.cli.chat_markdown import Look
from llmcli.cli.chat_screen import ChatScreen
from llmcli.cli.chat_shell import ChatShell, FrontOptions
from llmcli.cli.chat_status import Status
from llmcli.cli.chat_work import Answered, Broken, Came, ChatWork, Event, Reading, Rest, Said
from llmcli.cli.chat_wrap import in_columns
from llmcli.cli.safe_text import harmless

INTERRUPTED = 130
KEY_LINES = (
    "",
    '  Enter sends, Alt-Enter begins a new line; several lines also stand in """ """, or are pasted',
    "  Tab completes, Up goes back, Ctrl-R searches; a line that begins with a space is not remembered",
    "  Ctrl-C stops an answer, Ctrl-O shows or hides thinking, Ctrl-X Ctrl-E opens the line in $EDITOR",
    "  Ctrl-D leaves; what is typed while an answer comes is the next turn",
)
_HELP = ("/help", "/?")
_FRAME_S = 0.04
_MOST_ECHO_LINES = 40
_ENDINGS = MappingProxyType(
    {"interrupted": "[stopped]", "length": "[cut off: the limit of tokens or the context is reached]"}
)
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def run_terminal(shell: ChatShell, options: FrontOptions) -> int:
    """Chat until the user leaves; the exit code. Stdin and stdout are terminals, and not dumb ones."""
    chat = ChatTerminal(shell, options)
    with options.reporter.redirected(chat.note):
        code = chat.run()
    if chat.ended_by is not None:  # everything is saved and the terminal as it was: end as the signal wants it
        signal.signal(chat.ended_by, signal.SIG_DFL)
        signal.raise_signal(chat.ended_by)
    return code


class ChatTerminal:
    """One chat."""

    def __init__(self, shell: ChatShell, options: FrontOptions) -> None:
        self._shell, self._options = shell, options
        self._work = ChatWork(shell, self._post)
        self._editor = Editor(
            ChatHistory(options.settings.chat_history_file), ChatCompleter(COMMANDS, shell.library.names), self._sent
        )
        self._editor.buffer.on_text_changed += self._typed
        self._screen = ChatScreen(
            options.settings, self._editor, merge_key_bindings([self._editor.keys(), self._keys()])
        )
        self._status = Status()
        self._events: collections.deque[Event] = collections.deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wanted = False
        self._drawn_s = 0.0
        self._queue: list[tuple[str, str]] = []
        self._busy = self._leaving = self._hinted = False
        self._answer: AnswerView | None = None
        self._shows_thinking = options.reasoning == "show"
        self._last_thinking = ""
        self.ended_by: signal.Signals | None = None

    def run(self) -> int:
        """Chat until the user leaves; the exit code."""
        try:
            return self._screen.app.run(pre_run=self._begin, set_exception_handler=False)
        except EOFError:  # the terminal is gone
            return 0
        finally:
            self._loop = None
            self._screen.close()
            self._work.close()

    def note(self, line: str) -> None:
        """A line for the user, from any thread."""
        self._post(Said((line,)))

    # ---- events of the engine ----------------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        """Called in the engine's thread: leave the event for the loop, and wake it once."""
        self._events.append(event)
        loop = self._loop
        if loop is not None and not self._wanted:
            self._wanted = True
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Draw now, or when the last frame is old enough: more often than that nobody can see."""
        assert self._loop is not None  # noqa: S101  # called by the loop
        wait_s = self._drawn_s + _FRAME_S - time.monotonic()
        if wait_s > 0:
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
            self._handle(self._events.popleft())
        self._draw()
        self._drawn_s = time.monotonic()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Came):
            self._came(event)
        elif isinstance(event, Reading):
            self._status.doing = f"reading {event.done_tokens:,}/{event.total_tokens:,} tokens"
        elif isinstance(event, Said):
            self._say(event)
        elif isinstance(event, Answered):
            self._answered(event)
        elif isinstance(event, Rest):
            self._rest(event)
        elif isinstance(event, Broken):
            self._screen.app.exit(exception=event.error)

    def _came(self, event: Came) -> None:
        if self._answer is None:
            self._answer = AnswerView(self._look, shows_thinking=self._shows_thinking)
        self._answer.push(event.part, self._screen.width, self._screen.live_rows)
        self._status.doing = "thinking" if event.part.kind == "reasoning" else "answering"
        self._status.tok_s = event.tok_s or self._status.tok_s

    def _say(self, event: Said) -> None:
        self._print_answer()
        lines = [line for text in event.lines for line in harmless(text).split("\n")]
        rows = [row for line in lines for row in in_columns(Text(line), self._screen.width)]
        if event.failed and rows:
            rows[0] = Text("error: ", "bold red") + rows[0]
        self._screen.print([*rows, Text()])

    def _answered(self, event: Answered) -> None:
        reply = event.reply
        if self._answer:
            self._answer.finish(self._screen.width, self._screen.live_rows)
            self._print_answer()
            self._last_thinking = self._answer.thinking or self._last_thinking
            self._answer = None
        rows = [Text(_ENDINGS[reply.finish_reason], QUIET)] if reply.finish_reason in _ENDINGS else []
        if self._options.stats:
            rows.append(Text(harmless(reply.stats_line()), QUIET))
        self._screen.print([*rows, Text()])
        self._status.saw(reply)

    def _rest(self, event: Rest) -> None:
        status = self._status
        status.use, status.model, status.session, status.doing = event.use, event.model, event.session, ""
        self._busy = False
        if event.leave:
            self._leave(0)
        elif event.edit is not None:
            self._edit(event.edit, replaces=True)
        else:
            self._next()

    # ---- turns -------------------------------------------------------------------------------------------------------

    def _sent(self, shown: str, text: str) -> None:
        """Enter was pressed."""
        self._hinted = False
        if text.strip():
            self._queue.append((shown, text))
            self._next()

    def _typed(self, _buffer: object) -> None:
        if self._hinted:
            self._hinted = False
            self._draw()

    def _next(self) -> None:
        """Begin what waits, if nothing else is going on."""
        if self._busy:
            self._screen.queue([_one_line(shown) for shown, _ in self._queue])
            return
        if self._queue:
            shown, text = self._queue.pop(0)
            self._screen.queue([_one_line(waiting) for waiting, _ in self._queue])
            self._dispatch(shown, text)
        elif self._leaving:
            self._leave(0)

    def _dispatch(self, shown: str, text: str) -> None:
        self._screen.print(_echo(shown))
        self._busy = True
        if self._shell.is_command(text.strip()):
            self._status.doing = "working"
            self._work.command(text.strip(), KEY_LINES if text.strip() in _HELP else ())
        else:
            self._status.doing = "reading"
            self._work.message(text)
        self._draw()

    def _edit(self, text: str, *, replaces: bool) -> None:
        """Let the user's editor change a text: the last turn, or what stands in the line."""

        async def run() -> None:
            try:
                new = await run_in_terminal(lambda: edited(text, self._options.settings))
            except LlmcliError as error:
                self._say(Said((error.message,), failed=True))
                new = None
            if new is None or (replaces and not new.strip()):
                self._say(Said(("nothing was changed",)))
                self._next()
            elif replaces:
                self._screen.print(_echo(new))
                self._busy = True
                self._work.replace(new)
            else:
                self._editor.put_long(new)

        self._screen.app.create_background_task(run())

    def _stop(self) -> None:
        """Ctrl-C: end what is going on, else empty the line, else say how to leave, else leave."""
        if self._busy:
            self._work.interrupt()
            self._take_back()
        elif self._editor.text:
            self._editor.clear()
        elif self._hinted:
            self._leave(INTERRUPTED)
        else:
            self._hinted = True
        self._draw()

    def _take_back(self) -> None:
        """What waited behind an answer that is stopped goes back into the line: it may not be meant any more."""
        if self._queue or self._leaving:
            texts = [shown for shown, _ in self._queue] + ([self._editor.text] if self._editor.text else [])
            self._queue, self._leaving = [], False
            self._editor.put("\n".join(texts))
            self._screen.queue([])

    def _end_of_input(self) -> None:
        """Ctrl-D in an empty line: leave, behind what is going on."""
        if self._busy:
            self._leaving = True
            self._draw()
        else:
            self._leave(0)

    def _leave(self, code: int) -> None:
        if not self._screen.app.is_done:
            self._screen.app.exit(result=code)

    # ---- the screen --------------------------------------------------------------------------------------------------

    @property
    def _look(self) -> Look:
        if self._options.plain:
            return "raw"
        return "styled" if self._screen.styled else "marks"

    def _print_answer(self) -> None:
        if self._answer:
            self._screen.print(self._answer.take())

    def _draw(self) -> None:
        self._print_answer()
        self._screen.show(self._answer.rows_in_progress(self._screen.width) if self._answer else [])
        self._screen.status(self._status_line())

    def _status_line(self) -> str:
        if self._hinted:
            return "Ctrl-C again leaves, as do Ctrl-D and /exit"
        if self._leaving:
            return "leaving when this is done; Ctrl-C stops it"
        return self._status.line()

    def _toggle_thinking(self) -> None:
        self._shows_thinking = not self._shows_thinking
        if self._answer:
            if self._shows_thinking:
                self._answer.unfold(self._screen.width)
            else:
                self._answer.fold()
        elif self._shows_thinking and self._last_thinking:
            self._screen.print(thinking_rows(self._last_thinking, self._screen.width))
        self._draw()

    # ---- beginning and keys ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Called by the application when its loop runs."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._failed)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._ended, number)
        self._work.begin()
        if not self._options.quiet:
            self._greet()
        conversation = self._shell.conversation
        self._status.use, self._status.session = conversation.use(), conversation.name
        self._status.model = conversation.engine.resolved.name
        self._frame()

    def _greet(self) -> None:
        conversation = self._shell.conversation
        rows = [Text("/help lists the commands, Ctrl-D leaves", QUIET)]
        if turns := conversation.history.turns:
            count = format_count(len(turns), "turn")
            rows.append(Text(f"this conversation has {count}; the last one was:", QUIET))
            rows += _echo(turns[-1].user)
            view = AnswerView(self._look, shows_thinking=False)
            rows += view.whole(turns[-1].text, self._screen.width)
        self._screen.print([*rows, Text()])

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A bug in a callback of the loop."""
        error = context.get("exception")
        if not self._screen.app.is_done:
            self._screen.app.exit(exception=error or RuntimeError(str(context.get("message"))))

    def _ended(self, number: signal.Signals) -> None:
        """SIGTERM or SIGHUP."""
        self.ended_by = number
        self._leave(128 + number)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        line_is_empty = Condition(lambda: not self._editor.text)

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(_event: KeyPressEvent) -> None:
            self._stop()

        @keys.add("c-d", filter=line_is_empty)
        def _(_event: KeyPressEvent) -> None:
            self._end_of_input()

        @keys.add("c-o")
        def _(_event: KeyPressEvent) -> None:
            self._toggle_thinking()

        @keys.add("c-l")
        def _(event: KeyPressEvent) -> None:
            event.app.renderer.clear()

        @keys.add("c-x", "c-e")
        def _(_event: KeyPressEvent) -> None:
            self._edit(self._editor.whole(), replaces=False)

        @keys.add("c-z")
        def _(event: KeyPressEvent) -> None:
            event.app.suspend_to_background()

        return keys


def _echo(shown: str) -> list[Text]:
    """What the user sent, as it stays in the scrollback."""
    lines = harmless(shown).split("\n")
    rows = [
        Text(PROMPT_BELOW if number else PROMPT, "bold green") + Text(line)
        for number, line in enumerate(lines[:_MOST_ECHO_LINES])
    ]
    if len(lines) > _MOST_ECHO_LINES:
        rows.append(Text(f"and {len(lines) - _MOST_ECHO_LINES:,} more lines", QUIET))
    return rows


def _one_line(text: str) -> str:
    return " ".join(harmless(text[:500]).split())
