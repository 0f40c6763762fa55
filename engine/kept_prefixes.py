"""What the prefix store keeps for each model, by the model's content id: how much, and how to be rid of it.

For lists and for the removal of models. No model is opened, and a store that is not there is not made.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from llmcli.base.settings import Settings
from llmcli.engine.prefix_report import CacheOptions, store_folder

if TYPE_CHECKING:
    from llmcli.cache_store.catalog import RemovalPlan
    from llmcli.cache_store.keeper import Keeper


def kept_bytes(settings: Settings, notify: Callable[[str], None], *, cache: CacheOptions) -> dict[str, int]:
    """The stored bytes by content id; empty where there is no store that can be read."""
    found: dict[str, int] = {}
    with _keeper(settings, notify, cache) as keeper:
        if keeper is not None:
            models = _models(keeper)
            for digest, total in keeper.bytes_by_fingerprint().items():
                if content_id := models.get(digest):
                    found[content_id] = found.get(content_id, 0) + total
    return found


def plan_removal(
    content_ids: Collection[str], settings: Settings, notify: Callable[[str], None], *, cache: CacheOptions
) -> RemovalPlan | None:
    """What goes with these models: all that was computed with them, named or not; None where there is none."""
    with _keeper(settings, notify, cache) as keeper:
        return _plan(keeper, content_ids) if keeper else None


def remove(
    content_ids: Collection[str], settings: Settings, notify: Callable[[str], None], *, cache: CacheOptions
) -> tuple[int, int]:
    """Remove what belongs to these models, planned anew: (blocks, bytes) that went."""
    with _keeper(settings, notify, cache) as keeper:
        plan = _plan(keeper, content_ids) if keeper else None
        return keeper.carry_out(plan) if keeper and plan else (0, 0)


def _plan(keeper: Keeper, content_ids: Collection[str]) -> RemovalPlan | None:
    digests = frozenset(digest for digest, model in _models(keeper).items() if model in content_ids)
    plan = keeper.plan_forget(digests) if digests else None
    return plan if plan and plan.blocks else None


def _models(keeper: Keeper) -> dict[bytes, str]:
    known = ((found.digest, found.description.get("model")) for found in keeper.fingerprints())
    return {digest: model for digest, model in known if isinstance(model, str)}


@contextlib.contextmanager
def _keeper(settings: Settings, notify: Callable[[str], None], cache: CacheOptions) -> Iterator[Keeper | None]:
    folder = store_folder(cache, settings)
    if not os.path.isdir(folder):
        yield None
        return
    from llmcli.cache_store.context import OFF
    from llmcli.cache_store.store import PrefixStore

    with PrefixStore.open(folder, cache.policy, salt=cache.salt, notify=notify) as store:
        yield None if store.mode == OFF else store.keeper()
