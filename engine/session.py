"""Which tokens are in the KV cache, and how more of them get there.

Every prefill is cut on the exact grid: a piece ends where the next multiple of n_ubatch begins, counted from position
0. A token's KV then depends on the tokens before it alone, and not on where a run happened to start, so a restored
prefix gives the very bits that a cold run gives (cuts at multiples of 64 were measured to be exact, others were not).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llmcli.base.errors import ContextOverflowError, LlmcliError
from llmcli.engine.context import Context


class Session:
    """One sequence of tokens in one context. `tokens` is what the cache holds, in order."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.tokens: list[int] = []
        self.is_whole = True  # False once a range was dropped: the KV of later tokens still knows what is gone

    @property
    def room(self) -> int:
        """How many more tokens fit."""
        return self.context.n_ctx - len(self.tokens)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        cuts: Sequence[int] = (),
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Append `tokens` (at least one) and leave the logits of the last one ready.

        cuts          positions at which a piece ends besides those of the grid
        on_progress   told (tokens done, tokens to do) after each piece
        Raises ContextOverflowError before anything is computed if they do not fit; AbortedError in the middle, with
        `tokens` telling how far it came.
        """
        if len(tokens) > self.room:
            raise ContextOverflowError(
                f"{len(tokens):,} tokens do not fit: {self.room:,} are left of a context of {self.context.n_ctx:,}"
            )
        done = 0
        for start, end in _pieces(len(self.tokens), len(tokens), self.context.plan.n_ubatch, cuts):
            piece = tokens[start:end]
            self._compute(piece, want_logits=end == len(tokens))
            done += len(piece)
            if on_progress:
                on_progress(done, len(tokens))

    def decode(self, token: int) -> None:
        """Append one generated token and leave its logits ready. Raises as `Context.decode` does."""
        self._compute((token,), want_logits=True)

    def _compute(self, tokens: Sequence[int], *, want_logits: bool) -> None:
        try:
            self.context.decode(tokens, len(self.tokens), want_logits=want_logits)
        except LlmcliError:
            del self.tokens[self.context.length() :]
            raise
        self.tokens += tokens

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens. Memory that cannot be cut (recurrent) is cleared whole."""
        if length >= len(self.tokens):
            return
        if length and self.context.remove_from(length):
            del self.tokens[length:]
        else:
            self.context.clear()
            self.tokens.clear()
            self.is_whole = True

    def drop(self, start: int, end: int) -> None:
        """Drop the tokens at [start, end) and close the gap: a context shift. Raises LlmcliError if the memory
        cannot.
        """
        self.context.drop_range(start, end)
        del self.tokens[start:end]
        self.is_whole = False


def _pieces(position: int, count: int, grid: int, cuts: Sequence[int] = ()) -> Iterator[tuple[int, int]]:
    """Cut `count` tokens that begin at `position` at multiples of `grid` and at `cuts`: (start, end) within
    the count.
    """
    start = 0
    while start < count:
        end = min(count, start + grid - (position + start) % grid)
        end = min((cut - position for cut in cuts if start < cut - position < end), default=end)
        yield start, end
        start = end
