"""Operations on text are those of Python, or refused before they run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.engine import template_text as text
from llmcli.engine.template_meter import Meter, TemplateLimitError

MEBIBYTE = 1 << 20
short = st.text("ab ", max_size=8)


@given(short, short, short, st.integers(-1, 3))
def test_replace_is_that_of_python(value: str, old: str, new: str, count: int) -> None:
    assert text.replace(Meter(), value, old, new, count) == value.replace(old, new, count)


@given(short, st.lists(short, max_size=5))
def test_join_is_that_of_python(separator: str, parts: list[str]) -> None:
    assert text.join(Meter(), separator, parts) == separator.join(parts)
    assert text.join(Meter(), separator, iter(parts)) == separator.join(parts)


@pytest.mark.parametrize(
    ("pattern", "values", "result"),
    [
        ("%s and %r", ("a", "b"), "a and 'b'"),
        ("%s", "a", "a"),
        ("%(name)s %(x1234)d%%", {"name": "n", "x1234": 5}, "n 5%"),
        ("%-5d|%05.2f|%+i", (1, 2.5, 3), "1    |02.50|+3"),
        ("%999s", "x", "x".rjust(999)),
        ("100% of 2026", (), None),
    ],
)
def test_printf_is_that_of_python(pattern: str, values: object, result: str | None) -> None:
    if result is None:
        with pytest.raises((TypeError, ValueError)):
            text.printf(Meter(), pattern, values)
    else:
        assert text.printf(Meter(), pattern, values) == result


@pytest.mark.parametrize("pattern", ["%1000d", "%-1000d", "%.1000f", "%*d", "%0*d", "%(a)1000d", "%#+ 01000x"])
def test_printf_refuses_wide_fields(pattern: str) -> None:
    with pytest.raises(TemplateLimitError, match="width"):
        text.printf(Meter(), pattern, {"a": 1} if "(a)" in pattern else (1, 1))


@pytest.mark.parametrize(
    ("owner", "name", "args"),
    [
        ("x", "center", (MEBIBYTE,)),
        ("x", "ljust", (MEBIBYTE, "-")),
        ("x", "zfill", (MEBIBYTE,)),
        ("x" * 1000, "replace", ("", "y" * 1000)),
        ("x" * 1000, "replace", ("x", "y" * 1000)),
        ("x" * 1000, "join", ("y" * 1000,)),
        ("x" * 100_000, "strip", ("y" * 100_000,)),
        ("x" * 100_000, "rfind", ("y" * 100_000,)),
        ("x" * 100_000, "rsplit", ("y" * 100_000,)),
    ],
)
def test_costly_methods_are_refused(owner: str, name: str, args: tuple[object, ...]) -> None:
    with pytest.raises(TemplateLimitError):
        text.call_method(Meter(), getattr(owner, name), args, {})


@pytest.mark.parametrize(
    ("owner", "name", "args", "result"),
    [
        ("a-b", "split", ("-",), ["a", "b"]),
        ("a-b-c", "rsplit", ("-", 1), ["a-b", "c"]),
        (" a ", "strip", (), "a"),
        ("ab", "center", (4,), " ab "),
        ("aXa", "replace", ("a", "b"), "bXb"),
        ({"a": 1}, "get", ("b", 2), 2),
        ([1, 2], "index", (2,), 1),
    ],
)
def test_methods_are_those_of_python(owner: object, name: str, args: tuple[object, ...], result: object) -> None:
    assert text.allowed_method(owner, name)
    assert text.call_method(Meter(), getattr(owner, name), args, {}) == result


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("", "encode"),
        ("", "translate"),
        ("", "expandtabs"),
        ("", "format"),
        ([], "append"),
        ({}, "update"),
        (1, "to_bytes"),
    ],
)
def test_other_methods_are_not_allowed(owner: object, name: str) -> None:
    assert not text.allowed_method(owner, name)


@pytest.mark.parametrize(
    ("left", "right"), [("x", MEBIBYTE), (MEBIBYTE, "x"), ([1], 100_000), ((1,), 100_000), (["x" * 1000], 2000)]
)
def test_repetition_is_bounded(left: object, right: object) -> None:
    with pytest.raises(TemplateLimitError):
        text.repeat(Meter(), left, right)


def test_repetition_below_the_bound() -> None:
    assert text.repeat(Meter(), "ab", 2) == "abab"
    assert text.repeat(Meter(), -1, [1]) == []
    assert text.repeat(Meter(), 6, 7) == 42


def test_powers() -> None:
    assert text.power(2, 10) == 1024
    assert text.power(2.0, 0.5) == 2**0.5
    with pytest.raises(TemplateLimitError, match="63 bits"):
        text.power(10, 10**10)


def test_listed_stops_an_endless_generator() -> None:
    with pytest.raises(TemplateLimitError):
        text.listed(Meter(), ("x" * 1000 for _ in iter(int, 1)))


def test_listed_keeps_a_list() -> None:
    items = [1, 2]
    assert text.listed(Meter(), items) is items
    assert text.listed(Meter(), iter(items)) == [1, 2]


def test_text_of_a_list_of_itself_many_times_over() -> None:
    value: list[object] = []
    for _ in range(40):
        value = [value, value]
    with pytest.raises(TemplateLimitError):
        text.text_of(Meter(), value)
    assert text.text_of(Meter(), ["a", 1, None]) == "['a', 1, None]"
