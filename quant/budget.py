"""The best types under a size: each tensor has options with a size and a cost, and the sum of the costs is least.

For a price per byte each tensor takes the option that is cheapest with its bytes paid for; the price is the lowest at
which all fits, and what room is left goes to the upgrades that gain most for their bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_STEPS = 80


@dataclass(frozen=True, slots=True)
class Option:
    """One type for one tensor."""

    tensor_type: str
    nbytes: int
    cost: float


def choose(options: Mapping[str, Sequence[Option]], budget_bytes: int) -> dict[str, Option] | None:
    """The option of each tensor; None where not even the smallest ones fit."""
    fronts = {name: _front(found) for name, found in options.items()}
    if _total({name: front[0] for name, front in fronts.items()}) > budget_bytes:
        return None
    low, high = 0.0, _highest_price(fronts)
    for _ in range(_STEPS):
        price = (low + high) / 2
        if _total(_at_price(fronts, price)) <= budget_bytes:
            high = price
        else:
            low = price
    return _filled(fronts, _at_price(fronts, high), budget_bytes)


def _front(found: Sequence[Option]) -> list[Option]:
    """Smallest first, without those that cost as much as a smaller one."""
    kept: list[Option] = []
    for option in sorted(found, key=lambda o: (o.nbytes, o.cost)):
        if not kept or option.cost < kept[-1].cost:
            kept.append(option)
    return kept


def _highest_price(fronts: Mapping[str, Sequence[Option]]) -> float:
    """A price at which every tensor takes its smallest option."""
    steps = [
        (a.cost - b.cost) / (b.nbytes - a.nbytes)
        for front in fronts.values()
        for i, a in enumerate(front)
        for b in front[i + 1 :]
    ]
    return 2 * max(steps, default=0.0)


def _at_price(fronts: Mapping[str, Sequence[Option]], price: float) -> dict[str, Option]:
    return {name: min(front, key=lambda o: (o.cost + price * o.nbytes, o.nbytes)) for name, front in fronts.items()}


def _total(chosen: Mapping[str, Option]) -> int:
    return sum(option.nbytes for option in chosen.values())


def _filled(fronts: Mapping[str, Sequence[Option]], chosen: dict[str, Option], budget_bytes: int) -> dict[str, Option]:
    """Upgrades into the room that is left, the best for their bytes first."""
    room = budget_bytes - _total(chosen)
    queue: list[tuple[float, str, Option]] = []

    def offer(name: str) -> None:
        now = chosen[name]
        for better in fronts[name]:
            if better.cost < now.cost and better.nbytes > now.nbytes:
                heapq.heappush(queue, (-(now.cost - better.cost) / (better.nbytes - now.nbytes), name, better))

    for name in chosen:
        offer(name)
    while queue:
        _, name, better = heapq.heappop(queue)
        now = chosen[name]
        if better.cost < now.cost and 0 < better.nbytes - now.nbytes <= room:
            room -= better.nbytes - now.nbytes
            chosen[name] = better
            offer(name)
    return chosen
