"""How many CPU cores this process can keep busy: the default number of threads.

The smallest of what the affinity mask allows, the CPU quota of the cgroup and all its ancestors, and the performance
cores of a hybrid CPU; siblings of one core (SMT) count once. llama.cpp's threads meet at a barrier after every
operation, so one thread that shares its core, sits on an efficiency core or is throttled holds up all the others.

Linux is read from /proc and /sys, macOS from sysctl, other systems through psutil (30 ms to import, so only there).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from llmcli.base.records import dataclass
from llmcli.hardware.cgroup import cgroups
from llmcli.hardware.kernel_files import REAL_ROOT, colon_fields, cpu_list, number, read_number, read_text, seen_path
from llmcli.hardware.sysctl import Sysctl, read_sysctl

_CPU = "sys/devices/system/cpu"
# A machine is hybrid where the slowest CPU has less than this share of the fastest one's capacity or clock; favoured
# cores of symmetric CPUs differ by less. The slowest cluster is what lies within 10% of the slowest CPU.
_HYBRID_CAPACITY = 0.8
_HYBRID_CLOCK = 0.9
_SAME_CLUSTER = 1.1


@dataclass(frozen=True, slots=True)
class Cores:
    """Counts of this machine and of this process's share.

    logical       CPUs online, SMT siblings included
    physical      cores online
    performance   performance cores online, None where all cores are alike
    affinity      CPUs this process may run on (logical)
    quota         CPUs' worth of time that the tightest cgroup grants, None without a quota
    quota_source  the file that says so
    usable        physical cores to use: the default number of threads, at least 1
    """

    logical: int
    physical: int
    performance: int | None
    affinity: int
    quota: float | None
    quota_source: str | None
    usable: int


def read_cores(root: Path = REAL_ROOT, *, system: str = sys.platform, sysctl: Sysctl = read_sysctl) -> Cores:
    """Count the cores. `root`, `system` and `sysctl` stand in for another machine in tests."""
    if system == "darwin":
        return _read_macos(sysctl)
    if system == "linux":
        return _read_linux(root)
    return _read_psutil()


def _read_linux(root: Path) -> Cores:
    online = _online(root)
    allowed = _allowed(root) & online or online
    groups = _core_groups(root, online)
    fast = _performance_cpus(root, groups)
    quota, source = _quota(root)
    usable = _count(groups, allowed & fast if fast and allowed & fast else allowed)
    if quota is not None:
        usable = min(usable, math.floor(quota))
    return Cores(
        logical=len(online),
        physical=len(groups),
        performance=_count(groups, fast) if fast else None,
        affinity=len(allowed),
        quota=quota,
        quota_source=source,
        usable=max(1, usable),
    )


def _online(root: Path) -> frozenset[int]:
    found = cpu_list(read_text(root / _CPU / "online")) or frozenset(_cpuinfo_cores(root))
    if not found and root == REAL_ROOT:
        found = frozenset(range(os.cpu_count() or 1))
    return found or frozenset({0})


def _allowed(root: Path) -> frozenset[int]:
    """The affinity mask, from /proc so that a test can fake it; the mask of a cpuset cgroup is already in it."""
    status = colon_fields(read_text(root / "proc/self/status"))
    found = cpu_list(status.get("Cpus_allowed_list", ""))
    if not found and root == REAL_ROOT and sys.platform == "linux":
        found = frozenset(os.sched_getaffinity(0))
    return found


def _core_groups(root: Path, online: frozenset[int]) -> tuple[frozenset[int], ...]:
    """The online CPUs, grouped by core. Without topology files: by cpuinfo's ids; without those: each CPU is a core."""
    known = _cpuinfo_siblings(root) if not _siblings(root, min(online)) else {}
    groups: list[frozenset[int]] = []
    seen: set[int] = set()
    for cpu in sorted(online):
        if cpu not in seen:  # one read per core: files are half of this module's time on a large machine
            siblings = known.get(cpu) or _siblings(root, cpu)
            group = (siblings | {cpu}) & online - seen
            seen |= group
            groups.append(group)
    return tuple(groups)


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    folder = root / _CPU / f"cpu{cpu}" / "topology"
    # core_cpus_list is the newer name of thread_siblings_list (Linux 5.3).
    return cpu_list(read_text(folder / "core_cpus_list")) or cpu_list(read_text(folder / "thread_siblings_list"))


