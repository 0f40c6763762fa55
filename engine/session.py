"""Which tokens are in the KV cache, and how more of them get there.

Every prefill is cut in one way, counted from position 0: at multiples of n_ubatch, and once more at the last multiple
of 64 before its end. A token's KV and the last token's logits then depend on the tokens alone, and not on where a run
happened to start: a run that begins behind a restored prefix makes the cuts of a cold one. Cuts at multiples of 64 were
measured to change no bit; others do. So does the size of the last piece: with 64 rows and more, llama.cpp's flash
attention on CPUs takes another path than with fewer, and a cold run must not end in 250 rows where a warm one has 58.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llmcli.base.errors import ContextOverflowError, LlmcliError
from llmcli.cache_store.keys import GRID_TOKENS
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
            self.forget()

    def forget(self) -> None:
        """Empty the cache, whatever it holds."""
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


def _pieces(position: int, count: int, n_ubatch: int, cuts: Sequence[int] = ()) -> Iterator[tuple[int, int]]:
    """Cut `count` tokens that begin at `position` on the grid and at `cuts`: (start, end) within the count.

    A u-batch that is no multiple of the grid makes cuts of its own, which no other is equal to; the last cut is then of
    no use.
    """
    last = (position + count - 1) // GRID_TOKENS * GRID_TOKENS
    wanted = (*cuts, last) if n_ubatch % GRID_TOKENS == 0 else cuts
    start = 0
    while start < count:
        end = min(count, start + n_ubatch - (position + start) % n_ubatch)
        end = min((cut - position for cut in wanted if start < cut - position < end), default=end)
        yield start, end
        start = end
