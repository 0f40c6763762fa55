"""What a chat shows of what happens: the answer on its way, notes, errors, the status line, what was said before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from llmcli.base.units import format_count
from llmcli.cli.chat_answer import QUIET, AnswerView, thinking_rows
from llmcli.cli.chat_markdown import Look
from llmcli.cli.chat_screen import ChatScreen
from llmcli.cli.chat_shell import FrontOptions, ending_of
from llmcli.cli.chat_status import Status
from llmcli.cli.chat_turn_text import PROMPT, PROMPT_BELOW
from llmcli.cli.chat_work import Answered, Came, Reading, Rest, Said
from llmcli.cli.chat_wrap import in_columns, wrapped
from llmcli.cli.safe_text import harmless
from llmcli.engine.conversation import Conversation

GREETING = "/help lists the commands, Ctrl-D leaves"
_MOST_ECHO_LINES = 40
_MOST_QUEUED_CHARACTERS = 500


class ChatDisplay:
    """Turns events into rows of the screen. `hint` stands in place of the status while it is set."""

    def __init__(self, screen: ChatScreen, options: FrontOptions) -> None:
        self._screen, self._options = screen, options
        self.status = Status()
        self.hint = ""
        self._answer: AnswerView | None = None
        self._shows_thinking = options.reasoning == "show"
        self._last_thinking = ""

    # What the user did

    def sent(self, shown: str) -> None:
        """A turn begins: what was typed stays in the scrollback."""
        self._screen.print(_echo(shown, self._screen.width))

    def queued(self, texts: Sequence[str]) -> None:
        """The turns that wait."""
        self._screen.queue([" ".join(harmless(text[:_MOST_QUEUED_CHARACTERS]).split()) for text in texts])

    def toggle_thinking(self) -> None:
        """Show thinking from now on, and what was hidden last; or hide it."""
        self._shows_thinking = not self._shows_thinking
        if self._answer:
            if self._shows_thinking:
                self._answer.unfold(self._screen.width)
            else:
                self._answer.fold()
        elif self._shows_thinking and self._last_thinking:
            self._screen.print(thinking_rows(self._last_thinking, self._screen.width))
        self.draw()

    # What the engine did

    def greet(self, conversation: Conversation) -> None:
        """The first rows: how to go on, and where an earlier conversation stands."""
        self.status.use, self.status.session = conversation.use(), conversation.name
        self.status.model = conversation.engine.resolved.name
        if self._options.quiet:
            return
        rows = [Text(GREETING, QUIET)]
        if turns := conversation.history.turns:
            count = format_count(len(turns), "turn")
            rows += in_columns(Text(f"this conversation has {count}; the last one was:", QUIET), self._screen.width)
            rows += [Text(), *_echo(turns[-1].user, self._screen.width)]
            rows += AnswerView(self._look, shows_thinking=False).whole(turns[-1].text, self._screen.width)
        self._screen.print([*rows, Text()])

    def reading(self, event: Reading) -> None:
        """The prompt is being computed."""
        self.status.doing = f"reading {event.done_tokens:,}/{event.total_tokens:,} tokens"

    def came(self, event: Came) -> None:
        """A part of the answer."""
        if self._answer is None:
            self._answer = AnswerView(self._look, shows_thinking=self._shows_thinking)
        self._answer.push(event.part, self._screen.width, self._screen.live_rows)
        self.status.doing = "thinking" if event.part.kind == "reasoning" else "answering"
        self.status.tok_s = event.tok_s or self.status.tok_s
        if self.status.use:
            self.status.use = replace(self.status.use, used_tokens=event.used_tokens)

    def said(self, event: Said) -> None:
        """Lines for the user."""
        self._print_finished()
        lines = [line for text in event.lines for line in harmless(text).split("\n")]
        if event.failed:
            rows = in_columns(Text("error: ", "bold red") + Text(" ".join(lines)), self._screen.width)
        else:
            rows = [row for line in lines for row in in_columns(Text(line), self._screen.width)]
        self._screen.print(rows if event.in_passing else [*rows, Text()])

    def answered(self, event: Answered) -> None:
        """The answer is over."""
        reply = event.reply
        if self._answer:
            self._answer.finish(self._screen.width, self._screen.live_rows)
            self._print_finished()
            self._last_thinking = self._answer.thinking or self._last_thinking
            self._answer = None
        rows = in_columns(Text(f"[{ending}]", QUIET), self._screen.width) if (ending := ending_of(reply)) else []
        if self._options.stats:
            rows += in_columns(Text(harmless(reply.stats_line()), QUIET), self._screen.width)
        self._screen.print([*rows, Text()])
        self.status.saw(reply)

    def rested(self, event: Rest) -> None:
        """A job is done."""
        status = self.status
        status.use, status.model, status.session, status.doing = event.use, event.model, event.session, ""

    def draw(self) -> None:
        """Bring the screen up to date."""
        self._print_finished()
        self._screen.show(self._answer.rows_in_progress(self._screen.width) if self._answer else [])
        self._screen.status(self.hint or self.status.line())

    def _print_finished(self) -> None:
        if self._answer:
            self._screen.print(self._answer.take(self._screen.width, self._screen.live_rows))

    @property
    def _look(self) -> Look:
        if self._options.plain:
            return "raw"
        return "styled" if self._screen.styled else "marks"


def _echo(shown: str, width: int) -> list[Text]:
    """What the user sent, as it stays in the scrollback."""
    lines = harmless(shown).split("\n")
    rows = list[Text]()
    for number, line in enumerate(lines[:_MOST_ECHO_LINES]):
        prompt = Text(PROMPT_BELOW if number else PROMPT, "bold green")
        rows += wrapped(Text(line), width, first=prompt, rest=Text("  "))
    if len(lines) > _MOST_ECHO_LINES:
        rows.append(Text(f"and {len(lines) - _MOST_ECHO_LINES:,} more lines", QUIET))
    return rows
