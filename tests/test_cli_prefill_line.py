"""The line that tells how far a prompt is: when it comes, and that it always goes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.cli import prefill_line
from llmcli.cli.prefill_line import PrefillLine
from tests.cli_run_case import engine_memo, known_engine  # noqa: F401  # fixtures
from tests.conftest import OpenTerminal
from tests.fixtures.terminal import CTRL_C

WIPE = "\r\x1b[K"


class Clock:
    """Stands for threading.Timer: falls due when the test says so."""

    made: list[Clock]

    def __init__(self, after_s: float, call: Callable[[int], None], arguments: tuple[int]) -> None:
        assert after_s == 0.7
        self.fall_due, self.is_cancelled, self.daemon = functools.partial(call, *arguments), False, False
        Clock.made.append(self)

    def start(self) -> None:
        assert self.daemon

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    Clock.made = []
    monkeypatch.setattr(prefill_line.output, "stderr_text", found.append)  # type: ignore[attr-defined]
    monkeypatch.setattr(threading, "Timer", Clock)
    return found


def test_it_comes_when_it_takes_long_and_goes_when_it_is_done(written: list[str]) -> None:
    with PrefillLine(shown=True) as line:
        line.tell(0, 1541)
        line.tell(256, 1541)
        assert written == []
        Clock.made[0].fall_due()
        line.tell(512, 1541)
        line.tell(1541, 1541)
        assert written == [
            f"{WIPE}computing the prompt: 256 of 1,541 tokens",
            f"{WIPE}computing the prompt: 512 of 1,541 tokens",
            WIPE,
        ]
        line.tell(0, 100)  # the next prompt waits anew
        assert (len(Clock.made), len(written)) == (2, 3)
    assert Clock.made[1].is_cancelled
    assert len(written) == 3


def test_an_error_in_the_middle_wipes_it(written: list[str]) -> None:
    line = PrefillLine(shown=True)
    line.tell(0, 1541)
    Clock.made[0].fall_due()
    with pytest.raises(ZeroDivisionError), line:
        raise ZeroDivisionError
    assert written[-1] == WIPE
    Clock.made[0].fall_due()  # it was on its way
    assert written[-1] == WIPE


@pytest.mark.parametrize(("shown", "total"), [(False, 1541), (True, 63)])
def test_where_nothing_is_shown(written: list[str], shown: bool, total: int) -> None:
    with PrefillLine(shown=shown) as line:
        line.tell(0, total)
        line.tell(total, total)
    assert (written, Clock.made) == ([], [])


@pytest.fixture
def long_prompt(scripted_model: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    text = tmp_path / "long.txt"
    text.write_text("".join(f"{number:05}-the-quick-brown-fox-jumps-over...\n" for number in range(800)))
    return scripted_model(["Hello", " world"], n_ctx=65536), text


def test_a_long_prompt_at_a_terminal(open_terminal: OpenTerminal, long_prompt: tuple[Path, Path]) -> None:
    model, text = long_prompt
    with open_terminal("run", "-t", "1", "-c", "65536", "-m", model, "-f", text, "What?") as terminal:
        terminal.read_until("computing the prompt: ")
        terminal.send(CTRL_C)
        assert terminal.wait() == 130
        assert terminal.screen.endswith(b"\r\x1b[K\r\nerror: interrupted\r\n") or terminal.screen.endswith(
            b"\r\x1b[Kerror: interrupted\r\n"
        )
