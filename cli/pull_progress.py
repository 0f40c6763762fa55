"""What a pull shows on stderr: a bar for each file on a terminal, and a line when one is whole, there and elsewhere.

Several files may be on their way at once; each call comes from the thread of its file.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_seconds
from llmcli.cli import output
from llmcli.models.progress import Progress

_STDERR = 2
_DRAW_EVERY_S = 0.1


class PullProgress:
    """A ProgressFactory for files, and the one voice on stderr while they come. Use it as a context manager.

    `had` says how much of a file was here before, by name: it is no part of the rate.
    """

    def __init__(self, settings: Settings, *, quiet: bool) -> None:
        self.had: Mapping[str, int] = {}
        self._quiet = quiet
        self._bars = not quiet and output.is_terminal(_STDERR) and settings.environment.get("TERM") != "dumb"
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._display: Any = None
        self._said: set[str] = set()

    def __enter__(self) -> PullProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the bars off the screen: what is printed next stands on a line of its own."""
        with self._lock:
            self._stack.close()
            self._display = None

    @contextlib.contextmanager
    def __call__(self, title: str, total_bytes: int | None, unit: str = "", /) -> Iterator[Progress]:  # noqa: ARG002
        """Show one file while it comes; a line when it is whole."""
        had = self.had.get(title, 0)
        task = _Task(self._open(title, total_bytes, had) if self._bars else None)
        try:
            yield task
        finally:
            task.close()
        self.say(_whole(title, task.done_bytes, had, task.seconds))

    def say(self, line: str) -> None:
        """One line on stderr, above the bars; once."""
        with self._lock:
            if self._quiet or line in self._said:
                return
            self._said.add(line)
            if self._display is None:
                output.stderr_line(printable(line))
            else:
                self._display.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def _open(self, title: str, total_bytes: int | None, had: int) -> tuple[Any, Any]:
        with self._lock:
            if self._display is None:
                self._display = self._stack.enter_context(_display())
            name = printable(title.rpartition("/")[2])
            return self._display, self._display.add_task(name, total=total_bytes, completed=had)


class _Task:
    """One file. `bar` is the display and the id of its row there, None where nothing is drawn."""

    def __init__(self, bar: tuple[Any, Any] | None) -> None:
        self._bar, self._begun, self._drawn = bar, time.monotonic(), 0.0
        self.done_bytes = 0

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._begun

    def update(self, done_bytes: int, /) -> None:
        """Tell the bytes done in all; drawing costs, so not every call does."""
        self.done_bytes = done_bytes
        if self._bar and (now := time.monotonic()) - self._drawn > _DRAW_EVERY_S:
            self._drawn = now
            self._bar[0].update(self._bar[1], completed=done_bytes)

    def close(self) -> None:
        """Take the bar off."""
        if self._bar:
            self._bar[0].remove_task(self._bar[1])


def _display() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class Rate(ProgressColumn):
        """In the units of the sizes beside it."""

        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{format_bytes(int(speed))}/s" if speed else "")

    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=2)),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        DownloadColumn(binary_units=True),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        expand=True,
    )


def _whole(title: str, done_bytes: int, had: int, seconds: float) -> str:
    came = max(0, done_bytes - had)
    rest = f", {format_bytes(had)} of it from an earlier try" if had else ""
    rate = f" ({format_bytes(int(came / seconds))}/s)" if seconds > 0 and came else ""
    return f"{title}: {format_bytes(done_bytes)} in {format_seconds(seconds)}{rate}{rest}, checked"