def _cpuinfo_siblings(root: Path) -> dict[int, frozenset[int]]:
    cores = {cpu: core for cpu, core in _cpuinfo_cores(root).items() if core is not None}
    members: dict[tuple[str, str], set[int]] = {}
    for cpu, core in cores.items():
        members.setdefault(core, set()).add(cpu)
    return {cpu: frozenset(members[core]) for cpu, core in cores.items()}


def _cpuinfo_cores(root: Path) -> dict[int, tuple[str, str] | None]:
    """CPU number -> (socket, core) of /proc/cpuinfo; None where it does not say."""
    found: dict[int, tuple[str, str] | None] = {}
    for block in read_text(root / "proc/cpuinfo").split("\n\n"):
        fields = colon_fields(block)
        cpu = number(fields.get("processor", ""))
        if cpu is not None:
            known = "core id" in fields
            found[cpu] = (fields.get("physical id", "0"), fields["core id"]) if known else None
    return found


def _performance_cpus(root: Path, groups: tuple[frozenset[int], ...]) -> frozenset[int]:
    """The CPUs of the fast cores, empty where all are alike (or nothing tells).

    Intel names them itself; elsewhere the kernel's capacity decides, else the top clock. x86 clocks are not asked:
    dense and full cores of one AMD chip differ by clock and are both worth using.
    """
    online = frozenset().union(*groups)
    if intel := cpu_list(read_text(root / "sys/devices/cpu_core/cpus")) & online:
        return intel if intel != online else frozenset()
    firsts = [min(group) for group in groups]
    fast = _faster_than_slowest(root, firsts, "cpu_capacity", _HYBRID_CAPACITY)
    if not fast and "vendor_id" not in colon_fields(read_text(root / "proc/cpuinfo")):
        fast = _faster_than_slowest(root, firsts, "cpufreq/cpuinfo_max_freq", _HYBRID_CLOCK)
    return frozenset().union(*(group for group in groups if min(group) in fast))


def _faster_than_slowest(root: Path, cpus: list[int], name: str, hybrid_share: float) -> set[int]:
    speeds: dict[int, int] = {}
    for cpu in cpus:
        speed = read_number(root / _CPU / f"cpu{cpu}" / name)
        if not speed:
            return set()
        speeds[cpu] = speed
    slowest, fastest = min(speeds.values()), max(speeds.values())
    if slowest >= hybrid_share * fastest:
        return set()
    return {cpu for cpu, speed in speeds.items() if speed > _SAME_CLUSTER * slowest}


def _count(groups: Iterable[frozenset[int]], cpus: frozenset[int]) -> int:
    return sum(1 for group in groups if group & cpus)


def _quota(root: Path) -> tuple[float | None, str | None]:
    """The tightest CPU quota in CPUs, and the file it is from."""
    tightest: tuple[float, str] | None = None
    for group in cgroups(root, "cpu"):
        if group.version == 2:
            file = group.folder / "cpu.max"  # "200000 100000", "max 100000"
            quota, _, period = read_text(file).partition(" ")
        else:
            file = group.folder / "cpu.cfs_quota_us"  # -1: no quota
            quota, period = read_text(file), read_text(group.folder / "cpu.cfs_period_us")
        granted, each = number(quota), number(period)
        if granted and each and (tightest is None or granted / each < tightest[0]):
            tightest = (granted / each, seen_path(file, root))
    return tightest or (None, None)


def _read_macos(sysctl: Sysctl) -> Cores:
    names = ("hw.logicalcpu", "hw.physicalcpu", "hw.nperflevels", "hw.perflevel0.physicalcpu")
    values = {name: number(text) for name, text in sysctl(names).items()}
    logical = values.get("hw.logicalcpu") or os.cpu_count() or 1
    physical = values.get("hw.physicalcpu") or logical
    fast = values.get("hw.perflevel0.physicalcpu") if (values.get("hw.nperflevels") or 1) > 1 else None
    return Cores(logical, physical, fast or None, logical, None, None, fast or physical)


def _read_psutil() -> Cores:
    import psutil

    logical = psutil.cpu_count() or os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    affinity = logical
    if hasattr(psutil.Process, "cpu_affinity"):
        affinity = len(psutil.Process().cpu_affinity()) or logical
    # Which CPUs of the mask are siblings is not told: the mask counts as if it covered whole cores.
    usable = min(physical, max(1, math.ceil(affinity * physical / logical)))
    return Cores(logical, physical, None, affinity, None, None, usable)
