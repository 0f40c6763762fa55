"""Where a prompt leaves what is stored: noted along the way of a look-up, told once at its end.

The nearest stored prompt is the one that shares the longest beginning. A branch that was left earlier says nothing:
what another one shared behind it was found, and may be restored.
"""

from __future__ import annotations

from llmcli.base.records import dataclass
from llmcli.cache_store.keys import TOKEN_BYTES, unpack_tokens

_CONTEXT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the prompt leaves the nearest stored one: the position, and the ids on both sides of it.

    start_tokens   position of the first id in `stored` and in `prompt`
    """

    position_tokens: int
    start_tokens: int
    stored: tuple[int, ...]
    prompt: tuple[int, ...]


class Parting:
    """What one look-up of a prompt (packed tokens) has seen so far. No dataclass: every run makes one.

    reached_tokens   the longest beginning of it that is stored, restorable or not
    """

    __slots__ = ("_left", "_prompt", "reached_tokens")

    def __init__(self, prompt: bytes) -> None:
        self._prompt = prompt
        self.reached_tokens = 0
        self._left: tuple[int, bytes] | None = None

    def went_to(self, end_tokens: int) -> None:
        """The prompt is stored up to here."""
        if end_tokens > self.reached_tokens:
            self.reached_tokens, self._left = end_tokens, None

    def left(self, start_tokens: int, tokens: bytes, shared: int) -> None:
        """It shares the first `shared` tokens of a block that begins at `start_tokens`, and not the next."""
        end = start_tokens + shared
        self.went_to(end)
        goes_on = end < len(self._prompt) // TOKEN_BYTES
        if end and end == self.reached_tokens and self._left is None and goes_on:
            self._left = (end, tokens[shared * TOKEN_BYTES :])

    def difference(self) -> Difference | None:
        """Where it leaves the nearest one; None where it goes on behind the end of that, or nothing near is stored."""
        if self._left is None:
            return None
        position, stored = self._left
        start, end = max(0, position - _CONTEXT_TOKENS), position + _CONTEXT_TOKENS
        same = self._prompt[start * TOKEN_BYTES : position * TOKEN_BYTES]
        return Difference(
            position,
            start,
            unpack_tokens(same + stored[: _CONTEXT_TOKENS * TOKEN_BYTES]),
            unpack_tokens(self._prompt[start * TOKEN_BYTES : end * TOKEN_BYTES]),
        )
