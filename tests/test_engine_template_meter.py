"""Time, size and memory of a rendering are counted right."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import pytest

from llmcli.engine.template_meter import Meter, TemplateLimitError, input_size

MEBIBYTE = 1 << 20


def fill(meter: Meter, count: int, keep: list[object]) -> None:
    """Make `count` different texts of half a mebibyte, as a template would."""
    for number in range(count):
        keep.append(meter.made("x" * (MEBIBYTE // 2) + str(number)))


def test_time_is_that_of_the_processor() -> None:
    wall = iter([0.0, 1.9, 5.0, 5.0, 5.5, 9.0])
    used = iter([100.0, 101.5, 102.0])
    meter = Meter(time_s=2.0, clock=lambda: next(wall), used=lambda: next(used))
    meter.tick()  # 1.9 s on the wall: not asked for more
    meter.tick()  # 5.0 s on the wall, 1.5 s used: half a second left from now
    with pytest.raises(TemplateLimitError, match=r"takes longer than 2\.0 s"):
        meter.tick()


def test_time_stays_within_the_limit() -> None:
    ticks = itertools.count()
    meter = Meter(time_s=1000.0, clock=lambda: next(ticks), used=lambda: next(ticks))
    for _ in range(400):
        meter.tick()


def test_one_value_may_be_a_mebibyte_and_eight_times_the_input() -> None:
    assert Meter().max_value_bytes == MEBIBYTE
    assert Meter(1000).max_value_bytes == MEBIBYTE + 8000
    Meter().fits(MEBIBYTE)
    with pytest.raises(TemplateLimitError, match=r"more than 1\.0 MiB"):
        Meter().fits(MEBIBYTE + 1)
    with pytest.raises(TemplateLimitError):
        Meter().fits_text(MEBIBYTE // 4 + 1)


def test_values_that_are_gone_do_not_count() -> None:
    meter = Meter()
    for _ in range(10):
        fill(meter, 30, [])


def test_values_that_are_kept_do() -> None:
    kept: list[object] = []
    with pytest.raises(TemplateLimitError, match=r"more than 32\.0 MiB of memory"):
        fill(Meter(), 100, kept)
    assert 30 <= len(kept) <= 66


class Holder:
    """An object that keeps another, as a template's namespace does: the meter cannot see inside."""

    def __init__(self, kept: object) -> None:
        self.kept = kept


def chained(meter: Meter, count: int) -> Holder | None:
    """Objects that each keep a large text and the object before."""
    last: Holder | None = None
    for number in range(count):
        text = meter.made("x" * (MEBIBYTE // 2) + str(number))
        last = meter.made(Holder((text, last)))
    return last


def test_values_kept_by_other_values_count() -> None:
    with pytest.raises(TemplateLimitError, match="of memory"):
        chained(Meter(), 100)


def test_the_same_value_is_counted_once() -> None:
    meter, value = Meter(), "x" * (MEBIBYTE // 2)
    for _ in range(500):
        assert meter.made(value) is value


def made_from(meter: Meter, inside_bytes: int, count: int) -> list[object]:
    return [meter.made(Holder(None), inside_bytes) for _ in range(count)]


def test_what_an_object_was_made_from_counts() -> None:
    made_from(Meter(), 0, 1000)
    with pytest.raises(TemplateLimitError, match="of memory"):
        made_from(Meter(), MEBIBYTE // 2, 1000)


def test_weight_is_that_of_the_value_written_out() -> None:
    meter, word = Meter(), "x" * 1000
    assert meter.weigh(word) == sys.getsizeof(word)
    assert 4000 < meter.weigh([word, (word, {"a": word}), word]) < 6000


def doubled(meter: Meter, kind: Callable[[tuple[object, ...]], object], times: int) -> object:
    value = kind(("x" * 100,))
    for number in range(times):
        value = meter.made(kind((value, (value, number))))
    return value


@pytest.mark.parametrize("kind", [list, tuple, frozenset, lambda items: dict(enumerate(items))])
def test_shared_parts_count_as_often_as_they_occur(kind: Callable[[tuple[object, ...]], object]) -> None:
    doubled(Meter(), kind, 8)
    with pytest.raises(TemplateLimitError, match="makes a value"):
        doubled(Meter(), kind, 40)


def nested(meter: Meter, depth: int) -> object:
    value: object = ()
    for _ in range(depth):
        value = meter.made((value,))
    return value


def test_nesting_is_bounded() -> None:
    nested(Meter(), 60)
    with pytest.raises(TemplateLimitError, match="nests lists more than 64 deep"):
        nested(Meter(), 70)


def test_views_of_a_dictionary_are_weighed() -> None:
    meter = Meter()
    for view in ({1: "x" * MEBIBYTE}.items(), {1: "x" * MEBIBYTE}.values(), {"x" * MEBIBYTE: 1}.keys()):
        with pytest.raises(TemplateLimitError):
            meter.weigh(view)


def test_numbers_have_63_bits() -> None:
    meter = Meter()
    assert meter.made(2**63 - 1) == 2**63 - 1
    for number in (2**63, -(2**63)):
        with pytest.raises(TemplateLimitError, match="63 bits"):
            meter.made(number)


def test_arguments_are_weighed_together() -> None:
    meter, half = Meter(), "x" * (MEBIBYTE * 2 // 3)
    meter.weigh_all((half,), ())
    with pytest.raises(TemplateLimitError):
        meter.weigh_all((half,), (half,))


def test_input_size() -> None:
    assert input_size({"a": ["x" * 1000, ("y" * 1000,)]}) > 2000
