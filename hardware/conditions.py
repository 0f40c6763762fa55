"""What changes how fast this machine is right now: load, clock governor, temperature; and what a process has used.

Everything is None where the system does not tell. Linux is read from /proc and /sys; elsewhere the peak of a process
comes from getrusage, which cannot be reset.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from llmcli.hardware.kernel_files import REAL_ROOT, colon_fields, number, read_number, read_text

_RESET_PEAK = b"5"  # proc_pid_clear_refs(5): the peak starts again from what is resident now


@dataclass(frozen=True, slots=True)
class Conditions:
    """load_1min: processes that run or want to; temperature_c: the hottest sensor of the CPU or the board."""

    load_1min: float | None
    governor: str | None
    temperature_c: float | None
    turbo: bool | None


def read_conditions(root: Path = REAL_ROOT) -> Conditions:
    """Read them now; `root` stands in for another machine in tests."""
    return Conditions(_load(root), _governor(root), _temperature(root), _turbo(root))


def _load(root: Path) -> float | None:
    words = read_text(root / "proc/loadavg").split()
    with contextlib.suppress(ValueError):
        if words:
            return float(words[0])
    if root == REAL_ROOT and hasattr(os, "getloadavg"):
        with contextlib.suppress(OSError):
            return os.getloadavg()[0]
    return None


def _governor(root: Path) -> str | None:
    """The governor of all CPUs, several names joined where they differ."""
    folder = root / "sys/devices/system/cpu"
    found = {read_text(file) for file in sorted(folder.glob("cpu[0-9]*/cpufreq/scaling_governor"))} - {""}
    return "+".join(sorted(found)) or None


def _temperature(root: Path) -> float | None:
    zones = sorted((root / "sys/class/thermal").glob("thermal_zone*/temp"))
    values = [value for file in zones if (value := read_number(file)) is not None]
    return max(values) / 1000 if values else None


def _turbo(root: Path) -> bool | None:
    boost = read_number(root / "sys/devices/system/cpu/cpufreq/boost")
    if boost is not None:
        return bool(boost)
    no_turbo = read_number(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    return None if no_turbo is None else not no_turbo


def reset_peak(root: Path = REAL_ROOT) -> bool:
    """Let the peak of this process start again from now; False where the system cannot."""
    try:
        with open(root / "proc/self/clear_refs", "wb") as target:
            target.write(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_bytes(root: Path = REAL_ROOT) -> int | None:
    """The most memory this process has had resident, mapped weights included."""
    words = colon_fields(read_text(root / "proc/self/status")).get("VmHWM", "").split()
    kib = number(words[0]) if words else None
    if kib is not None:
        return kib * 1024
    return _peak_by_call() if root == REAL_ROOT else None


if sys.platform == "win32":

    def _peak_by_call() -> int | None:
        return None

else:

    def _peak_by_call() -> int | None:
        import resource

        found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return found if sys.platform == "darwin" else found * 1024
