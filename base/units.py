"""Numbers as people write and read them: bytes, seconds, counts."""

from __future__ import annotations

import re

from llmcli.base.errors import UsageError

# The digits are bounded: with more of them a float overflows, and Python itself refuses to convert some thousands.
_NUMBER = r"\s*(\d{1,18})(?:\.(\d{1,9}))?\s*"
_SIZE = re.compile(_NUMBER + r"(?:([kmgt])i?)?b?\s*\Z", re.IGNORECASE | re.ASCII)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_DURATION = re.compile(_NUMBER + r"([smhdw]?)\s*\Z", re.IGNORECASE | re.ASCII)
_DURATION_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_AGES = ((86400 * 2, 86400, "d"), (3600 * 2, 3600, "h"), (60 * 2, 60, "min"))


def parse_bytes(text: str) -> int:
    """A size such as `512M`, `4G`, `1.5GiB` or `1000` in bytes; every suffix is a power of 1024.

    Raises UsageError for anything else.
    """
    found = _SIZE.match(text)
    if not found:
        raise UsageError(f"{text!r} is not a size", hint="write it like 512M, 4G or 1.5GiB")
    unit = 1 << 10 * _POWER[(found[3] or "").lower()]
    billionths = int((found[2] or "").ljust(9, "0"))  # whole numbers are exact, floats are not
    return int(found[1]) * unit + billionths * unit // 1_000_000_000


def size_to_type(count: int) -> str:
    """The least size of at least `count` bytes in the form that `parse_bytes` reads, with a digit behind the point."""
    power = next((power for power in (3, 2, 1) if count >= 1 << 10 * power), 0)
    if not power:
        return str(count)
    tenths = -(-count * 10 // (1 << 10 * power))
    return f"{tenths // 10}.{tenths % 10}{'KMG'[power - 1]}".replace(".0", "")


def parse_duration(text: str) -> float:
    """A duration such as `90`, `30m`, `12h`, `7d` or `2w` in seconds. Raises UsageError for anything else."""
    found = _DURATION.match(text)
    if not found:
        raise UsageError(f"{text!r} is not a duration", hint="write it like 30m, 12h or 7d")
    return float(f"{found[1]}.{found[2] or 0}") * _DURATION_SECONDS[found[3].lower()]


def format_bytes(count: int) -> str:
    """`count` bytes in four digits at most, below 1,000 TiB: 812 B, 93.8 MiB, 4.0 GiB."""
    if abs(count) < 1024:
        return f"{count} B"
    size = count / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if abs(size) < 1023.5:  # from here on it would round to 1024
            return f"{size:.1f} {unit}" if abs(size) < 999.95 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def exact(count: int) -> str:
    """`4.8 MiB (5,000,000 bytes)`: to read, and to compare with what other tools say."""
    whole = format_count(count, "byte")
    return whole if count < 1024 else f"{format_bytes(count)} ({whole})"


def format_age(seconds: float) -> str:
    """A time span in one number, rounded down: 3 d, 5 h, 12 min, 40 s."""
    for least, unit, word in _AGES:
        if seconds >= least:
            return f"{int(seconds // unit)} {word}"
    return f"{max(0, int(seconds))} s"


def format_seconds(seconds: float) -> str:
    """A duration at the precision a reader needs: 38 ms, 2.41 s, 3 min 07 s, 2 h 05 min."""
    if seconds < 0.9995:  # from here on it would round to 1000 ms, as 59.995 would to 60.00 s
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    seconds = round(seconds)
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def format_count(count: int, noun: str) -> str:
    """`1 token`, `4,096 tokens`: the number with separators and the noun in the right form."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
