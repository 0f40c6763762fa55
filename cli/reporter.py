"""What the user sees on stderr while something is on its way: notes, progress, statistics.

Progress is a bar on a terminal and appears only when the work takes long enough to wonder; elsewhere it is nothing,
so that logs stay readable.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from llmcli.base.settings import Settings
from llmcli.base.text import printable
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
    def _progress(self, title: str, total_bytes: int | None) -> Iterator[Progress]:
        if not self._bars:
            yield SilentProgress()
            return
        bar = _LateBar(title, total_bytes)
        try:
            yield bar
        finally:
            bar.close()


class _LateBar:
    """A rich progress bar that is made (and rich imported) only once the task has run for a while."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total, self._begun = title, total, time.monotonic()
        self._stack = contextlib.ExitStack()
        self._show: object = None

    def update(self, done_bytes: int) -> None:
        """Tell the bytes done in all."""
        if self._show is None:
            if time.monotonic() - self._begun < _BAR_AFTER_S:
                return
            self._open()
        self._bar.update(self._task, completed=done_bytes)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),  # a file may be called [b]x[/i].gguf
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
        )
        self._bar = self._stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        self._task = self._bar.add_task(printable(self._title), total=self._total)
        self._show = self._bar

    def close(self) -> None:
        """Take the bar off the screen."""
        self._stack.close()
