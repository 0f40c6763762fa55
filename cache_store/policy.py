"""How much the store may keep, and for how long."""

from __future__ import annotations

from pathlib import Path

from llmcli.base.records import dataclass

GIB = 1 << 30
DEFAULT_MAX_BYTES = 20 * GIB
DEFAULT_SHARE_OF_FREE = 0.10
DEFAULT_MIN_FREE_BYTES = 1 * GIB
DEFAULT_TTL_S = 30 * 86400.0
DEFAULT_MIN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user allows.

    max_bytes        budget for everything under the root; None: a tenth of the disk's free space, at most 20 GiB
    min_free_bytes   what must stay free on the disk
    ttl_s            seconds after its last use at which a block expires; None: never
    min_tokens       shorter prompts are neither looked up nor stored
    """

    max_bytes: int | None = None
    min_free_bytes: int = DEFAULT_MIN_FREE_BYTES
    ttl_s: float | None = DEFAULT_TTL_S
    min_tokens: int = DEFAULT_MIN_TOKENS

    def budget_bytes(self, free_bytes: int, stored_bytes: int) -> int:
        """The budget on a disk with `free_bytes` free.

        What is stored counts as free: the default must not shrink as the store fills.
        """
        if self.max_bytes is not None:
            return self.max_bytes
        return min(DEFAULT_MAX_BYTES, int((free_bytes + stored_bytes) * DEFAULT_SHARE_OF_FREE))

    def over_bytes(self, free_bytes: int, stored_bytes: int, new_bytes: int) -> int:
        """How many bytes have to go before `new_bytes` may come; 0 where there is room."""
        over_budget = stored_bytes + new_bytes - self.budget_bytes(free_bytes, stored_bytes)
        return max(0, over_budget, self.min_free_bytes + new_bytes - free_bytes)

    def expired(self, used_s: float, now_s: float) -> bool:
        """Whether a block last used at `used_s` is too old to be used."""
        return self.ttl_s is not None and now_s - used_s > self.ttl_s


def free_bytes(folder: Path) -> int:
    """Bytes free for this user on the disk of `folder`. Raises OSError."""
    import shutil  # archives and compression come with it

    return shutil.disk_usage(folder).free
