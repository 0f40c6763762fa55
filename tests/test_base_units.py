from __future__ import annotations

import contextlib
import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmcli.base.errors import UsageError
from llmcli.base.units import (
    format_age,
    format_bytes,
    format_count,
    format_seconds,
    parse_bytes,
    parse_duration,
    size_to_type,
)

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1000", 1000),
        ("512M", 512 << 20),
        ("4g", 4 << 30),
        ("1.5GiB", 3 << 29),
        ("2 KB", 2048),
        (" 7b ", 7),
        ("1Ti", 1 << 40),
        ("0.5", 0),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@given(st.integers(0, 10**18 - 1), st.sampled_from(sorted(UNITS)), st.sampled_from(["", "b", "i", "ib"]), st.booleans())
def test_a_whole_number_is_read_exactly(count: int, unit: str, rest: str, upper: bool) -> None:
    if rest.startswith("i") and not unit:
        rest = rest[1:]
    text = f"{count}{unit}{rest}"
    assert parse_bytes(text.upper() if upper else text) == count * UNITS[unit]


@pytest.mark.parametrize(
    "text", ["", " ", "x", "-1", "+1", "1e9", "1.", ".5", "4X", "4GG", "4ib", "1 2", "nan", "inf", "9" * 400, "٣"]
)
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{text!r} is not a size")):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("30m", 1800), ("12h", 43200), ("7d", 604800), ("2W", 1209600), ("1.5 h", 5400), ("0s", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.text(max_size=30) | st.from_regex(r"[0-9]{1,500}(\.[0-9]{1,500})?[a-z]?", fullmatch=True))
@example("9" * 400)
def test_any_text_is_a_number_or_a_usage_error(text: str) -> None:
    for parse in (parse_bytes, parse_duration):
        with contextlib.suppress(UsageError):
            assert 0 <= parse(text) < math.inf


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (98_362_432, "93.8 MiB"),
        (4 << 30, "4.0 GiB"),
        (1_023_948, "999.9 KiB"),
        (1_023_949, "1000 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        (3 << 41, "6.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(0, 1 << 49) | st.integers(999_000, 1 << 20) | st.integers(1000 << 20, 1 << 30))
def test_bytes_have_four_digits_at_most_and_are_right_to_a_rounding(count: int) -> None:
    text = format_bytes(count)
    number, unit = text.split(" ")
    assert sum(ch.isdigit() for ch in number) <= 4
    scale = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    half_step = 0.05 if "." in number else 0.5
    assert abs(float(number) * scale - count) <= half_step * 1.0001 * scale


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0384, "38 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (2.414, "2.41 s"),
        (59.99, "59.99 s"),
        (59.996, "1 min 00 s"),
        (187, "3 min 07 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_seconds_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.floats(0, 1e9))
def test_no_part_of_a_duration_overflows_into_the_next(seconds: float) -> None:
    text = format_seconds(seconds)
    found = re.fullmatch(r"(\d+) ms|(\d+\.\d\d) s|(\d+) min (\d\d) s|(\d+) h (\d\d) min", text)
    assert found, text
    for group, limit in ((1, 1000), (2, 60), (3, 60), (4, 60), (6, 60)):
        assert found[group] is None or float(found[group]) < limit


@pytest.mark.parametrize(("count", "text"), [(0, "0 tokens"), (1, "1 token"), (4096, "4,096 tokens")])
def test_counts(count: int, text: str) -> None:
    assert format_count(count, "token") == text


@given(st.integers(0, 1 << 45))
def test_a_size_to_type_is_read_back_as_enough_and_hardly_more(count: int) -> None:
    found = parse_bytes(size_to_type(count))
    assert count <= found <= count + max(count // 10, 1)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.5, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (86400 * 3, "3 d"), (-5, "0 s")]
)
def test_ages(seconds: float, said: str) -> None:
    assert format_age(seconds) == said
