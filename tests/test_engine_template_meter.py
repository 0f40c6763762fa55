"""Time, size and memory of a rendering are counted right."""

from __future__ import annotations

import itertools
import sys

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
    with pytest.raises(TemplateLimitError, match="takes longer than 2 s"):
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


def test_values_inside_a_kept_value_count() -> None:
    meter, chain = Meter(), None
    with pytest.raises(TemplateLimitError, match="of memory"):
        for number in range(200):
            chain = meter.made([chain and chain[:0], meter.made("x" * 300_000 + str(number)), chain_holder(chain)])


def chain_holder(value: object) -> object:
    """An object a list refers to, and that refers to the one before: a namespace, to the meter."""

    class Holder:
        before = value

    return Holder()


def test_the_same_value_is_counted_once() -> None:
    meter, value = Meter(), "x" * MEBIBYTE
    for _ in range(500):
        meter.made(value[: MEBIBYTE // 2]) if False else meter.made(value[:0] or "xy")
    kept = meter.made("y" * (MEBIBYTE // 2))
    for _ in range(500):
        assert meter.made(kept) is kept


def test_what_an_object_keeps_inside_counts() -> None:
    meter, kept = Meter(), []
    with pytest.raises(TemplateLimitError, match="of memory"):
        for _ in range(100):
            kept.append(meter.made(object(), MEBIBYTE // 2))
    assert len(kept) >= 30


def test_weight_is_that_of_the_value_written_out() -> None:
    meter, word = Meter(), "x" * 1000
    assert meter.weigh(word) == sys.getsizeof(word)
    assert 4000 < meter.weigh([word, (word, {"a": word}), word]) < 6000


@pytest.mark.parametrize("kind", [list, tuple, frozenset], ids=["list", "tuple", "frozenset"])
def test_shared_parts_count_as_often_as_they_occur(kind: type) -> None:
    value: object = kind(("x" * 100,))
    meter = Meter()
    with pytest.raises(TemplateLimitError):
        for number in range(40):
            value = meter.made(kind((value, (value, number))))


def test_nesting_is_bounded() -> None:
    value: object = ()
    meter = Meter()
    with pytest.raises(TemplateLimitError, match="nests lists more than 64 deep"):
        for _ in range(100):
            value = meter.made((value,))


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
