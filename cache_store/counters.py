"""What the store did for its user: numbers collected while running, written to the index in one go."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from llmcli.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals since the index was made.

    hit_tokens and miss_tokens are what prompt-cache billing counts: restored, and computed.
    evicted for the budget, expired by lifetime, removed by the user (`llmcli cache rm`, `prune`)
    """

    lookups: int
    hits: int
    hit_tokens: int
    miss_tokens: int
    saved_s: float
    read_bytes: int
    written_bytes: int
    evicted_bytes: int
    expired_bytes: int
    removed_bytes: int
    damaged_blocks: int

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were restored; 0 before the first prompt."""
        seen = self.hit_tokens + self.miss_tokens
        return self.hit_tokens / seen if seen else 0.0

    @classmethod
    def of(cls, totals: Mapping[str, float]) -> Usage:
        """From the index's counters."""
        return cls(
            saved_s=totals.get("saved_s", 0.0),
            **{name: int(totals.get(name, 0)) for name in cls.__slots__ if name != "saved_s"},
        )


class Pending:
    """Changes to rows and counters that wait for the next write to the index; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}
        self._uses: dict[bytes, tuple[float, int]] = {}
        self._damaged: set[bytes] = set()

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + amount

    def use(self, key: bytes, now_s: float) -> None:
        """A block was restored."""
        with self._lock:
            self._uses[key] = (now_s, self._uses.get(key, (0.0, 0))[1] + 1)

    def damaged(self, key: bytes) -> None:
        """A block's file was found damaged and removed."""
        with self._lock:
            self._damaged.add(key)

    def take(self) -> tuple[dict[str, float], dict[bytes, tuple[float, int]], set[bytes]]:
        """Everything collected since the last time: counts, uses (when, how often), damaged keys."""
        with self._lock:
            taken = self._counts, self._uses, self._damaged
            self._counts, self._uses, self._damaged = {}, {}, set()
        return taken

    def __bool__(self) -> bool:
        return bool(self._counts or self._uses or self._damaged)
