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
    takes_commands: bool,
    longest_token_bytes: int,
) -> Fitted:
    """The prompt for `user`, such that there is room for an answer. Raises ContextOverflowError naming both numbers,
    and what would help here: `takes_commands` where that may be a command.
    """
    least = len(user.encode("utf-8", "surrogatepass")) // max(longest_token_bytes, 1)
    if least >= n_ctx:  # tells a hopeless one without tokenizing megabytes
        raise _overflow(f"this message alone has at least {format_count(least, 'token')}", n_ctx)
    answer = n_ctx // _ANSWER_SHARE if max_tokens is None else max(1, min(max_tokens, n_ctx // 2))
    laid = layout.lay_out(history, user)
    if len(laid.ids) + (1 if policy == "error" else answer) <= n_ctx:
        return Fitted(laid, history.hidden)
    if policy == "error":
        raise _refusal(layout, history, user, laid, n_ctx, takes_commands=takes_commands)
    room = _Room(n_ctx - answer, n_ctx - answer - n_ctx // _FREE_SHARE)
    found = _drop(layout, history, user, room, keep=keep_turns)
    if len(found.laid.ids) > room.most_tokens and keep_turns:
        found = _drop(layout, history, user, room, keep=0)  # rather without the first turns than not at all
    if len(found.laid.ids) >= n_ctx:
        raise _alone(history, found.laid, n_ctx)
    return found


def _refusal(
    layout: ChatLayout, history: History, user: str, laid: Laid, n_ctx: int, *, takes_commands: bool
) -> ContextOverflowError:
    """Why --on-overflow error refuses. Leaving turns out is advised where that would make the message fit."""
    alone = layout.lay_out(history, user, hidden=(0, len(history.turns))) if history.visible() else laid
    if len(alone.ids) >= n_ctx:
        return _alone(history, alone, n_ctx)
    what = f"the conversation has {format_count(len(laid.ids), 'token')} with this message"
    commands = "/undo or /clear, " if takes_commands else ""
    return _overflow(what, n_ctx, hint=f"a larger -c, {commands}or --on-overflow drop")


def _alone(history: History, laid: Laid, n_ctx: int) -> ContextOverflowError:
    """There are no turns that could be left out."""
    who = "this message has" if history.system is None else "this message and the system prompt have"
    return _overflow(f"{who} {format_count(len(laid.ids), 'token')}", n_ctx)


@dataclass(frozen=True, slots=True)
class _Room:
    """How long a prompt may be, and how long it is to be once turns are dropped."""

    most_tokens: int
    low_water_tokens: int


def _drop(layout: ChatLayout, history: History, user: str, room: _Room, *, keep: int) -> Fitted:
    """Leave out the fewest turns behind the first `keep` that reach the low-water mark; all of them where none do."""
    count, (old_start, old_end) = len(history.turns), history.hidden
    start = min(keep, count) if old_start == old_end else min(keep, old_start)
    low, high = max(old_end, start), count
    laid = layout.lay_out(history, user, hidden=(start, high))
    if high > low and len(laid.ids) <= room.most_tokens:
        while low < high:
            middle = (low + high) // 2
            if len(layout.lay_out(history, user, hidden=(start, middle)).ids) <= room.low_water_tokens:
                high = middle
            else:
                low = middle + 1
        laid = layout.lay_out(history, user, hidden=(start, high))
    hidden = (start, high) if high > start else history.hidden
    return Fitted(laid, hidden, dropped=(hidden[1] - hidden[0]) - (old_end - old_start))


def _overflow(what: str, n_ctx: int, *, hint: str = "a larger -c, or a shorter message") -> ContextOverflowError:
    return ContextOverflowError(f"{what}, and the context {n_ctx:,}", hint=hint)
