"""What a conversation holds in memory between its turns, and how a turn goes back to where it may go on from.

The rule that makes answers repeatable: **every prompt is computed as a cold run would compute it.** The KV of tokens
that were decoded one by one differs in its last bits from that of the same tokens in a batch, and so does the KV of
the last, shorter piece of a prompt. So the next turn goes on from the last grid point before the answer: the answer's
tokens are computed once more, as a batch, which takes a fraction of the time that decoding them took (and is done
ahead, while the reader reads: `ahead`). An answer then depends on the tokens before it alone: a chat that was never
left, one that was resumed from the store, one that was recomputed and a single cold run give the same.

`--cache max` gives that up: whatever is held is kept, the decoded answer included.

Memory that cannot be cut (recurrent states, windows that are not kept in full) is wound back to a snapshot, taken at
the grid point before the assistant's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmcli.cache_store.keys import GRID_TOKENS
from llmcli.engine.context import SEQUENCE, AbortedError, Context
from llmcli.engine.engine import Engine
from llmcli.engine.prefix_recipe import common_length
from llmcli.engine.prefix_turns import TurnCache

_MOST_SNAPSHOTS = 4
# How much is computed between two looks at whether somebody waits.
_AHEAD_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The part of a state that cannot be cut, as it was behind `tokens`."""

    tokens: tuple[int, ...]
    state: bytes


class ChatKv:
    """The session of one conversation, wound back and forward.

    prefix        the store, None where it is off
    exact_tokens  how many of the session's first tokens are as a cold run's
    """

    def __init__(self, engine: Engine, prefix: TurnCache | None, *, inexact: bool) -> None:
        self._session, self._context = engine.session, engine.context
        self._ubatch_tokens, self._inexact = engine.plan.n_ubatch, inexact
        self.prefix, self.exact_tokens = prefix, 0
        self._snapshots: list[Snapshot] = []
        self._is_cut_anywhere = not needs_snapshots(engine.context)
        self._snapshot_at = 0

    @property
    def grid_tokens(self) -> int:
        """Cuts at multiples of it change no bit."""
        if self._ubatch_tokens % GRID_TOKENS:  # cuts of its own, which no other is equal to
            return self._ubatch_tokens
        return (self.prefix.grid_tokens if self.prefix else None) or GRID_TOKENS

    def exact_end(self, count: int) -> int:
        """The last grid point before a prompt of `count` tokens ends."""
        return max(count - 1, 0) // self.grid_tokens * self.grid_tokens

    def begin(self, ids: Sequence[int], *, stable_tokens: int, boundaries: Sequence[int] = ()) -> int:
        """Hold the beginning of `ids`, as much as may be held, and get ready for the rest: how many tokens were kept.

        stable_tokens   up to where the prompt of the next turn will be the same
        What the store restored comes on top; the session tells how much there is now.
        """
        held = self._wind_back(ids)
        if self.prefix:
            exact = min(held, self.exact_tokens) if self._inexact else None
            self.prefix.begin(ids, boundaries, held_tokens=held, exact_tokens=exact)
            if self.prefix.report.restored_tokens:
                held = 0
        self._snapshot_at = self.exact_end(stable_tokens)
        if not held:
            self.exact_tokens = self.prefix.exact_restored_tokens if self.prefix else 0
        return held

    @property
    def cuts(self) -> tuple[int, ...]:
        """Where the prefill must pause."""
        own = () if self._is_cut_anywhere else (self._snapshot_at,)
        return (*(self.prefix.cuts if self.prefix else ()), *own)

    def advanced(self) -> None:
        """A piece of the prompt is computed."""
        if self.prefix:
            self.prefix.advance()
        self._take_snapshot()

    def computed(self, count: int) -> None:
        """A prompt of `count` tokens is computed; what comes now is decoded."""
        if not self._inexact or self.exact_tokens >= self.exact_end(count):
            self.exact_tokens = self.exact_end(count)

    def ahead(self, ids: Sequence[int], go_on: Callable[[], bool]) -> int:
        """Compute the whole grid of `ids`, a conversation up to the end of an answer: how many tokens that took.

        Ends early where `go_on` says so, and where the stop flag is set.
        """
        if self._inexact:
            self._save_decoded(ids)
            return 0
        if self.grid_tokens != GRID_TOKENS:  # pieces would end where a cold run makes no cut
            return 0
        end = self.exact_end(len(ids))
        self.begin(ids, stable_tokens=len(ids))
        computed = 0
        try:
            while len(self._session.tokens) < end and go_on():
                position = len(self._session.tokens)
                step = min(position - position % _AHEAD_TOKENS + _AHEAD_TOKENS, end)
                self._session.prefill(ids[position:step], cuts=self.cuts)
                computed += step - position
                self.advanced()
        except AbortedError:
            pass
        self.exact_tokens = len(self._session.tokens) // self.grid_tokens * self.grid_tokens
        return computed

    def _save_decoded(self, ids: Sequence[int]) -> None:
        """Let the store have what is held as it is."""
        held = common_length(self._session.tokens, ids)
        if self.prefix and held == len(self._session.tokens):
            self.prefix.begin(ids[:held], held_tokens=held, exact_tokens=min(held, self.exact_tokens))

    def _wind_back(self, ids: Sequence[int]) -> int:
        """Keep what the session may keep for `ids`, the last of which is always computed."""
        session = self._session
        common = common_length(session.tokens, ids[:-1]) if session.is_whole else 0
        if not self._inexact:
            common = min(common, self.exact_tokens) // self.grid_tokens * self.grid_tokens
        if not session.tokens or common == len(session.tokens):
            return common
        if not common or not self._cut(common):
            return self._back_to_snapshot(ids, common)
        return common

    def _cut(self, length: int) -> bool:
        if not self._context.remove_from(length):
            return False
        del self._session.tokens[length:]
        return True

    def _back_to_snapshot(self, ids: Sequence[int], most: int) -> int:
        """Go back to the latest snapshot of the beginning of `ids` that still fits; else the session is empty."""
        for one in sorted(self._snapshots, key=lambda found: -len(found.tokens)):
            length = len(one.tokens)
            if length <= most and tuple(ids[:length]) == one.tokens and self._put_back(one):
                return length
        self._session.forget()
        return 0

    def _put_back(self, snapshot: Snapshot) -> bool:
        written = self._context.write_state(snapshot.state, SEQUENCE, partial=True)
        return written == len(snapshot.state) and self._cut(len(snapshot.tokens))

    def _take_snapshot(self) -> None:
        position = self._snapshot_at
        if self._is_cut_anywhere or not position or len(self._session.tokens) != position:
            return
        buffer = bytearray(self._context.state_bytes(SEQUENCE, partial=True))
        count = self._context.read_state(buffer, SEQUENCE, partial=True)
        others = [one for one in self._snapshots if len(one.tokens) != position]
        taken = Snapshot(tuple(self._session.tokens), bytes(buffer[:count]))
        self._snapshots = [*others[1 - _MOST_SNAPSHOTS :], taken]


def needs_snapshots(context: Context) -> bool:
    """Whether the memory cannot be cut at any position."""
    model = context.model
    return model.is_recurrent or model.is_hybrid or bool(model.window_tokens and not context.plan.swa_full)
