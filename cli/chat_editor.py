"""The line a person types into: several lines, history, completion, pastes. Says when a turn is complete.

Enter sends, except inside a block that three quotes open; Alt-Enter always begins a new line.
"""

from __future__ import annotations

from collections.abc import Callable

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, get_common_complete_suffix
from prompt_toolkit.filters import Condition, has_completions, is_searching
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.containers import AnyContainer, ConditionalContainer, Window
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.menus import CompletionsMenuControl
from prompt_toolkit.layout.processors import AfterInput, ConditionalProcessor
from prompt_toolkit.widgets import SearchToolbar

from llmcli.cli.chat_history import ChatHistory
from llmcli.cli.chat_pastes import Pastes
from llmcli.cli.chat_turn_text import PROMPT, PROMPT_BELOW, block_is_open, unquoted

PLACEHOLDER = "a message, or /help"
_MOST_ROWS = 10
_MOST_OFFERED = 8


class Editor:
    """The editor with its history and its part of the layout.

    send(shown, text)   called at Enter with what stood in the line, and with what it means
    """

    def __init__(self, history: ChatHistory, completer: Completer, send: Callable[[str, str], None]) -> None:
        self._history, self._completer, self._send, self._pastes = history, completer, send, Pastes()
        self.buffer = Buffer(
            history=history,
            completer=completer,
            complete_while_typing=Condition(self._types_command),
            multiline=True,
            name="message",
        )
        search = SearchToolbar()
        self.window = Window(
            BufferControl(
                self.buffer,
                input_processors=[
                    ConditionalProcessor(
                        AfterInput(PLACEHOLDER, style="class:placeholder"),
                        Condition(lambda: not self.buffer.text) & ~is_searching,
                    )
                ],
                search_buffer_control=search.control,
                preview_search=True,
            ),
            height=Dimension(min=1, max=_MOST_ROWS),
            dont_extend_height=True,
            wrap_lines=True,
            get_line_prefix=_prefix,
        )
        menu = Window(
            CompletionsMenuControl(),
            width=Dimension(min=8),
            height=Dimension(min=1, max=_MOST_OFFERED),
            dont_extend_width=True,
            dont_extend_height=True,
            style="class:completion-menu",
        )
        self.containers: list[AnyContainer] = [self.window, search, ConditionalContainer(menu, has_completions)]

    @property
    def text(self) -> str:
        """What stands in the line."""
        return self.buffer.text

    def put(self, text: str) -> None:
        """Let `text` stand in the line, the cursor behind it."""
        self.buffer.text = text
        self.buffer.cursor_position = len(text)

    def put_long(self, text: str) -> None:
        """The same for a text that may be of any length."""
        self.put(self._pastes.add(text))

    def clear(self) -> None:
        """Empty the line."""
        self.buffer.reset()

    def whole(self) -> str:
        """What stands in the line, with the texts that pastes stand for."""
        return self._pastes.expand(self.buffer.text)

    def keys(self) -> KeyBindings:
        """The keys of the line itself."""
        keys = KeyBindings()

        @keys.add("enter", filter=~is_searching)
        def _(_event: KeyPressEvent) -> None:
            self._enter()

        @keys.add("escape", "enter", filter=~is_searching)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("tab", filter=~is_searching)
        def _(_event: KeyPressEvent) -> None:
            self._complete()

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text(self._pastes.add(event.data))

        return keys

    def _enter(self) -> None:
        state = self.buffer.complete_state
        if state and state.current_completion:
            self.buffer.complete_state = None  # takes the completion, which stands in the line already
            return
        shown = self.buffer.text
        if block_is_open(shown):
            self.buffer.insert_text("\n")
            return
        self._remember(shown)
        text = unquoted(self.whole())
        self.buffer.reset()
        self._send(shown, text)

    def _complete(self) -> None:
        """Tab: put in what all completions have in common, else go through them. At once, whatever is typed next."""
        state, buffer = self.buffer.complete_state, self.buffer
        if state and state.current_completion:
            buffer.complete_next()
            return
        # Not the menu's own list: it comes a moment after the key, and what is typed next would drop it.
        found = list(self._completer.get_completions(buffer.document, CompleteEvent(completion_requested=True)))
        if common := get_common_complete_suffix(buffer.document, found):
            buffer.insert_text(common)
        elif state:
            buffer.complete_next()
        elif len(found) > 1:
            buffer.start_completion(select_first=True)

    def _remember(self, shown: str) -> None:
        if not shown.strip() or shown.startswith(" "):
            return
        if self._pastes.names_in(shown):  # means nothing to the next chat
            self._history.append_volatile(shown)
        else:
            self._history.append_string(shown)

    def _types_command(self) -> bool:
        return self.buffer.text.startswith("/") and " " not in self.buffer.text


def _prefix(line: int, wrap: int) -> StyleAndTextTuples:
    if line == 0 and wrap == 0:
        return [("class:prompt", PROMPT)]
    return [("class:prompt", "  " if wrap else PROMPT_BELOW)]
