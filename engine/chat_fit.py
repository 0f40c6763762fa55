"""Which turns the model sees when not all of them fit: the oldest go, whole, and many at once.

The system prompt and the first turns that are to stay do. Everything behind the gap moves to other positions and must
be computed again, so enough goes in one step that many turns fit before the next one: down to the low-water mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmcli.base.errors import ContextOverflowError
from llmcli.base.units import format_count
from llmcli.engine.chat_layout import ChatLayout, Laid
from llmcli.sessions.turns import History

ChatOverflow = Literal["error", "drop", "shift"]
# Shares of the context: kept for the answer where -n does not say how much it will be; free after turns were dropped.
_ANSWER_SHARE, _FREE_SHARE = 4, 4


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that fits. hidden: the turns that are left out now; dropped: how many more they are than before."""

    laid: Laid
    hidden: tuple[int, int]
    dropped: int = 0


def fit_turn(
    layout: ChatLayout,
    history: History,
    user: str,
    *,
    n_ctx: int,
    max_tokens: int | None,
    policy: ChatOverflow,
    keep_turns: int,
    longest_token_bytes: int,
) -> Fitted:
    """The prompt for `user`, such that there is room for an answer. Raises ContextOverflowError naming both numbers."""
    least = len(user.encode("utf-8", "surrogatepass")) // max(longest_token_bytes, 1)
    if least >= n_ctx:  # tells a hopeless one without tokenizing megabytes
        raise _overflow(f"this message alone has at least {format_count(least, 'token')}", n_ctx)
    answer = n_ctx // _ANSWER_SHARE if max_tokens is None else max(1, min(max_tokens, n_ctx // 2))
    laid = layout.lay_out(history, user)
    if len(laid.ids) + (1 if policy == "error" else answer) <= n_ctx:
        return Fitted(laid, history.hidden)
    if policy == "error":
        raise _overflow(
            f"the conversation has {format_count(len(laid.ids), 'token')} with this message", n_ctx,
            hint="a larger -c, /undo or /clear, or --on-overflow drop",
        )  # fmt: skip
    found = _drop(
        layout, history, user, most=n_ctx - answer, low_water=n_ctx - answer - n_ctx // _FREE_SHARE, keep=keep_turns
    )
    if len(found.laid.ids) >= n_ctx:
        raise _overflow(f"this message and what must stay have {format_count(len(found.laid.ids), 'token')}", n_ctx)
    return found


def _drop(layout: ChatLayout, history: History, user: str, *, most: int, low_water: int, keep: int) -> Fitted:
    """Leave out turns until the low-water mark is reached; where that cannot be had, as many as there are."""
    count, (old_start, old_end) = len(history.turns), history.hidden
    start = min(keep, count) if old_start == old_end else min(keep, old_start)
    low, high = max(old_end, start), count
    laid = layout.lay_out(history, user, hidden=(start, high))
    if high > low and len(laid.ids) <= most:
        while low < high:  # the fewest that reach the mark; all of them where none do
            middle = (low + high) // 2
            tried = layout.lay_out(history, user, hidden=(start, middle))
            if len(tried.ids) <= low_water:
                high = middle
            else:
                low = middle + 1
        laid = layout.lay_out(history, user, hidden=(start, high))
    hidden = (start, high) if high > start else history.hidden
    return Fitted(laid, hidden, dropped=(hidden[1] - hidden[0]) - (old_end - old_start))


def _overflow(what: str, n_ctx: int, *, hint: str = "a larger -c") -> ContextOverflowError:
    return ContextOverflowError(f"{what}, and the context {n_ctx:,}", hint=hint)
