"""The types by name and number, as llama-quantize has them, and what is known of each."""

from __future__ import annotations

import pytest

from llmcli.base.errors import UsageError
from llmcli.models.gguf_types import FILE_TYPES, TYPE_IDS, WEIGHT_TYPES
from llmcli.quant.types import (
    TARGET_TYPES,
    TargetType,
    bits_per_weight,
    find_target,
    fits,
    nbytes,
    needs_imatrix,
    parse_target,
    parse_targets,
    parse_tensor_type,
    suffers_without_imatrix,
)
from tests.quantize_case import REFERENCE


def test_there_is_every_type_of_llama_quantize_once() -> None:
    names = [target.name for target in TARGET_TYPES]
    assert len(set(names)) == len(names)
    assert {*names} == {name for name in REFERENCE["wide"] if not name.startswith("imatrix-")}


@pytest.mark.parametrize("target", TARGET_TYPES, ids=lambda target: target.name)
def test_name_and_number_mean_the_same(target: TargetType) -> None:
    assert parse_target(target.name.lower()) == target
    if not target.copies:
        assert parse_target(str(target.file_type)) == target
        assert FILE_TYPES[target.file_type] == target.name.removesuffix("_MOE")


def test_a_number_shared_with_copy_is_f32() -> None:
    assert parse_target("0").name == "F32"
    assert parse_target("copy").copies


@pytest.mark.parametrize(("alias", "name"), [("Q3_K", "Q3_K_M"), ("q4_k", "Q4_K_M"), ("Q5_K", "Q5_K_M")])
def test_aliases(alias: str, name: str) -> None:
    assert parse_target(alias).name == name


def test_several_types_in_order_each_once() -> None:
    assert [target.name for target in parse_targets("q8_0, 15,Q4_K_M,")] == ["Q8_0", "Q4_K_M"]


@pytest.mark.parametrize("text", ["Q4_KK", "4.0", "99", "-1", "Q4_0x", "model.gguf", "²"])
def test_no_type(text: str) -> None:
    assert find_target(text) is None
    with pytest.raises(UsageError, match="is no type"):
        parse_target(text)


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_nothing_given(text: str) -> None:
    with pytest.raises(UsageError, match="no TYPE"):
        parse_targets(text)


def test_a_slip_is_answered_with_what_is_meant() -> None:
    with pytest.raises(UsageError) as caught:
        parse_target("Q4KM")
    assert "Q4_K_M" in (caught.value.hint or "")


@pytest.mark.parametrize("number", sorted(WEIGHT_TYPES))
def test_tensor_types_by_ggmls_names(number: int) -> None:
    name = next(name for name, known in TYPE_IDS.items() if known == number)
    assert parse_tensor_type(name.lower()) == name


@pytest.mark.parametrize("text", ["Q8_K", "I32", "Q8_1", "nope"])
def test_types_that_no_weight_can_have(text: str) -> None:
    with pytest.raises(UsageError, match="no type of a tensor"):
        parse_tensor_type(text)


def test_a_mix_is_no_type_of_a_tensor() -> None:
    with pytest.raises(UsageError) as caught:
        parse_tensor_type("Q4_K_M")
    assert "Q4_K" in (caught.value.hint or "")


def test_sizes() -> None:
    assert bits_per_weight("Q4_0") == 4.5
    assert bits_per_weight("IQ2_XXS") == 2.0625
    assert nbytes("Q6_K", 512, 3) == 3 * 2 * 210
    assert fits("Q4_K", 512)
    assert not fits("Q4_K", 576)


@pytest.mark.parametrize("target", TARGET_TYPES, ids=lambda target: target.name)
def test_needing_a_matrix_agrees_with_llama_quantize(target: TargetType) -> None:
    made = REFERENCE["wide"]["imatrix-" + target.name]
    needs = any(needs_imatrix("blk.0.ffn_up.weight", name, target) for name in made["tensor_types"])
    assert needs == (REFERENCE["wide"][target.name] is None)


@pytest.mark.parametrize(("tensor_type", "needs"), [("IQ2_S", False), ("IQ3_XXS", False), ("IQ2_XXS", True)])
def test_embeddings_and_output_need_one_only_where_ggml_aborts(tensor_type: str, needs: bool) -> None:
    for name in ("token_embd.weight", "output.weight"):
        assert needs_imatrix(name, tensor_type, parse_target("Q4_0")) == needs


@pytest.mark.parametrize(("name", "suffers"), [("Q4_0", True), ("IQ4_NL", True), ("Q6_K", False), ("F16", False)])
def test_suffering_without_one(name: str, suffers: bool) -> None:
    assert suffers_without_imatrix(parse_target(name)) == suffers
