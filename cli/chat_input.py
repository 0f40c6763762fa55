"""Keys from the terminal, with pastes taken out in one piece: of any size, at once, and never as Enter keys.

prompt_toolkit's own reader looks through the whole paste again for every kilobyte of it, which takes minutes for 10 MB.
"""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Callable
from typing import NamedTuple, TextIO

from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

_BEGIN, _END = "\x1b[200~", "\x1b[201~"
_READ_BYTES = 1 << 16
# Nobody types a kilobyte between two reads: this is a paste into a terminal that does not mark pastes.
_BURST_CHARACTERS = 1000
_BURST_PAUSE_S = 0.3


class Piece(NamedTuple):
    """A part of the input: keys, or what was pasted."""

    text: str
    pasted: bool


class PasteSplitter:
    """Takes the input as it comes, gives keys and whole pastes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paste: list[str] | None = None
        self._held = ""
        self._burst_until_s = float("-inf")

    def feed(self, data: str) -> list[Piece]:
        """The pieces that are complete with this."""
        pieces = list[Piece]()
        data, self._held = self._held + data, ""
        while data:
            data = self._in_paste(data, pieces) if self._paste is not None else self._outside(data, pieces)
        return pieces

    def flush(self) -> list[Piece]:
        """Keys that were held back because a mark might have begun with them."""
        if self._paste is not None or not self._held:
            return []
        held, self._held = self._held, ""
        return [Piece(held, pasted=False)]

    def _outside(self, data: str, pieces: list[Piece]) -> str:
        keys, mark, rest = data.partition(_BEGIN)
        if mark:
            self._paste = []
        else:
            at = _begun(keys)
            keys, self._held = keys[:at], keys[at:]
        if keys:
            pieces.append(Piece(keys, pasted=self._is_burst(keys)))
        return rest

    def _in_paste(self, data: str, pieces: list[Piece]) -> str:
        assert self._paste is not None  # noqa: S101  # asked by the caller
        text, mark, rest = data.partition(_END)
        if not mark:
            keep = min(len(_END) - 1, len(data))
            self._paste.append(data[:-keep])
            self._held = data[-keep:]
            return ""
        pieces.append(Piece("".join([*self._paste, text]), pasted=True))
        self._paste = None
        return rest

    def _is_burst(self, keys: str) -> bool:
        now = self._clock()
        if "\x1b" in keys or (len(keys) < _BURST_CHARACTERS and now > self._burst_until_s):
            return False
        self._burst_until_s = now + _BURST_PAUSE_S
        return True


def _begun(keys: str) -> int:
    """Where a paste's mark begins that `keys` end within; their length where none does.

    An ESC key is held back too, as prompt_toolkit itself does until nothing has come for a while.
    """
    at = keys.rfind("\x1b")
    return at if at >= 0 and _BEGIN.startswith(keys[at:]) else len(keys)


class ChatInput(Vt100Input):
    """The terminal's input for prompt_toolkit. UTF-8 whatever the locale."""

    def __init__(self, stdin: TextIO) -> None:
        super().__init__(stdin)
        self._splitter = PasteSplitter()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._closed = False

    def read_keys(self) -> list[KeyPress]:
        """What was typed and pasted since the last call."""
        try:
            data = os.read(self.fileno(), _READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:  # the terminal is gone
            data = b""
        self._closed = not data
        return self._presses(self._splitter.feed(self._decoder.decode(data)))

    def flush_keys(self) -> list[KeyPress]:
        """Keys that might have been the beginning of others."""
        presses = self._presses(self._splitter.flush())
        self.vt100_parser.flush()
        return presses + self._taken()

    @property
    def closed(self) -> bool:
        """Whether the terminal has gone away."""
        return self._closed

    def _presses(self, pieces: list[Piece]) -> list[KeyPress]:
        for piece in pieces:
            if piece.pasted:
                self._buffer.append(KeyPress(Keys.BracketedPaste, piece.text))
            else:
                self.vt100_parser.feed(piece.text)
        return self._taken()

    def _taken(self) -> list[KeyPress]:
        taken, self._buffer = self._buffer, []
        return taken
