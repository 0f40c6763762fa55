"""Overrides, lists of layers, and what llama.cpp is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import UsageError
from llmcli.models.gguf_types import TYPE_IDS
from llmcli.quant.request import (
    Override,
    QuantizeRequest,
    check_layers,
    native_settings,
    parse_layers,
    parse_override,
)
from llmcli.quant.rules import parse_rule
from llmcli.quant.types import parse_target


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a.b=int:0", "a.b", 0),
        ("a.b=int:4294967295", "a.b", 4294967295),
        ("a.b=float:-1.5", "a.b", -1.5),
        ("a.b=bool:true", "a.b", True),
        ("a.b=str:", "a.b", ""),
        ("a.b=str:x=int:5", "a.b", "x=int:5"),
        ("a.b=str:" + "x" * 127, "a.b", "x" * 127),
    ],
)
def test_override(text: str, key: str, value: object) -> None:
    found = parse_override(text)
    assert (found.key, found.value, type(found.value)) == (key, value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a=5",
        "=int:5",
        "a=num:5",
        "a=int:-1",
        "a=int:4294967296",
        "a=int:1.0",
        "a=int: 1",
        "a=float:nan",
        "a=float:1e39",
        "a=bool:1",
        "a=str:" + "x" * 128,
        "a=str:" + "é" * 64,
        "a" * 128 + "=int:1",
        "a=str:x\0y",
    ],
)
def test_override_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_override(text)


@pytest.mark.parametrize(
    ("text", "layers"), [("3", (3,)), ("3,1,3", (1, 3)), ("5-7,2", (2, 5, 6, 7)), (" 4 , 4-4", (4,))]
)
def test_layers(text: str, layers: tuple[int, ...]) -> None:
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "1,,2", "1-", "12345", "1 2"])
def test_layers_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no list of layers"):
        parse_layers(text)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_any_set_of_layers_comes_back_sorted(layers: set[int]) -> None:
    assert parse_layers(",".join(map(str, layers))) == tuple(sorted(layers))


def test_layers_that_are_not_there() -> None:
    with pytest.raises(UsageError, match="there is no layer 4"):
        check_layers((3, 4), 4)
    with pytest.raises(UsageError, match="no layer"):
        check_layers((0, 1), 2)
    check_layers((0,), 2)


def test_native_settings() -> None:
    request = QuantizeRequest(
        threads=3,
        output_tensor_type="Q6_K",
        rules=(parse_rule("attn_v=q8_0"),),
        overrides=(Override("a", 1),),
        leave_output_tensor=True,
        max_buffer_bytes=1 << 20,
    )
    told = native_settings(request, parse_target("Q4_0"), [Override("b", "x")], dry_run=True)
    assert (told.file_type, told.threads, told.output_tensor_type, told.token_embedding_type) == (2, 3, 14, None)
    assert told.tensor_types == (("attn_v", 8),)
    assert told.overrides == (("a", 1), ("b", "x"))
    assert (told.dry_run, told.leave_output_tensor, told.max_buffer_bytes, told.only_copy) == (
        True,
        True,
        1 << 20,
        False,
    )


def test_rules_with_a_float_type_are_told_as_quantizing() -> None:
    request = QuantizeRequest(threads=1, rules=(parse_rule("attn_v=q8_0"),), overrides=(Override("a", 1),))
    told = native_settings(request, parse_target("BF16"), dry_run=False)
    assert told.file_type == 7
    assert told.tensor_types == (("attn_v", 8), (".*", TYPE_IDS["BF16"]))
    assert told.overrides == (("general.file_type", 32), ("a", 1))


def test_copy_is_told_as_copy() -> None:
    assert native_settings(QuantizeRequest(threads=1), parse_target("COPY"), dry_run=False).only_copy
