"""Lists, ranges and pairs as llama-bench writes them, and how a test is called."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import UsageError
from llmcli.bench.sizes import MOST_VALUES, Sizes, parse_list, parse_pair


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("512", (512,)),
        ("512,1024", (512, 1024)),
        ("1-4", (1, 2, 3, 4)),
        ("0-1024+256", (0, 256, 512, 768, 1024)),
        ("64-4096*2", (64, 128, 256, 512, 1024, 2048, 4096)),
        ("64-100*2", (64,)),
        ("1-2,8-16*2", (1, 2, 8, 16)),
        ("7-7", (7,)),
        ("3-3*1", (3,)),
    ],
)
def test_lists(text: str, values: tuple[int, ...]) -> None:
    assert parse_list(text) == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a list of numbers"),
        ("12a", "is not a list of numbers"),
        ("1,", "is not a list of numbers"),
        ("1-", "is not a list of numbers"),
        ("1.5", "is not a list of numbers"),
        ("9-3", "ends before it begins"),
        ("1-5*1", "does not go on from 1"),
        ("0-5*2", "does not go on from 0"),
        ("1-5+0", "does not go on from 1"),
        ("-1", "-1 is less than 0"),
        (f"0-{MOST_VALUES}", "more than 1,000 values"),
        ("99999999999", "is not a list of numbers"),
    ],
)
def test_bad_lists(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_list(text)
    assert words in caught.value.message


def test_a_negative_number_where_it_is_allowed() -> None:
    assert parse_list("-1,0,3", least=-1) == (-1, 0, 3)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_what_is_written_is_read(values: list[int]) -> None:
    assert parse_list(",".join(map(str, values))) == tuple(values)


@given(st.text(max_size=12))
def test_any_text_is_a_list_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert all(value >= 0 for value in parse_list(text))


def test_pairs() -> None:
    assert (parse_pair("512,128"), parse_pair("0,8")) == ((512, 128), (0, 8))
    for text in ("512", "0,0", "a,b", "1,2,3", "-1,2"):
        with pytest.raises(UsageError):
            parse_pair(text)


@pytest.mark.parametrize(
    ("sizes", "name", "kind", "total", "timed"),
    [
        (Sizes(n_prompt=512), "pp512", "pp", 512, 512),
        (Sizes(n_gen=128), "tg128", "tg", 128, 128),
        (Sizes(512, 128), "pp512+tg128", "pg", 640, 640),
        (Sizes(n_gen=64, n_depth=1024), "tg64 @ d1024", "tg", 1088, 64),
    ],
)
def test_names_and_counts(sizes: Sizes, name: str, kind: str, total: int, timed: int) -> None:
    assert (sizes.name, sizes.kind, sizes.total_tokens, sizes.timed_tokens) == (name, kind, total, timed)
