"""The keys of a chat besides those of its line, and how they are explained."""

from __future__ import annotations

from typing import Protocol

from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

LEAVES = "Ctrl-C again leaves, as do Ctrl-D and /exit"
KEY_LINES = (
    "",
    '  Enter              Send. A message of several lines is pasted, or stands in """ """.',
    "  Alt-Enter          Begin a new line.",
    "  Tab                Complete a command or a path.",
    "  Up, Ctrl-R         Go back to what was typed before, search it. A line that begins with a space is not kept.",
    "  Ctrl-X Ctrl-E      Go on in $EDITOR.",
    "  Ctrl-C             Stop the answer; at an empty line twice: leave.",
    "  Ctrl-O             Show thinking, or hide it.",
    "  Ctrl-L             Clear the screen.",
    "  Ctrl-D             Leave.",
    "",
    "  What is typed while an answer comes is the next turn.",
)


class Keyed(Protocol):
    """What the keys act on."""

    def stop(self) -> None:
        """Ctrl-C."""

    def end_of_input(self) -> None:
        """Ctrl-D."""

    def toggle_thinking(self) -> None:
        """Ctrl-O."""

    def edit_line(self) -> None:
        """Ctrl-X Ctrl-E."""

    def suspend(self) -> None:
        """Ctrl-Z."""

    def line_is_empty(self) -> bool:
        """Whether nothing stands in the line."""


def chat_keys(chat: Keyed) -> KeyBindings:
    """The bindings."""
    keys = KeyBindings()

    @keys.add("c-c", filter=~is_searching)
    @keys.add("<sigint>")
    def _(_event: KeyPressEvent) -> None:
        chat.stop()

    @keys.add("c-d", filter=Condition(chat.line_is_empty) & ~is_searching)
    def _(_event: KeyPressEvent) -> None:
        chat.end_of_input()

    @keys.add("c-o")
    def _(_event: KeyPressEvent) -> None:
        chat.toggle_thinking()

    @keys.add("c-x", "c-e")
    def _(_event: KeyPressEvent) -> None:
        chat.edit_line()

    @keys.add("c-l")
    def _(event: KeyPressEvent) -> None:
        event.app.renderer.clear()

    @keys.add("c-z")
    def _(_event: KeyPressEvent) -> None:
        chat.suspend()

    return keys
