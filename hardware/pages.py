"""Huge pages of this machine: whether the kernel makes them by itself, and how many are set aside. Linux only.

Formats: Documentation/admin-guide/mm/transhuge.rst (`always [madvise] never`) and hugetlbpage.rst.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from llmcli.hardware.kernel_files import REAL_ROOT, colon_fields, number, read_text

_CHOSEN = re.compile(r"\[(\w+)\]")


@dataclass(frozen=True, slots=True)
class HugePages:
    """transparent: always, madvise or never, None where the kernel has none; reserved_bytes: set aside at boot."""

    transparent: str | None
    reserved_bytes: int


def read_huge_pages(root: Path = REAL_ROOT) -> HugePages | None:
    """Read them; None where the system does not tell. `root` stands in for another machine in tests."""
    found = _CHOSEN.search(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    info = colon_fields(read_text(root / "proc/meminfo"))
    count = number(info.get("HugePages_Total", ""))
    if found is None and count is None:
        return None
    size_kib = number(info.get("Hugepagesize", "").partition(" ")[0]) or 0
    return HugePages(found[1] if found else None, (count or 0) * size_kib * 1024)


def driver_version(root: Path, driver: str) -> str | None:
    """The version of a kernel driver, None where it does not tell (those of the kernel itself have none)."""
    if driver == "nvidia":
        # NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 …
        match = re.search(r"\b(\d{3,4}\.\d+(?:\.\d+)?)\b", read_text(root / "proc/driver/nvidia/version"))
        return match[1] if match else None
    return read_text(root / "sys/module" / driver / "version") or None
