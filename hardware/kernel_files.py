"""The kernel's small text files (/proc, /sys), read below a root that tests can replace.

Nothing here raises: a file that is missing, forbidden, a folder, binary or nonsense reads as "not known". Every size is
bounded, so that a strange tree costs little time.
"""

from __future__ import annotations

import re
from pathlib import Path

REAL_ROOT = Path("/")
# The largest NR_CPUS that Linux can be built with; a list naming more is nonsense.
MAX_CPUS = 8192
_READ_LIMIT_BYTES = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,20}\Z")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")


def read_text(path: Path) -> str:
    """The first MiB of the file as text without surrounding white space and NULs; empty where there is nothing."""
    try:
        with open(path, "rb") as source:
            data = source.read(_READ_LIMIT_BYTES)
    except (OSError, ValueError):  # ValueError: a NUL in a path that came from a file
        return ""
    return data.decode("utf-8", "replace").strip("\0 \t\r\n")


def number(text: str) -> int | None:
    """A plain decimal number of at most 20 digits (2^64 has 20), else None."""
    return int(text) if _NUMBER.match(text) else None


def read_number(path: Path) -> int | None:
    """The file's one number, else None (also for `max` and -1)."""
    return number(read_text(path))


def cpu_list(text: str) -> frozenset[int]:
    """The CPUs of a list such as `0-3,8`; pieces that are no range, or name a CPU past MAX_CPUS, are left out."""
    found: set[int] = set()
    for piece in text.split(","):
        if match := _RANGE.match(piece.strip()):
            first, last = int(match[1]), int(match[2] or match[1])
            if first <= last < MAX_CPUS:
                found.update(range(first, last + 1))
    return frozenset(found)


def colon_fields(text: str) -> dict[str, str]:
    """`key : value` lines as a dictionary; of a key that comes twice the first stays (cpuinfo: the first CPU)."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def space_fields(text: str) -> dict[str, int]:
    """`key number` lines (memory.stat) as a dictionary; other lines are left out."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: value for pair in pairs if len(pair) == 2 and (value := number(pair[1])) is not None}


def seen_path(path: Path, root: Path) -> str:
    """The file's path as the process sees it: without the root that a test put in front."""
    return "/" + path.relative_to(root).as_posix()
