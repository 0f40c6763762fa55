from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmcli.cli.params import LogitBias, LoraType, Real, Text, Utf8, Whole
from llmcli.engine.lora import Lora

# What config.toml can hold in place of what is wanted.
TOML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def convert(kind: click.ParamType[Any], value: object) -> tuple[Any, str | None]:
    """The value and None, or None and why it was refused."""
    try:
        return kind.convert(value, None, None), None
    except click.BadParameter as error:
        return None, error.message


def refusal(kind: click.ParamType[Any], value: object) -> str:
    with pytest.raises(click.BadParameter) as failure:
        kind.convert(value, None, None)
    return failure.value.message


@pytest.mark.parametrize(("text", "number"), [("0.8", 0.8), ("1e-3", 0.001), (" 2 ", 2.0), (1, 1.0), (0.5, 0.5)])
def test_real(text: object, number: float) -> None:
    assert Real().convert(text, None, None) == number


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "3.5e38", "-3.5e38", "9" * 400, math.nan, True, False])
def test_real_is_finite_also_as_a_c_float(text: object) -> None:
    assert refusal(Real(), text).endswith(" is not a finite number")


@pytest.mark.parametrize("text", ["", "x", "1,5", "0x10", "1 2", [1], {}, 10**400])
def test_real_is_a_number(text: object) -> None:
    assert refusal(Real(), text).endswith(" is not a number")


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (Real(0, 1), "1.01", "1.01 is not between 0 and 1"),
        (Real(0, 1), "-0.1", "-0.1 is not between 0 and 1"),
        (Real(least=0), "-1", "-1 is not at least 0"),
        (Real(most=2), "3", "3 is not at most 2"),
    ],
)
def test_real_within_its_range(kind: Real, text: str, message: str) -> None:
    assert refusal(kind, text) == message


@given(st.text(max_size=20) | st.floats().map(str) | TOML_VALUES)
@example("1_000")
def test_any_value_is_a_c_float_or_refused_in_one_short_line(value: object) -> None:
    number, refused = convert(Real(), value)
    if refused is not None:
        assert len(refused) < 100
        assert "\n" not in refused
    else:
        assert math.isfinite(struct.unpack("f", struct.pack("f", number))[0])


@pytest.mark.parametrize(("value", "number"), [("0", 0), ("-1", -1), (" 7 ", 7), (5, 5), ("2147483647", 2147483647)])
def test_whole(value: object, number: int) -> None:
    assert Whole(-1).convert(value, None, None) == number


@pytest.mark.parametrize("value", ["", "x", "3.7", "1e3", "nan", 3.0, 3.7, True, [1], {}, "9" * 5000])
def test_whole_rounds_nothing(value: object) -> None:
    message = refusal(Whole(0), value)
    assert message.endswith(" is not a whole number")
    assert len(message) < 100


@pytest.mark.parametrize(
    ("value", "limit"),
    [("-2", "at least -1"), ("2147483648", "at most 2147483647"), (1 << 40, "at most 2147483647")],
)
def test_whole_within_its_range(value: object, limit: str) -> None:
    assert refusal(Whole(-1), value) == f"{value} is not {limit}"
    assert refusal(Whole(0, 2), value) == f"{value} is not between 0 and 2"


def test_a_whole_number_of_many_digits() -> None:
    assert len(refusal(Whole(0), "9" * 4000)) < 100


@given(TOML_VALUES)
def test_any_value_is_an_int32_or_refused(value: object) -> None:
    number, refused = convert(Whole(-1), value)
    if refused is not None:
        assert "\n" not in refused
    else:
        struct.pack("i", number)


@pytest.mark.parametrize("value", [1, True, 1.5, [], ["a"], {"a": 1}])
def test_text_is_text(value: object) -> None:
    assert refusal(Text(), value) == f"{value!r} is not a text"


def test_text_keeps_bytes_that_are_a_file_name() -> None:
    assert Text().convert("a\udcff", None, None) == "a\udcff"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_utf8_keeps_what_is_utf8(text: str) -> None:
    assert Utf8().convert(text, None, None) == text.removeprefix("\ufeff")
    assert refusal(Utf8(), text + "\udcff") == f"not UTF-8 at byte {len(text.encode())}"


@pytest.mark.parametrize("kind", [Text(), Utf8(), LoraType(), LogitBias()])
def test_the_environment_holds_one_value_per_line(kind: Any) -> None:
    assert list(kind.split_envvar_value("a b\n\nc\r\n")) == ["a b", "c"]
    assert list(kind.split_envvar_value("")) == []


def lora(value: object) -> Lora:
    return LoraType().convert(value, None, None)


def test_lora(tmp_path: Path) -> None:
    plain, odd = tmp_path / "a.gguf", tmp_path / "b:2.gguf"
    for path in (plain, odd, tmp_path / "c:0.5"):
        path.write_bytes(b"")

    assert lora(str(plain)) == Lora(plain, 1.0)
    assert lora(f"{plain}:0.25") == Lora(plain, 0.25)
    assert lora(f"{plain}:-1") == Lora(plain, -1.0)
    assert lora(f"{plain}:1e-1") == Lora(plain, 0.1)
    assert lora(str(odd)) == Lora(odd, 1.0)
    assert lora(f"{odd}:3") == Lora(odd, 3.0)
    assert lora(str(tmp_path / "c:0.5")) == Lora(tmp_path / "c:0.5", 1.0)
    assert lora(Lora(plain)) == Lora(plain)


def test_lora_that_is_no_file(tmp_path: Path) -> None:
    assert refusal(LoraType(), "/no/such.gguf") == "no such file: /no/such.gguf"
    assert refusal(LoraType(), str(tmp_path)) == f"no such file: {tmp_path}"
    assert refusal(LoraType(), "a\0b") == "no such file: a\0b"
    (tmp_path / "a").write_bytes(b"")
    assert refusal(LoraType(), f"{tmp_path / 'a'}:nan") == "'nan' is not a finite number"
    assert refusal(LoraType(), f"{tmp_path / 'a'}:much") == "'much' is not a number"


@pytest.mark.parametrize(
    ("text", "pair"),
    [("15043+1.5", (15043, 1.5)), ("0-2", (0, -2.0)), ("15043-inf", (15043, -math.inf)), ((7, 1.0), (7, 1.0))],
)
def test_logit_bias(text: object, pair: tuple[int, float]) -> None:
    assert LogitBias().convert(text, None, None) == pair


@pytest.mark.parametrize("text", ["", "5", "5+", "+1", "5=1", "5+inf", "5+nan", "-5+1", "9999999999+1", "5+1e3"])
def test_what_is_no_logit_bias(text: str) -> None:
    assert refusal(LogitBias(), text) == f"{text!r} is not of the form 15043+1.5 or 15043-inf"


@given(st.text(max_size=20) | st.from_regex(r"\d+[+-](\d+(\.\d+)?|inf)", fullmatch=True) | TOML_VALUES)
def test_any_bias_is_sound_or_refused(text: object) -> None:
    pair, refused = convert(LogitBias(), text)
    if refused is not None:
        assert "\n" not in refused
    else:
        token, bias = pair
        struct.pack("i", token)
        assert bias == -math.inf or math.isfinite(bias)
