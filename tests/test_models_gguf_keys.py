"""Typed look-ups: what is there, what is missing, and what is of the wrong type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.gguf_keys import Keys
from tests.fixtures.gguf_edit import ARRAY, BOOL, F32, I32, U32, Array, Gguf
from tests.fixtures.small_models import header_of


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    model = Gguf().text("text", "a").text("nul", "a\0b").u32("number", 7).set("flag", BOOL, True).set("real", F32, 0.5)
    model.set("x.many", ARRAY, Array(U32, [1, 2])).set("x.flags", ARRAY, Array(BOOL, [True, False])).u32("x.one", 3)
    model.set("x.negative", ARRAY, Array(I32, [1, -1])).set("minus", I32, -1)
    return Keys(header_of(model, tmp_path), "x")


def test_what_is_there(keys: Keys) -> None:
    assert (keys.text("text"), keys.integer("number"), keys.flag("flag"), keys.number("real")) == ("a", 7, True, 0.5)
    assert keys.per_layer("many", 2, ()) == (1, 2)
    assert keys.per_layer("one", 3, ()) == (3, 3, 3)
    assert keys.integers("flags") == (1, 0)
    assert keys.own("many") == "x.many"


def test_what_is_missing(keys: Keys) -> None:
    assert [keys.text("-"), keys.integer("-"), keys.flag("-"), keys.number("-"), keys.array("-", "u32")] == [None] * 5
    assert keys.per_layer("-", 2, (5, 5)) == (5, 5)
    assert keys.integers("-") == ()
    with pytest.raises(ModelError, match="is not a usable model: - is missing"):
        keys.required("-")


@pytest.mark.parametrize(
    ("look_up", "expected"),
    [
        (lambda k: k.text("number"), "number is u32, expected a string"),
        (lambda k: k.text("nul"), "nul holds a NUL byte"),
        (lambda k: k.flag("number"), "number is u32, expected a boolean"),
        (lambda k: k.number("number"), "number is u32, expected a floating-point number"),
        (lambda k: k.integer("flag"), "flag is bool, expected a whole number"),
        (lambda k: k.integer("x.many"), "x.many is an array of u32, expected a whole number"),
        (lambda k: k.integer("minus"), "minus is -1, expected 0 to 4294967295"),
        (lambda k: k.integer("number", least=8), "number is 7, expected 8 to 4294967295"),
        (lambda k: k.integer("number", most=6), "number is 7, expected 0 to 6"),
        (lambda k: k.array("text", "str"), "text is str, expected an array of str"),
        (lambda k: k.array("x.many", "str", "f32"), "x.many is an array of u32, expected an array of str or f32"),
        (lambda k: k.per_layer("many", 3, ()), "x.many has 2 values, expected one for each of 3 layers"),
        (lambda k: k.integers("negative"), "x.negative holds -1, expected no negative number"),
    ],
)
def test_what_is_wrong(keys: Keys, look_up: Callable[[Keys], Any], expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        look_up(keys)
    assert caught.value.message == f"{keys.header.path} is not a usable model: {expected}"
