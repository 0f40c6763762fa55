"""When a chat may draw its next frame: drawing takes a core that the answer wants."""

from __future__ import annotations

import time
from collections.abc import Callable

FASTEST_S, SLOWEST_S = 0.08, 0.25  # between two frames: more often nobody can see, more seldom everybody does
_SHARE = 0.04  # of a core; a frame takes 2 to 7 ms of one, by machine


class FramePace:
    """Spreads frames so that drawing, with the keys between, takes no more than its share, within the two limits.

    cpu_s   the processor time of the thread that draws
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu = clock, cpu_s
        self._drawn_s, self._cpu_s, self._pause_s = clock() - SLOWEST_S, 0.0, FASTEST_S

    def wait_s(self) -> float:
        """How long the next frame has to wait; 0 or less: not at all."""
        return self._drawn_s + self._pause_s - self._clock()

    def drawn(self) -> None:
        """A frame is made. What the one before has cost, painting included, decides when the next may come."""
        before, self._cpu_s = self._cpu_s, self._cpu()
        self._pause_s = min(max(FASTEST_S, (self._cpu_s - before) / _SHARE), SLOWEST_S)
        self._drawn_s = self._clock()
