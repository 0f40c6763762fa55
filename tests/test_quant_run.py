"""Quantizing from end to end: the same bytes as llama-quantize for every type, and what is refused on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmcli.base.errors import LlmcliError, ModelError, ResourceError, UsageError
from llmcli.models.gguf_header import read_header
from llmcli.quant import run
from llmcli.quant.child import Child
from llmcli.quant.place import WORK_PREFIX, target_at
from llmcli.quant.plan import read_plan
from llmcli.quant.request import Override, QuantizeRequest, parse_override
from llmcli.quant.rules import parse_rule
from llmcli.quant.types import TARGET_TYPES, parse_target
from tests.fixtures.wide_model import SHAPES, write_wide, write_wide_imatrix
from tests.quantize_case import REFERENCE, Quiet, metadata_digest, quantize, tensor_digest, tensor_types, type_of

PLAIN = QuantizeRequest(threads=2)
NAMES = [target.name for target in TARGET_TYPES]


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child() as child:
        yield child


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wide(tmp_path_factory.mktemp("wide") / "wide.gguf")


@pytest.fixture(scope="module")
def matrix(wide: Path) -> Path:
    return write_wide_imatrix(wide.with_name("im.gguf"))


def same(out: Path, expected: dict[str, Any]) -> None:
    """The tensors byte for byte, and the metadata but for provenance."""
    assert tensor_types([out]) == expected["tensor_types"]
    assert tensor_digest(out) == expected["tensor_data_sha256"]
    if "metadata_sha256" in expected:
        assert metadata_digest(out) == expected["metadata_sha256"]


def test_the_model_is_the_one_that_was_measured(wide: Path) -> None:
    assert tensor_digest(wide) == REFERENCE["wide_source_sha256"]


@pytest.mark.parametrize("name", [name for name in NAMES if REFERENCE["wide"][name]])
def test_every_type_has_the_bytes_of_llama_quantize(child: Child, wide: Path, tmp_path: Path, name: str) -> None:
    outcome = quantize(child, wide, tmp_path / "out.gguf", name, PLAIN)
    same(outcome.target.first, REFERENCE["wide"][name])
    assert outcome.file_bytes == REFERENCE["wide"][name]["file_bytes"]
    assert not outcome.plan.fallbacks


@pytest.mark.parametrize("name", NAMES)
def test_every_type_with_a_matrix_too(child: Child, wide: Path, matrix: Path, tmp_path: Path, name: str) -> None:
    outcome = quantize(child, wide, tmp_path / "out.gguf", name, replace(PLAIN, imatrix=matrix))
    same(outcome.target.first, REFERENCE["wide"]["imatrix-" + name])


@pytest.mark.parametrize("name", [name for name in NAMES if REFERENCE["wide"][name] is None])
def test_types_that_need_a_matrix_refuse_without(child: Child, wide: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(LlmcliError, match="without an importance matrix") as caught:
        quantize(child, wide, tmp_path / "out.gguf", name, PLAIN)
    assert "--imatrix" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_an_output_type_that_would_abort_llama_cpp_is_refused(child: Child, wide: Path, tmp_path: Path) -> None:
    with pytest.raises(LlmcliError, match=r"noise of output\.weight"):
        quantize(child, wide, tmp_path / "out.gguf", "Q4_0", replace(PLAIN, output_tensor_type="IQ2_XXS"))


FLAGS: dict[str, dict[str, Any]] = {
    "--pure Q4_K_M": {"pure": True},
    "--leave-output-tensor Q4_0": {"leave_output_tensor": True},
    "--output-tensor-type q4_k Q4_0": {"output_tensor_type": "Q4_K"},
    "--token-embedding-type q5_0 Q4_0": {"token_embedding_type": "Q5_0"},
    "--tensor-type attn_v=q8_0 --tensor-type ATTN_[vk]=q6_k Q4_0": {
        "rules": (parse_rule("attn_v=q8_0"), parse_rule("ATTN_[vk]=q6_k"))
    },
    "imatrix --include-weights attn_q Q4_K_M": {"include": ("attn_q",)},
    "imatrix --exclude-weights ffn Q4_K_M": {"exclude": ("ffn",)},
    "--override-kv general.name=str:renamed --override-kv llama.context_length=int:256 "
    "--override-kv tokenizer.ggml.add_bos_token=bool:true Q8_0": {
        "overrides": (
            Override("general.name", "renamed"),
            Override("llama.context_length", 256),
            Override("tokenizer.ggml.add_bos_token", True),
        )
    },
}


@pytest.mark.parametrize("flags", FLAGS)
def test_every_flag_has_the_bytes_of_llama_quantize(
    child: Child, wide: Path, matrix: Path, tmp_path: Path, flags: str
) -> None:
    request = replace(PLAIN, **FLAGS[flags], imatrix=matrix if flags.startswith("imatrix") else None)
    outcome = quantize(child, wide, tmp_path / "out.gguf", flags.rsplit(" ", 1)[1], request)
    same(outcome.target.first, REFERENCE["wide_flags"][flags])


def test_every_flag_was_measured() -> None:
    assert set(FLAGS) == set(REFERENCE["wide_flags"])


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_buffer_change_nothing(child: Child, wide: Path, tmp_path: Path, threads: int) -> None:
    request = replace(PLAIN, threads=threads, max_buffer_bytes=64 << 10)
    same(quantize(child, wide, tmp_path / "out.gguf", "Q4_K_M", request).target.first, REFERENCE["wide"]["Q4_K_M"])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rules_work_with_a_float_type_too(child: Child, tmp_path: Path, dtype: Any) -> None:
    source = write_wide(tmp_path / "in.gguf", dtype=dtype)
    request = replace(PLAIN, rules=(parse_rule("attn_v=q8_0"),))
    out = quantize(child, source, tmp_path / "out.gguf", "F16", request).target.first
    plain = quantize(child, source, tmp_path / "plain.gguf", "F16", PLAIN).target.first
    header = read_header(out)
    assert tensor_types([out]) == {"F16": 8, "Q8_0": 1, "F32": 3}
    assert type_of(header, "blk.0.attn_v.weight") == "Q8_0"
    assert header.metadata["general.file_type"] == 1
    assert metadata_digest(out) == metadata_digest(plain)


def test_a_rule_equal_to_the_type_counts_as_applied(child: Child, wide: Path, tmp_path: Path) -> None:
    request = replace(PLAIN, rules=(parse_rule("output=q4_0"),))
    outcome = quantize(child, wide, tmp_path / "out.gguf", "Q4_0", request)
    assert type_of(read_header(outcome.target.first), "output.weight") == "Q4_0"


@pytest.mark.parametrize("rule", ["nothing=q8_0", "attn_norm=q8_0"])
def test_a_rule_that_does_nothing_is_refused(child: Child, wide: Path, tmp_path: Path, rule: str) -> None:
    with pytest.raises(UsageError, match="--tensor-type"):
        quantize(child, wide, tmp_path / "out.gguf", "Q4_0", replace(PLAIN, rules=(parse_rule(rule),)))


def test_requantizing_is_refused_with_both_types_named(child: Child, wide: Path, tmp_path: Path) -> None:
    first = quantize(child, wide, tmp_path / "q8.gguf", "Q8_0", PLAIN).target.first
    before = first.read_bytes()
    with pytest.raises(LlmcliError, match="quantized already: Q8_0 to Q4_0") as caught:
        quantize(child, first, tmp_path / "out.gguf", "Q4_0", PLAIN)
    assert "--allow-requantize" in (caught.value.hint or "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q8.gguf"]
    assert first.read_bytes() == before
    quantize(child, first, tmp_path / "out.gguf", "Q4_0", replace(PLAIN, allow_requantize=True))


def test_copy_changes_no_tensor(child: Child, wide: Path, tmp_path: Path) -> None:
    out = quantize(child, wide, tmp_path / "out.gguf", "COPY", PLAIN).target.first
    assert tensor_types([out]) == tensor_types([wide])
    with pytest.raises(UsageError, match="COPY"):
        quantize(child, wide, tmp_path / "x.gguf", "COPY", replace(PLAIN, output_tensor_type="Q8_0"))


@pytest.mark.parametrize("chosen", [{"token_embedding_type": "Q4_K"}, {"output_tensor_type": "Q4_K"}])
def test_a_type_that_does_not_fit_is_refused(
    child: Child, tmp_path: Path, scripted_model: Any, chosen: dict[str, str]
) -> None:
    """llama.cpp would abort."""
    source = scripted_model(["Hello"])
    with pytest.raises(UsageError, match="does not fit"):
        quantize(child, source, tmp_path / "out.gguf", "Q4_0", replace(PLAIN, **chosen))  # type: ignore[arg-type]


def test_fallbacks_are_told_and_can_be_refused(child: Child, tmp_path: Path, scripted_model: Any) -> None:
    source = scripted_model(["Hello"])
    plan = quantize(child, source, tmp_path / "out.gguf", "Q4_K_M", PLAIN).plan
    assert {(t.wanted_type, t.target_type) for t in plan.fallbacks} >= {("Q4_K", "Q5_0"), ("Q6_K", "Q8_0")}
    assert 0.9 < plan.fallback_share < 1
    with pytest.raises(LlmcliError, match=r"cannot be Q\d_K: .* has rows of"):
        quantize(child, source, tmp_path / "x.gguf", "Q4_K_M", replace(PLAIN, no_fallback=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf"]


def test_no_fallback_where_none_is_needed(child: Child, wide: Path, tmp_path: Path) -> None:
    quantize(child, wide, tmp_path / "out.gguf", "Q4_K_M", replace(PLAIN, no_fallback=True))


def test_a_type_without_a_fallback(child: Child, tmp_path: Path, scripted_model: Any) -> None:
    with pytest.raises(LlmcliError, match="do not fit Q1_0"):
        quantize(child, scripted_model(["Hello"]), tmp_path / "out.gguf", "Q1_0", PLAIN)


def test_split_input_becomes_one_file(child: Child, tmp_path: Path) -> None:
    first = write_wide(tmp_path / "in.gguf", parts=3)
    out = quantize(child, first, tmp_path / "out.gguf", "Q4_K_M", PLAIN).target.first
    same(out, {**REFERENCE["wide"]["Q4_K_M"]})
    assert not [key for key in read_header(out).metadata if key.startswith("split.")]


def test_any_part_stands_for_all(tmp_path: Path) -> None:
    first = write_wide(tmp_path / "in.gguf", parts=3)
    opened = run.open_source(first.with_name("in-00002-of-00003.gguf"), "in")
    assert [file.name[-19:] for file in opened.files] == [f"-0000{i}-of-00003.gguf"[-19:] for i in (1, 2, 3)]


def test_keep_split(child: Child, tmp_path: Path) -> None:
    first = write_wide(tmp_path / "in.gguf", parts=3)
    outcome = quantize(child, first, tmp_path / "out-00001-of-00003.gguf", "Q8_0", replace(PLAIN, keep_split=True))
    assert [file.name for file in outcome.target.files] == [f"out-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert tensor_types(outcome.target.files) == REFERENCE["wide"]["Q8_0"]["tensor_types"]
    whole = quantize(child, outcome.target.first, tmp_path / "whole.gguf", "COPY", PLAIN).target.first
    assert tensor_digest(whole) == REFERENCE["wide"]["Q8_0"]["tensor_data_sha256"]


def test_a_missing_part_is_named(child: Child, tmp_path: Path) -> None:
    first = write_wide(tmp_path / "in.gguf", parts=3)
    first.with_name("in-00002-of-00003.gguf").unlink()
    with pytest.raises(ModelError, match="in-00002-of-00003"):
        quantize(child, first, tmp_path / "out.gguf", "Q8_0", PLAIN)


def test_layers_are_pruned(child: Child, tmp_path: Path, random_model: Any) -> None:
    source = random_model("plain")
    out = quantize(child, source, tmp_path / "out.gguf", "Q8_0", replace(PLAIN, prune_layers=(0,))).target.first
    header = read_header(out)
    assert header.metadata["llama.block_count"] == 1
    assert {t.name.split(".")[1] for t in header.tensors if t.name.startswith("blk.")} == {"0"}
    with pytest.raises(UsageError, match="no layer 2"):
        quantize(child, source, tmp_path / "x.gguf", "Q8_0", replace(PLAIN, prune_layers=(2,)))


def test_a_matrix_of_another_model_is_refused(child: Child, wide: Path, tmp_path: Path) -> None:
    other = write_wide_imatrix(tmp_path / "im.gguf", columns=64)
    with pytest.raises(LlmcliError, match="another model"):
        quantize(child, wide, tmp_path / "out.gguf", "Q4_0", replace(PLAIN, imatrix=other))


def test_a_matrix_without_a_tensor_that_needs_it(child: Child, wide: Path, tmp_path: Path) -> None:
    lacking = write_wide_imatrix(tmp_path / "im.gguf", without="blk.0.ffn_up.weight")
    request = replace(PLAIN, imatrix=lacking)
    with pytest.raises(LlmcliError, match=r"ffn_up.*without an entry"):
        quantize(child, wide, tmp_path / "out.gguf", "IQ2_XXS", request)
    heard = Quiet()
    quantize(child, wide, tmp_path / "out.gguf", "Q4_0", request, heard)
    assert heard.notes == ["1 of 12 tensors have no entry in the importance matrix, such as blk.0.ffn_up.weight"]


def test_a_note_where_a_matrix_would_help(child: Child, wide: Path, matrix: Path, tmp_path: Path) -> None:
    for name, request, notes in [("Q4_0", PLAIN, 1), ("Q4_0", replace(PLAIN, imatrix=matrix), 0), ("Q8_0", PLAIN, 0)]:
        heard = Quiet()
        quantize(child, wide, tmp_path / f"{name}-{notes}.gguf", name, request, heard)
        assert len(heard.notes) == notes


def test_progress_counts_every_tensor(child: Child, wide: Path, matrix: Path, tmp_path: Path) -> None:
    """Also where llama.cpp breaks a line in two, because a tensor has no entry in the matrix."""
    heard = Quiet()
    quantize(child, wide, tmp_path / "out.gguf", "Q4_0", replace(PLAIN, imatrix=matrix), heard)
    assert heard.done == list(range(1, 13))


def test_an_override_that_spoils_the_model_keeps_nothing(wide: Path, tmp_path: Path) -> None:
    request = replace(PLAIN, overrides=(parse_override("tokenizer.ggml.bos_token_id=str:x"),))
    with Child() as child, pytest.raises(LlmcliError, match="nothing was kept"):
        quantize(child, wide, tmp_path / "out.gguf", "Q8_0", request)
    assert list(tmp_path.iterdir()) == []


def test_an_old_output_survives_a_failure(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "out.gguf"
    old.write_bytes(b"old")
    opened, kind = run.open_source(wide, "wide"), parse_target("Q8_0")
    target = target_at(old, parts=1, forced=True)

    def spoiled(made: Any, plan: Any) -> None:
        made[0].write_bytes(made[0].read_bytes()[:-100])
        original(made, plan)

    original = run._read_back
    monkeypatch.setattr(run, "_read_back", spoiled)
    with Child() as child:
        plan = run.make_plan(child, opened, kind, PLAIN, None, Quiet())
        with pytest.raises(LlmcliError, match="no usable model"):
            run.carry_out(child, opened, plan, target, PLAIN, None, Quiet())
    assert old.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_what_is_read_back_is_compared_with_the_plan(child: Child, wide: Path, tmp_path: Path) -> None:
    opened = run.open_source(wide, "wide")
    plan = run.make_plan(child, opened, parse_target("Q4_0"), PLAIN, None, Quiet())
    other = quantize(child, wide, tmp_path / "out.gguf", "Q8_0", PLAIN).target.first
    with pytest.raises(LlmcliError, match="not what was planned"):
        run._read_back([other], plan)


def test_two_outputs_of_one_name(wide: Path, tmp_path: Path) -> None:
    target = target_at(tmp_path / "out.gguf", parts=1, forced=True)
    with pytest.raises(UsageError, match="written twice"):
        run.check_targets([target, target], run.open_source(wide, "wide"))


def test_the_matrix_is_an_input_too(wide: Path, matrix: Path) -> None:
    target = target_at(matrix, parts=1, forced=True)
    with pytest.raises(LlmcliError, match="same file"):
        run.check_targets([target], run.open_source(wide, "wide"), [matrix])


def test_room_for_all_outputs_together(child: Child, wide: Path, tmp_path: Path, monkeypatch: Any) -> None:
    opened = run.open_source(wide, "wide")
    plan = run.make_plan(child, opened, parse_target("Q8_0"), PLAIN, None, Quiet())
    target = target_at(tmp_path / "out.gguf", parts=1, forced=False)
    need = plan.file_bytes(opened.header_bytes)
    usage = type("Usage", (), {"free": 2 * need - 1})
    monkeypatch.setattr("llmcli.quant.place.shutil.disk_usage", lambda _folder: usage)
    run.check_room([(plan, target)], opened)
    with pytest.raises(ResourceError, match="the output needs"):
        run.check_room([(plan, target), (plan, target)], opened)


@pytest.mark.parametrize("name", ["Q4_0", "F16", "IQ4_NL"])
def test_the_forecast_is_kept_and_close(child: Child, wide: Path, tmp_path: Path, name: str) -> None:
    outcome = quantize(child, wide, tmp_path / "out.gguf", name, PLAIN)
    forecast = outcome.plan.file_bytes(run.open_source(wide, "wide").header_bytes)
    assert outcome.file_bytes <= forecast <= outcome.file_bytes + (70 << 10)


def test_a_folder_that_is_no_longer_writable(child: Child, wide: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """What llama.cpp calls an iostream error is looked into."""
    monkeypatch.setattr(run, "why_writing_failed", lambda folder, _: ResourceError(f"no room in {folder.parent}"))
    monkeypatch.setattr(child, "run", _iostream_error)
    monkeypatch.setattr(child, "close", lambda: None)
    opened = run.open_source(wide, "wide")
    plan = read_plan(["[ 1/ 1] a.weight - [ 32, 1, 1, 1], type = f32, size = 0.01 MiB"], parse_target("Q8_0"))
    with pytest.raises(ResourceError, match="no room"):
        run.carry_out(child, opened, plan, target_at(tmp_path / "o", parts=1, forced=False), PLAIN, None, Quiet())
    assert not [name for name in os.listdir(tmp_path) if name.startswith(WORK_PREFIX)]


def _iostream_error(*_args: object) -> float:
    raise LlmcliError("llama_model_quantize: failed to quantize: basic_ios::clear: iostream error")


# ---- the real model --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2_f16(child: Child, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("f16") / "F16.gguf"
    outcome = quantize(child, smollm2_path, out, "F16", replace(PLAIN, allow_requantize=True))
    same(outcome.target.first, REFERENCE["smollm2"]["requantize-F16"])
    return outcome.target.first


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K_M"])
def test_smollm2_requantized(child: Child, smollm2_path: Path, tmp_path: Path, name: str) -> None:
    request = replace(PLAIN, allow_requantize=True)
    outcome = quantize(child, smollm2_path, tmp_path / "out.gguf", name, request)
    same(outcome.target.first, REFERENCE["smollm2"]["requantize-" + name])
    assert outcome.file_bytes == REFERENCE["smollm2"]["requantize-" + name]["file_bytes"]


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K_M"])
def test_smollm2_from_f16(child: Child, smollm2_f16: Path, tmp_path: Path, name: str) -> None:
    outcome = quantize(child, smollm2_f16, tmp_path / "out.gguf", name, PLAIN)
    same(outcome.target.first, REFERENCE["smollm2"][name])
    assert outcome.file_bytes == REFERENCE["smollm2"][name]["file_bytes"]


def test_shapes_of_the_wide_model(wide: Path) -> None:
    shapes = run.open_source(wide, "wide").shapes
    assert {name: shapes[name] for name in SHAPES} == {name: (shape[1], shape[0]) for name, shape in SHAPES.items()}


@pytest.mark.parametrize(("bad", "reason"), [("[[:bogus:]]", "character class"), ("a{5000000}", "NFA states")])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_an_expression_that_llama_cpp_alone_refuses_is_named(
    child: Child, wide: Path, tmp_path: Path, bad: str, reason: str, at: int
) -> None:
    rules = [parse_rule(f"attn_{letter}=q8_0") for letter in "qkvo"]
    rules.insert(at, parse_rule(f"{bad}=q4_0"))
    with pytest.raises(UsageError, match="cannot read the expression of --tensor-type") as caught:
        quantize(child, wide, tmp_path / "out.gguf", "Q8_0", replace(PLAIN, rules=tuple(rules)))
    assert f"--tensor-type {bad}=q4_0: " in caught.value.message
    assert reason in caught.value.message
    assert list(tmp_path.iterdir()) == []
