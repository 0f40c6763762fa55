"""Frames of a chat, on a clock of the test's own."""

from __future__ import annotations

import pytest

from llmcli.cli.chat_pace import FASTEST_S, SLOWEST_S, FramePace


@pytest.mark.parametrize(
    ("cost_s", "pause_s"), [(0.0, FASTEST_S), (0.002, FASTEST_S), (0.006, 0.15), (0.01, SLOWEST_S), (3.0, SLOWEST_S)]
)
def test_frames_come_as_often_as_their_cost_allows(cost_s: float, pause_s: float) -> None:
    now = [100.0, 7.0]  # the clock, and the processor time of the thread
    pace = FramePace(lambda: now[0], lambda: now[1])
    assert pace.wait_s() <= 0
    pace.drawn()
    now[1] += cost_s
    pace.drawn()
    assert pace.wait_s() == pytest.approx(pause_s)
    now[0] += pause_s + 0.01
    assert pace.wait_s() < 0
