"""The terminal of a chat: what is finished goes into the scrollback once, the few rows below it are drawn again.

From top to bottom: the scrollback, the rows of the answer that are in progress, the turns that wait, the line editor,
the status. Knows how to draw and nothing of conversations. Everything here runs in the thread of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from prompt_toolkit.application import Application
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.key_binding import KeyBindingsBase
from prompt_toolkit.layout import Layout
from prompt_toolkit.layout.containers import ConditionalContainer, HSplit, VerticalAlign, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.styles import Style
from rich.text import Text

from llmcli.base.settings import Settings
from llmcli.cli.chat_ansi import AnsiPainter
from llmcli.cli.chat_editor import Editor
from llmcli.cli.chat_input import ChatInput
from llmcli.cli.chat_output import ChatOutput, utf8_stream

_MOST_LIVE_ROWS = 12
_ROWS_BELOW = 4  # the line, the status, and room to breathe
_MOST_QUEUED = 3
_COLOURED = {
    "prompt": "bold ansigreen",
    "placeholder": "ansibrightblack",
    "status": "ansibrightblack",
    "queued": "ansibrightblack",
}
_WITHOUT_COLOURS = {"completion-menu.completion.current": "reverse"}


class ChatScreen:
    """Draws the chat around a line editor. `keys` are those of everything else."""

    def __init__(self, settings: Settings, editor: Editor, keys: KeyBindingsBase) -> None:
        self.styled = not settings.no_color
        self._painter = AnsiPainter(styled=self.styled)
        self._live, self._queued, self._status = "", list[str](), ""
        self._live_pieces: StyleAndTextTuples = []
        self._out = ChatOutput(term=settings.environment.get("TERM"), styled=self.styled)
        self.app: Application[int] = Application(
            layout=Layout(self._layout(editor), focused_element=editor.window),
            key_bindings=keys,
            style=Style.from_dict(_COLOURED if self.styled else _WITHOUT_COLOURS),
            include_default_pygments_style=False,
            erase_when_done=True,
            input=ChatInput(utf8_stream(0, "r")),
            output=self._out,
        )
        self.app.after_render += self.release

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._out.get_size().columns

    @property
    def live_rows(self) -> int:
        """How many rows of an answer in progress are shown."""
        return max(1, min(_MOST_LIVE_ROWS, self._out.get_size().rows - _ROWS_BELOW))

    @property
    def gone(self) -> bool:
        """Whether the terminal went away."""
        return self._out.gone

    def print(self, rows: Sequence[Text]) -> None:
        """Put rows into the scrollback, for good."""
        if not rows:
            return
        self._out.held = True
        self.app.renderer.erase()
        self._out.write_raw(self._painter.lines(rows))
        self.app.invalidate()

    def show(self, rows: Sequence[Text]) -> None:
        """What is in progress: the last rows of it."""
        live = self._painter.still(rows[-self.live_rows :])
        if live.count("\n") < self._live.count("\n") or (self._live and not live):
            self._out.held = True
            self.app.renderer.erase()  # what was drawn never shrinks by itself
        if live != self._live:
            self._live, self._live_pieces = live, _pieces(live)
        self.app.invalidate()

    def queue(self, texts: Sequence[str]) -> None:
        """The turns that wait for their time."""
        self._queued = list(texts)
        self.app.invalidate()

    def status(self, text: str) -> None:
        """The line at the bottom."""
        self._status = text
        self.app.invalidate()

    def release(self, _app: object = None) -> None:
        """Send what is held back: it is drawn, or something else is about to use the terminal."""
        self._out.held = False
        self._out.flush()

    def _layout(self, editor: Editor) -> HSplit:
        return HSplit(
            [
                _rows(lambda: self._live_pieces, lambda: bool(self._live)),
                _rows(self._queued_text, lambda: bool(self._queued), "class:queued"),
                *editor.containers,
                _rows(lambda: self._status, lambda: bool(self._status), "class:status"),
            ],
            align=VerticalAlign.TOP,
        )

    def _queued_text(self) -> str:
        lines = [f"next: {text}" for text in self._queued[:_MOST_QUEUED]]
        more = len(self._queued) - _MOST_QUEUED
        return "\n".join([*lines, f"and {more} more"] if more > 0 else lines)


def _pieces(text: str) -> StyleAndTextTuples:
    """Text with escape sequences, in few pieces: the parser makes one of every character, each drawn by itself."""
    parsed = to_formatted_text(ANSI(text))
    return [(style, "".join(piece[1] for piece in same)) for style, same in groupby(parsed, key=lambda piece: piece[0])]


def _rows(text: AnyFormattedText, wanted: Callable[[], bool], style: str = "") -> ConditionalContainer:
    """A part of the screen that is as high as its text and is there only when there is some."""
    window = Window(FormattedTextControl(text), style=style, dont_extend_height=True, wrap_lines=False)
    return ConditionalContainer(window, Condition(wanted))
