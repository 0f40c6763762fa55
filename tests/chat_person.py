"""What the tests of an interactive chat share: a person in front of `llmcli chat`, who types and looks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from tests.conftest import OpenTerminal
from tests.fixtures.screen import Screen
from tests.fixtures.terminal import CTRL_D, ENTER, Terminal

PASTE, PASTED = b"\x1b[200~", b"\x1b[201~"
READY = "/help lists the commands"
_PATIENCE_S = 30.0


class Person:
    """Somebody at the terminal: types, looks at the screen, waits for something to appear."""

    def __init__(self, terminal: Terminal, rows: int, columns: int) -> None:
        self.terminal, self.screen = terminal, Screen(rows, columns)
        self._fed = self._above = 0

    @property
    def sees(self) -> str:
        """The screen and what scrolled off it."""
        self._look()
        return self.screen.text

    @property
    def below(self) -> list[str]:
        """The rows of the screen from the line that is typed into on."""
        self._look()
        lines = self.screen.lines
        start = max(number for number, line in enumerate(lines) if line.startswith("> "))
        return lines[start:]

    def types(self, keys: bytes) -> None:
        if ENTER in keys:
            self._above = self._rows_above()
        self.terminal.send(keys)

    def pastes(self, text: str) -> None:
        """As a terminal with bracketed paste does it; waits while the program is slower than the paste."""
        self.terminal.send_all(PASTE + text.encode() + PASTED)

    def says(self, text: str) -> None:
        """One turn."""
        self.types(text.encode() + ENTER)

    def waits_for(self, wanted: str | Callable[[str], bool], what: str = "") -> str:
        """Until the text, or what the function asks for, is to be seen."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            seen = self.sees
            if wanted in seen if isinstance(wanted, str) else wanted(seen):
                return seen
            assert time.monotonic() < deadline, f"{what or wanted!r} is not to be seen in:\n{seen}"
            if not self.terminal.pump():
                seen = self.sees
                assert wanted in seen if isinstance(wanted, str) else wanted(seen), f"ended without {wanted!r}:\n{seen}"

    def waits_until_idle(self) -> str:
        """Until the last turn is over: it stands above, and the status line says nothing of what is done."""
        return self.waits_for(lambda _: self._is_idle(), "an idle chat")

    def leaves(self) -> int:
        self.types(CTRL_D)
        return self.terminal.wait()

    def resizes(self, rows: int, columns: int) -> None:
        self._look()
        self.screen.resize(rows, columns)
        self.terminal.resize(rows, columns)

    def _is_idle(self) -> bool:
        lines = self.screen.lines
        return bool(lines) and lines[-1].startswith("context ") and self._rows_above() > self._above

    def _rows_above(self) -> int:
        """How many rows there are above the line that is typed into."""
        self._look()
        lines = [*self.screen.scrollback, *self.screen.lines]
        return max((number for number, line in enumerate(lines) if line.startswith("> ")), default=0)

    def _look(self) -> None:
        data = self.terminal.screen[self._fed :]
        text = data.decode("utf-8", "ignore") if _is_whole(data) else ""
        if text:
            self._fed = len(self.terminal.screen)
            self.screen.feed(text)


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return True


class StartChat(Protocol):
    """How a test begins a chat."""

    def __call__(
        self,
        model: Path,
        *options: str | Path,
        env: Mapping[str, str | None] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> contextlib.AbstractContextManager[Person]: ...


@pytest.fixture(name="start_chat")
def chat_starter(open_terminal: OpenTerminal) -> StartChat:
    """`with start_chat(model) as person:` is `llmcli chat` with a person who has seen the prompt."""

    @contextlib.contextmanager
    def start(
        model: Path,
        *options: str | Path,
        env: Mapping[str, str | None] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> Iterator[Person]:
        command = ("chat", "-t", "1", "--temp", "0", "-m", model, *options)
        with open_terminal(*command, env=env, rows=rows, columns=columns) as terminal:
            person = Person(terminal, rows, columns)
            person.waits_for(READY)
            yield person

    return start
