"""The record of a model, and its way through JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.check import check_model
from llmcli.models.facts import ModelFacts, facts_from_json, require_vocabulary
from tests.fixtures.fuzz_bases import make_bases
from tests.fixtures.gguf_edit import STRING, U32, load

EXPECTED_SMOLLM2 = {
    "architecture": "llama",
    "name": "Smollm2 135M 8k Lc100K Mix1 Ep2",
    "license": "apache-2.0",
    "n_ctx_train": 8192,
    "n_layer": 30,
    "n_embd": 576,
    "n_head": 9,
    "n_head_kv": (3,) * 30,
    "n_embd_head_k": 64,
    "n_embd_head_v": 64,
    "sliding_window": None,
    "n_vocab": 49152,
    "tokenizer_model": "gpt2",
    "longest_token_bytes": 162,
    "has_chat_template": True,
    "n_positions": None,
    "quant": "Q4_1",
    "n_params": 134_515_008,
    "tensor_bytes": 96_576_768,
    "file_bytes": 98_362_432,
}


def test_smollm2(smollm2_path: Path) -> None:
    facts = check_model(smollm2_path)
    assert {name: getattr(facts, name) for name in EXPECTED_SMOLLM2} == EXPECTED_SMOLLM2
    assert facts.shards == (str(smollm2_path),)
    assert facts.bpw == pytest.approx(5.7437, abs=1e-4)


def test_gemma3(gemma3_path: Path) -> None:
    facts = check_model(gemma3_path)
    assert (facts.architecture, facts.quant, facts.n_vocab, facts.sliding_window) == ("gemma3", "Q4_K_M", 262144, 512)
    assert facts.window_layers == ((True,) * 5 + (False,)) * 3
    assert (facts.has_chat_template, facts.n_ctx_train, facts.tensor_bytes) == (False, 32768, 246_587_904)


def test_json_round_trip(random_model: Callable[[str], Path], scripted_model: Callable[..., Path]) -> None:
    for path in (random_model("hybrid"), random_model("iswa"), random_model("mamba"), scripted_model(["Hello"])):
        facts = check_model(path, need_vocabulary=False)
        assert facts_from_json(json.loads(json.dumps(facts.as_json()))) == facts
        assert len(json.dumps(facts.as_json())) < 4096


@pytest.mark.parametrize("damage", ["missing", "extra", "list", "kind"])
def test_other_json_is_refused(scripted_model: Callable[..., Path], damage: str) -> None:
    data = check_model(scripted_model(["Hello"])).as_json()
    if damage == "missing":
        del data["quant"]
    elif damage == "extra":
        data["more"] = 1
    elif damage == "list":
        data["n_head_kv"] = 3
    with pytest.raises(ValueError, match="not the"):
        facts_from_json([data] if damage == "kind" else data)


def test_the_longest_token_bounds_the_number_of_tokens(scripted_model: Callable[..., Path]) -> None:
    facts = check_model(scripted_model(["Hello", " wonderful", " world"]))
    assert facts.longest_token_bytes == len("▁wonderful".encode())


def test_learned_positions_limit_the_context(tmp_path: Path, scripted_model: Callable[..., Path]) -> None:
    path = make_bases(tmp_path)["learned positions"].write(tmp_path / "model.gguf")
    assert check_model(path).n_positions == 512
    assert check_model(scripted_model(["Hello"])).n_positions is None


@pytest.mark.parametrize(
    ("file_type", "expected"), [(15, "Q4_K_M"), (0, "F32"), (None, "F32"), (4, "F32"), (1024 + 15, "F32")]
)
def test_quantization(
    tmp_path: Path, scripted_model: Callable[..., Path], file_type: int | None, expected: str
) -> None:
    model = load(scripted_model(["Hello"])).drop("general.file_type")
    if file_type is not None:
        model.set("general.file_type", U32, file_type)
    assert check_model(model.write(tmp_path / "model.gguf")).quant == expected


def test_a_file_type_left_unset(tmp_path: Path, scripted_model: Callable[..., Path]) -> None:
    model = load(scripted_model(["Hello"], width=288))
    for tensor in model.tensors:
        if len(tensor.shape) > 1:
            tensor.type_id, tensor.data = 8, bytes(34 * tensor.shape[0] // 32 * tensor.shape[1])
    assert model.get("general.file_type") == 0
    assert check_model(model.write(tmp_path / "model.gguf")).quant == "Q8_0"


def test_names_that_are_no_text(tmp_path: Path, scripted_model: Callable[..., Path]) -> None:
    model = load(scripted_model(["Hello"])).set("general.license", U32, 1).set("general.name", STRING, b"\xff\x1b")
    facts = check_model(model.write(tmp_path / "model.gguf"))
    assert (facts.name, facts.license) == ("\ufffd\x1b", None)
    assert facts_from_json(json.loads(json.dumps(facts.as_json()))) == facts


def test_a_vocabulary_is_asked_for(random_model: Callable[[str], Path]) -> None:
    facts: ModelFacts = check_model(random_model("plain"), need_vocabulary=False)
    with pytest.raises(ModelError, match=r"has no tokenizer \(tokenizer.ggml.model is 'no_vocab'\)"):
        require_vocabulary(facts)
