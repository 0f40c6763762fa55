"""How much memory this process can still use, the limits of its cgroup and every ancestor counted in.

available = min(MemAvailable, limit - (current - inactive_file)) over the limited cgroups: page cache that nothing has
used lately is given back under pressure, so it is not in use. Swap is reported and never counted as available.
"""

from __future__ import annotations

import sys
from pathlib import Path

from llmcli.base.records import dataclass
from llmcli.hardware.cgroup import Cgroup, cgroups
from llmcli.hardware.kernel_files import (
    REAL_ROOT,
    colon_fields,
    number,
    read_number,
    read_text,
    seen_path,
    space_fields,
)

# Version 1 writes "no limit" as the largest page-aligned 63-bit number; nothing above an exbibyte is meant as one.
_NO_LIMIT_BYTES = 1 << 60
# file, usage, and the statistic of reclaimable cache (in version 1 the total_ ones include the children)
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. A total of 0 means that the system would not tell: then nothing can be refused for lack of memory.

    available_bytes   what can be had without swapping or hitting a limit
    limit_bytes       the cgroup limit with the least room left, None without one
    limit_source      the file that says so
    lock_bytes        how much may be locked into memory (`ulimit -l`), None for no limit or not known
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    limit_source: str | None
    swap_total_bytes: int
    swap_free_bytes: int
    lock_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Limit:
    room_bytes: int
    limit_bytes: int
    source: str


def read_memory(root: Path = REAL_ROOT, *, system: str = sys.platform) -> Memory:
    """Read the memory figures; `root` and `system` stand in for another machine in tests."""
    if system != "linux":
        return _read_psutil()
    info = _meminfo(root)
    if not info.get("MemTotal") and root == REAL_ROOT:
        return _read_psutil()
    limit = min(_limits(root), key=lambda found: found.room_bytes, default=None)
    total = info.get("MemTotal", 0) or (limit.limit_bytes if limit else 0)
    available = min(_free(info, total), total)
    return Memory(
        total_bytes=total,
        available_bytes=min(available, limit.room_bytes) if limit else available,
        limit_bytes=limit.limit_bytes if limit else None,
        limit_source=limit.source if limit else None,
        swap_total_bytes=info.get("SwapTotal", 0),
        swap_free_bytes=info.get("SwapFree", 0),
        lock_bytes=_lock_limit(root),
    )


def _meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes; it counts in KiB and calls them kB."""
    lines = colon_fields(read_text(root / "proc/meminfo"))
    values = {key: number(text.split(" ")[0]) for key, text in lines.items()}
    return {key: value * 1024 for key, value in values.items() if value is not None}


def _free(info: dict[str, int], total: int) -> int:
    if "MemAvailable" in info:
        return info["MemAvailable"]
    # Kernels before 3.14 do not estimate it; without the parts either, all there is.
    parts = [info[name] for name in ("MemFree", "Buffers", "Cached") if name in info]
    return sum(parts) if parts else total


def _limits(root: Path) -> list[_Limit]:
    return [found for group in cgroups(root, "memory") if (found := _limit(root, group))]


def _limit(root: Path, group: Cgroup) -> _Limit | None:
    limit_name, usage_name, cache_name = _FILES[group.version]
    limit = read_number(group.folder / limit_name)  # `max` is no number, so no limit
    if limit is None or limit >= _NO_LIMIT_BYTES:
        return None
    used = read_number(group.folder / usage_name) or 0
    cache = space_fields(read_text(group.folder / "memory.stat")).get(cache_name, 0)
    room = limit - max(0, used - cache)
    return _Limit(max(0, room), limit, seen_path(group.folder / limit_name, root))


def _lock_limit(root: Path) -> int | None:
    """The soft limit of `Max locked memory  8388608  8388608  bytes` in /proc/self/limits; `unlimited` is None."""
    for line in read_text(root / "proc/self/limits").splitlines():
        if line.startswith("Max locked memory"):
            words = line.split()
            return number(words[3]) if len(words) > 3 else None
    return None


def _read_psutil() -> Memory:
    import psutil

    memory = psutil.virtual_memory()
    try:
        swap_total, swap_free = psutil.swap_memory().total, psutil.swap_memory().free
    except (OSError, RuntimeError):  # swap that the system will not tell of is no reason to fail
        swap_total = swap_free = 0
    return Memory(memory.total, memory.available, None, None, swap_total, swap_free, _lock_limit_by_call())


if sys.platform == "win32":

    def _lock_limit_by_call() -> int | None:
        return None

else:

    def _lock_limit_by_call() -> int | None:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return None if soft == resource.RLIM_INFINITY else soft
