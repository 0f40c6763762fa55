"""What the user sees on stderr while something is on its way: notes, progress, statistics.

Progress is a bar on a terminal and appears only when the work takes long enough to wonder; elsewhere it is nothing,
so that logs stay readable.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.cli import output
from llmcli.cli.safe_text import harmless
from llmcli.engine.log import INFO
from llmcli.models.progress import Progress, ProgressFactory, SilentProgress

_STDERR = 2
_BAR_AFTER_S = 0.7


class StderrReporter:
    """Notes and progress on stderr; --quiet drops both, -v shows more."""

    def __init__(self, settings: Settings, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose
        self._color = output.is_terminal(_STDERR) and not settings.no_color
        self._bars = not quiet and output.is_terminal(_STDERR) and settings.environment.get("TERM") != "dumb"
        self._said: set[str] = set()
        self._tell: Callable[[str], None] = output.stderr_line

    @contextlib.contextmanager
    def redirected(self, tell: Callable[[str], None]) -> Iterator[None]:
        """While inside, lines go to `tell`, from whatever thread, and there are no bars: someone draws the screen."""
        kept = self._tell, self._bars
        self._tell, self._bars = tell, False
        try:
            yield
        finally:
            self._tell, self._bars = kept

    def notify(self, line: str) -> None:
        """One line, once: a note that was already given is not repeated."""
        if not self.quiet and line not in self._said:
            self._said.add(line)
            self._tell(printable(line))

    def detail(self, line: str) -> None:
        """One line, with -v only."""
        if self.verbose:
            self._tell(printable(line))

    def native_log(self, level: int, line: str) -> None:
        """One line of llama.cpp's log, with -v only; it quotes metadata of the model."""
        if level >= INFO:
            self.detail(line)

    def thinking(self, text: str) -> None:
        """A piece of the model's thinking, dimmed where the terminal can."""
        if self.quiet:
            return
        shown = harmless(text) if output.is_terminal(_STDERR) else text
        output.stderr_text(f"\x1b[2m{shown}\x1b[0m" if self._color else shown)

    @property
    def draws(self) -> bool:
        """Whether there is a terminal to draw progress on."""
        return self._bars

    @property
    def progress(self) -> ProgressFactory:
        """A bar per task on a terminal, silence elsewhere."""
        return self._progress

    @contextlib.contextmanager
    def _progress(self, title: str, total: int | None, unit: str = "", /) -> Iterator[Progress]:
        if not self._bars:
            yield SilentProgress()
            return
        bar = _LateBar(title, total, unit)
        try:
            yield bar
        finally:
            bar.close()


class _LateBar:
    """A rich progress bar that is made (and rich imported) only once the task has run for a while.

    The time left is reckoned from the first update on: what that one tells may have been there before. Rich's own
    column looks at the last half minute alone, in which slow work takes no step.
    """

    def __init__(self, title: str, total: int | None, unit: str) -> None:
        self._title, self._total, self._unit, self._begun = title, total, unit, time.monotonic()
        self._first: tuple[float, int] | None = None
        self._stack = contextlib.ExitStack()
        self._show: object = None

    def update(self, done: int, /) -> None:
        """Tell what is done in all."""
        now = time.monotonic()
        self._first = self._first or (now, done)
        if self._show is None:
            if now - self._begun < _BAR_AFTER_S:
                return
            self._open()
        left = time_left(now - self._first[0], done - self._first[1], (self._total or 0) - done)
        self._bar.update(self._task, completed=done, done=self._done(done), left=left)

    def _done(self, done: int) -> str:
        if self._total is None:
            return format_count(done, self._unit) if self._unit else format_bytes(done)
        if self._unit:
            return f"{done:,}/{format_count(self._total, self._unit)}"
        return f"{format_bytes(done)}/{format_bytes(self._total)}"

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),  # a file may be called [b]x[/i].gguf
            BarColumn(),
            TextColumn("{task.fields[done]}", markup=False, style="progress.download"),
            TextColumn("{task.fields[left]}", markup=False, style="progress.remaining"),
        )
        self._bar = self._stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        self._task = self._bar.add_task(printable(self._title), total=self._total, done="", left="")
        self._show = self._bar

    def close(self) -> None:
        """Take the bar off the screen."""
        self._stack.close()


def time_left(elapsed_s: float, done: int, to_do: int) -> str:
    """How long the rest takes at the rate so far, as `1:05` or `1:02:30`; nothing while there is no rate."""
    if done <= 0 or to_do <= 0:
        return ""
    minutes, seconds = divmod(math.ceil(elapsed_s * to_do / done), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes}:{seconds:02d} left"
