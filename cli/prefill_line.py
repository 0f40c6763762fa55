"""How far a long prompt is, on one line of a terminal's stderr; gone again when the answer begins.

It comes by a timer: on a small machine the first piece of a prompt alone takes long enough to wonder. Short prompts
show nothing.
"""

from __future__ import annotations

import threading
from types import TracebackType

from llmcli.cli import output

_AFTER_S = 0.7
_LEAST_TOKENS = 64  # fewer take no time worth a line, even on a busy machine
_WIPE = "\r\x1b[K"


class PrefillLine:
    """Use with `with`, so that no error message is written behind it. Does nothing where `shown` is False."""

    def __init__(self, *, shown: bool) -> None:
        self._is_shown = shown
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._is_due = self._is_drawn = False
        self._done = self._total = self._prompts = 0

    def __enter__(self) -> PrefillLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wipe()

    def tell(self, done: int, total: int) -> None:
        """So many tokens of the prompt are computed; told with 0 when it begins."""
        if not self._is_shown or total < _LEAST_TOKENS:
            return
        if done >= total:
            self.wipe()
            return
        with self._lock:
            self._done, self._total = done, total
            if self._timer is None:
                self._timer = threading.Timer(_AFTER_S, self._fall_due, (self._prompts,))
                self._timer.daemon = True
                self._timer.start()
            elif self._is_due:
                self._draw()

    def wipe(self) -> None:
        """Take the line off the screen; the next prompt begins anew."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._is_drawn:
                output.stderr_text(_WIPE)
            self._timer, self._is_due, self._is_drawn = None, False, False
            self._prompts += 1

    def _fall_due(self, prompt: int) -> None:
        with self._lock:
            if prompt == self._prompts:  # not one that was computed meanwhile
                self._is_due = True
                self._draw()

    def _draw(self) -> None:
        output.stderr_text(f"{_WIPE}computing the prompt: {self._done:,} of {self._total:,} tokens")
        self._is_drawn = True
