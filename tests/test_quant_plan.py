"""Plans out of the lines that llama.cpp logs in a dry run."""

from __future__ import annotations

import pytest

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.quant.plan import Plan, PlannedTensor, read_plan, shadowed, with_narrow_output, with_rules
from llmcli.quant.rules import parse_rule
from llmcli.quant.types import parse_target

Q4_K_M = parse_target("Q4_K_M")
LINES = [
    "llama_model_loader: - type  f16:  210 tensors",
    (
        "warning: blk.0.attn_k.weight                  - ncols    576 not divisible by 256 (required for type    q4_K) "
        "-> falling back to    q5_0"
    ),
    (
        "warning: blk.0.odd.weight                     - ncols     48 not divisible by 256 (required for type    q4_K) "
        "(WARNING: must use F16 due to unusual shape) -> falling back to     f16"
    ),
    (
        "[   1/   4] token_embd.weight                    - [   576,    100,      1,      1], type =    f16, "
        "size =     0.11 MiB ->     0.06 MiB (q8_0)"
    ),
    (
        "[   2/   4] blk.0.attn_k.weight                  - [   576,    192,      1,      1], type =    f16, "
        "size =     0.21 MiB ->     0.07 MiB (q5_0)"
    ),
    (
        "[   3/   4] blk.0.attn_norm.weight               - [   576,      1,      1,      1], type =    f32, "
        "size =    0.002 MiB"
    ),
    (
        "[   4/   4] blk.0.odd.weight                     - [    48,     10,      2,      1], type =    f32, "
        "size =     0.00 MiB ->     0.00 MiB (f16)"
    ),
    "llama_model_quantize_impl: model size  =    92.10 MiB (5.74 BPW)",
]


@pytest.fixture(name="plan")
def made_plan() -> Plan:
    return read_plan(LINES, Q4_K_M)


def test_what_is_read(plan: Plan) -> None:
    assert plan.tensors == (
        PlannedTensor("token_embd.weight", (576, 100, 1, 1), "F16", "Q8_0", "Q8_0"),
        PlannedTensor("blk.0.attn_k.weight", (576, 192, 1, 1), "F16", "Q5_0", "Q4_K"),
        PlannedTensor("blk.0.attn_norm.weight", (576, 1, 1, 1), "F32", "F32", "F32"),
        PlannedTensor("blk.0.odd.weight", (48, 10, 2, 1), "F32", "F16", "Q4_K"),
    )


def test_sizes_are_exact(plan: Plan) -> None:
    assert [t.target_bytes for t in plan.tensors] == [576 // 32 * 34 * 100, 576 // 32 * 22 * 192, 2304, 48 * 20 * 2]
    assert plan.elements == 576 * 100 + 576 * 192 + 576 + 960
    assert plan.source_bytes == 576 * 100 * 2 + 576 * 192 * 2 + 2304 + 960 * 4
    assert plan.bpw == plan.target_bytes * 8 / plan.elements
    assert plan.file_bytes(1000) >= plan.target_bytes + 1000


def test_fallbacks(plan: Plan) -> None:
    assert [t.name for t in plan.fallbacks] == ["blk.0.attn_k.weight", "blk.0.odd.weight"]
    assert plan.fallback_share == (576 * 192 + 960) / plan.elements


def test_the_silent_fallback_of_the_output(plan: Plan) -> None:
    told = with_narrow_output(plan, pure=False, output_type=None)
    assert told.tensors[0].wanted_type == "Q6_K"
    assert with_narrow_output(plan, pure=True, output_type=None) == plan
    assert with_narrow_output(plan, pure=False, output_type="Q8_0") == plan


def test_with_an_output_of_its_own_the_embeddings_are_meant(plan: Plan) -> None:
    line = LINES[3].replace("token_embd.weight", "output.weight    ")
    told = with_narrow_output(read_plan([*LINES, line], Q4_K_M), pure=False, output_type=None)
    assert [(t.name, t.wanted_type) for t in told.tensors if t.fell_back][-1] == ("output.weight", "Q6_K")
    assert not told.tensors[0].fell_back


def test_requantized() -> None:
    plan = read_plan([LINES[4].replace("f16", "q4_1")], Q4_K_M)
    assert [t.source_type for t in plan.requantized] == ["Q4_1"]
    assert not read_plan([LINES[4]], Q4_K_M).requantized


def test_rules_are_noted(plan: Plan) -> None:
    told = with_rules(plan, [parse_rule("attn_k=q4_k")], outranked=frozenset())
    assert [t.rule for t in told.tensors] == [None, "attn_k=q4_k", None, None]


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (["nothing=q8_0"], "fits no tensor"),
        (["attn_norm=q8_0"], "not quantized"),
        (["token_embd=q8_0"], "by another option"),
    ],
)
def test_rules_that_do_nothing_are_refused(plan: Plan, rules: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        with_rules(plan, [parse_rule(rule) for rule in rules], outranked=frozenset({"token_embd.weight"}))


def test_a_rule_behind_another_is_told(plan: Plan) -> None:
    rules = [parse_rule("attn_k=q4_k"), parse_rule("blk.0.attn_k=q8_0")]
    assert shadowed(with_rules(plan, rules, outranked=frozenset()), rules) == (rules[1],)
    assert shadowed(plan, rules[1:]) == ()


def test_a_pattern_that_llama_cpp_reads_otherwise(plan: Plan) -> None:
    with pytest.raises(LlmcliError, match="in another way"):
        with_rules(plan, [parse_rule("attn_k=q8_0")], outranked=frozenset())


@pytest.mark.parametrize("lines", [[], ["nothing"], [LINES[4].replace("q5_0", "q9_0")]])
def test_no_plan(lines: list[str]) -> None:
    with pytest.raises(LlmcliError):
        read_plan(lines, Q4_K_M)


def test_names_that_look_like_the_log() -> None:
    line = LINES[4].replace("blk.0.attn_k.weight ", "[ 1/ 2] a - [1, 1], type = f16, size = 1 MiB")
    assert read_plan([line], Q4_K_M).tensors[0].name == "[ 1/ 2] a - [1, 1], type = f16, size = 1 MiB"
