"""The prefix store for a conversation: one prompt after the other, with what the session holds kept between them.

with open_prefix_cache(…, kind=TurnCache) as prefix:
    for each turn:
        prefix.begin(ids, held_tokens=…, exact_tokens=…)    restores where the session holds little of them
        … prefill the rest, calling prefix.advance() …
        prefix.finish(…)
"""

from __future__ import annotations

from collections.abc import Sequence

from llmcli.cache_store.store import Match
from llmcli.engine.kv_layout import STATE
from llmcli.engine.prefix import PrefixCache
from llmcli.engine.prefix_report import CacheReport

# From here on a restore is worth giving up what the session holds: twice as much, and a block more.
_TIMES, _MORE_TOKENS = 2, 256


class TurnCache(PrefixCache):
    """The store as seen by one conversation."""

    _exact_tokens: int | None = None  # in what the session held: up to there a cold run has the same bits

    def begin(
        self, ids: Sequence[int], boundaries: Sequence[int] = (), *, held_tokens: int, exact_tokens: int | None = None
    ) -> None:
        """Another prompt, of which the session holds the first `held_tokens` and nothing else.

        exact_tokens   how many of those are as a cold run's; None: all of them
        Afterwards the session holds as many, or more that were restored.
        """
        self.report = CacheReport(self._options.mode)
        self._saver, self._refs, self._passed, self._cold_logits = None, (), (), None
        self._exact_tokens, self._held_tokens, self._ids = exact_tokens, held_tokens, ids
        match = self._restorer.match(ids[:-1])
        if self._ends_at(match) >= _TIMES * held_tokens + _MORE_TOKENS or not held_tokens:
            self._exact_tokens, self._held_tokens = None, 0
            self._session.forget()
            self.restore(ids, boundaries)
            return
        self.report.source = "memory"
        wanted = self._state_positions(boundaries)
        self._states = tuple(position for position in wanted if position > held_tokens)
        self._prepare_saving(match)

    @property
    def exact_restored_tokens(self) -> int:
        """How many of the restored tokens are as a cold run's."""
        return next((ref.start_tokens for ref in self._refs if not ref.exact), self.report.restored_tokens)

    def _ends_at(self, match: Match) -> int:
        """Where a restore of `match` would end, as far as that can be told before."""
        if self.structure.ends_anywhere:
            return match.matched_tokens
        return next((ref.end_tokens for ref in reversed(match.whole_blocks) if STATE in ref.part_bytes), 0)

    def _exact_end(self, start: int) -> int:
        end = super()._exact_end(start)
        return end if self._exact_tokens is None else max(start, min(end, self._exact_tokens))
