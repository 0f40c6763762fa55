"""stderr while something is on its way: what -q, -v, a pipe and a terminal make of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import re
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from llmcli.base.settings import Settings, load
from llmcli.cli import output, reporter
from llmcli.cli.reporter import StderrReporter
from llmcli.engine.log import DEBUG, INFO, WARN


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TERM", "xterm-256color")
    return load()


@pytest.fixture
def err(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    return lambda: capfd.readouterr().err


class Screen:
    """A terminal in place of stderr; calling it tells what it got since the last call."""

    def __init__(self, master: int, slave: int) -> None:
        self._master = master
        self.stream = os.fdopen(slave, "w", encoding="utf-8")

    def __call__(self) -> str:
        self.stream.flush()
        pieces = []
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._master, 65536):
                pieces.append(piece)
        return b"".join(pieces).decode()

    @contextlib.contextmanager
    def as_stderr(self) -> Iterator[None]:
        """For rich, which writes to sys.stderr; pytest sets that anew for each phase of a test."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", self.stream)
            yield


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    master, slave = pty.openpty()
    monkeypatch.setattr(output, "_STDERR", slave)
    monkeypatch.setattr(reporter, "_STDERR", slave)
    os.set_blocking(master, False)
    screen = Screen(master, slave)
    yield screen
    screen.stream.close()
    os.close(master)


def test_a_note_is_given_once_and_on_one_line(settings: Settings, err: Callable[[], str]) -> None:
    made = StderrReporter(settings)
    made.notify("a\x1b[31m\nb")
    made.notify("a\x1b[31m\nb")
    made.notify("c")
    assert err() == "a\\x1b[31m\\nb\nc\n"


def test_quiet_drops_notes_thinking_and_progress(settings: Settings, terminal: Screen) -> None:
    made = StderrReporter(settings, quiet=True)
    made.notify("note")
    made.thinking("hm")
    made.detail("detail")
    run_slow_task(made, terminal)
    assert terminal() == ""


def test_details_come_with_verbose_only(settings: Settings, err: Callable[[], str]) -> None:
    StderrReporter(settings).detail("x\x07")
    assert err() == ""
    StderrReporter(settings, verbose=True).detail("x\x07")
    assert err() == "x\\x07\n"


def test_the_native_log_comes_with_verbose_only_and_escaped(settings: Settings, err: Callable[[], str]) -> None:
    for made in (StderrReporter(settings), StderrReporter(settings, verbose=True)):
        made.native_log(DEBUG, "too much")
        made.native_log(INFO, "general.name = \x1b]0;x\x07")
        made.native_log(WARN, "careful")
    assert err() == "general.name = \\x1b]0;x\\x07\ncareful\n"


def test_thinking_in_a_pipe_is_text(settings: Settings, err: Callable[[], str]) -> None:
    StderrReporter(settings).thinking("hm\x1b…\n")
    assert err() == "hm\x1b…\n"


def test_thinking_on_a_terminal_is_dimmed_and_harmless(settings: Settings, terminal: Screen) -> None:
    StderrReporter(settings).thinking("hm\x1b")
    assert terminal() == "\x1b[2mhm\\x1b\x1b[0m"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_thinking_without_colour(name: str, value: str, monkeypatch: pytest.MonkeyPatch, terminal: Screen) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    StderrReporter(load()).thinking("hm\x1b")
    assert terminal() == "hm\\x1b"


def run_slow_task(made: StderrReporter, terminal: Screen, title: str = "loading x", after_s: float = 0.0) -> None:
    with terminal.as_stderr(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporter, "_BAR_AFTER_S", after_s)
        with made.progress(title, 2048) as task:
            task.update(1)
            task.update(1024)


def test_progress_on_a_terminal_is_a_bar_that_goes_away(settings: Settings, terminal: Screen) -> None:
    run_slow_task(StderrReporter(settings), terminal)
    shown = terminal()
    assert "loading x" in shown
    assert "2.0 KiB" in shown
    assert shown.endswith("\x1b[?25h\r\x1b[1A\x1b[2K")  # cursor back, up into the bar's line, line erased


@contextlib.contextmanager
def clock(*, step_s: float) -> Iterator[None]:
    """Between two looks at the clock `step_s` seconds pass."""
    now = itertools.count(step=step_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(now))
        yield


def test_work_that_is_counted_tells_its_steps_and_the_time_left(settings: Settings, terminal: Screen) -> None:
    """One step takes longer than the half minute that rich's own column looks back."""
    with terminal.as_stderr(), clock(step_s=65.0), StderrReporter(settings).progress("quality", 3, "window") as task:
        for done in range(3):
            task.update(done)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal())
    assert "2/3 windows 1:05 left" in " ".join(shown.split())
    assert "B" not in shown


def test_what_was_done_before_is_no_part_of_the_rate(settings: Settings, terminal: Screen) -> None:
    with terminal.as_stderr(), clock(step_s=10.0), StderrReporter(settings).progress("x", 100, "window") as task:
        task.update(90)
        task.update(91)
    assert "91/100 windows 1:30 left" in " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal()).split())


@pytest.mark.parametrize(
    ("elapsed_s", "done", "to_do", "words"),
    [(5, 0, 10, ""), (5, 5, 0, ""), (5, 5, 5, "0:05 left"), (0.2, 1, 1, "0:01 left"), (3600, 1, 2, "2:00:00 left")],
)
def test_time_left(elapsed_s: float, done: int, to_do: int, words: str) -> None:
    assert reporter.time_left(elapsed_s, done, to_do) == words


def test_a_title_is_no_markup_and_drives_no_terminal(settings: Settings, terminal: Screen) -> None:
    run_slow_task(StderrReporter(settings), terminal, "[/b][red]x\x1b]0;y\x07")
    assert "[/b][red]x\\x1b]0;y\\x07" in re.sub(r"\x1b\[[0-9;]*m", "", terminal())


def test_quick_work_shows_no_bar(settings: Settings, terminal: Screen) -> None:
    run_slow_task(StderrReporter(settings), terminal, after_s=60)
    assert terminal() == ""


def test_a_task_of_unknown_size_and_one_that_fails(settings: Settings, terminal: Screen) -> None:
    made = StderrReporter(settings)

    def work() -> None:
        with made.progress("fetching", None) as task:
            task.update(5)
            raise ZeroDivisionError

    with terminal.as_stderr(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporter, "_BAR_AFTER_S", 0.0)
        with pytest.raises(ZeroDivisionError):
            work()
    shown = terminal()
    assert "fetching" in shown
    assert "\x1b[?25h" in shown  # the cursor is back


def test_progress_on_a_dumb_terminal_is_nothing(monkeypatch: pytest.MonkeyPatch, terminal: Screen) -> None:
    monkeypatch.setenv("TERM", "dumb")
    run_slow_task(StderrReporter(load()), terminal)
    assert terminal() == ""


def test_progress_elsewhere_is_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, err: Callable[[], str]
) -> None:
    monkeypatch.setattr(reporter, "_BAR_AFTER_S", 0.0)
    with StderrReporter(settings).progress("loading", 2048) as task:
        task.update(1024)
    assert err() == ""


def test_lines_can_be_sent_elsewhere(settings: Settings, err: Callable[[], str]) -> None:
    told = list[str]()
    said = StderrReporter(settings, verbose=True)
    with said.redirected(told.append):
        said.notify("a\x1b")
        said.detail("b")
    said.notify("c")
    assert told == ["a\\x1b", "b"]
    assert err() == "c\n"
