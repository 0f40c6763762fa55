"""A model described from its header: every fact by name, and nothing in the file that breaks it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.models.check import check_model
from llmcli.models.description import Description, Token, TypeShare, describe, plain
from llmcli.models.gguf_header import read_header
from llmcli.models.gguf_values import GgufArray
from tests.fixtures.gguf_edit import ARRAY, BOOL, F32, STRING, U32, Array, Gguf, Tensor
from tests.library_case import tiny


def described(model: Gguf, folder: Path) -> Description:
    return describe([read_header(model.write(folder / "m.gguf"))], None, None)


def test_a_bare_header(tmp_path: Path) -> None:
    found = described(tiny(), tmp_path)
    assert (found.architecture, found.name, found.quant, found.n_params, found.bpw) == ("llama", None, "F32", 32, 32)
    assert (found.licence, found.provenance, found.rope, found.sampling) == ({}, {}, {}, {})
    assert (found.chat_template, found.vocabulary.n_tokens, found.vocabulary.special) == (None, 0, ())


def test_provenance_licence_rope_and_sampling(tmp_path: Path) -> None:
    model = tiny().text("general.name", "M").text("general.license", "mit").text("general.license.link", "https://x")
    model.text("general.organization", "O").text("general.source.url", "https://s")
    model.set("general.languages", ARRAY, Array(STRING, [b"en", b"de"]))
    model.u32("general.base_model.count", 1).text("general.base_model.0.name", "Base")
    model.set("llama.rope.freq_base", F32, 10000.0).text("llama.rope.scaling.type", "yarn")
    model.set("general.sampling.temp", F32, 0.5).u32("general.sampling.top_k", 20)
    model.text("quantize.imatrix.file", "i.dat")
    found = described(model, tmp_path)
    assert found.licence == {"id": "mit", "link": "https://x"}
    assert found.provenance == {
        "organization": "O", "source_url": "https://s", "languages": ["en", "de"], "imatrix_file": "i.dat",
    }  # fmt: skip
    assert found.base_models == ("Base",)
    assert found.rope == {"freq_base": 10000.0, "scaling.type": "yarn"}
    assert found.sampling == {"temp": 0.5, "top_k": 20}


def test_the_tokenizer(tmp_path: Path) -> None:
    model = tiny().text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen2")
    model.set("tokenizer.ggml.tokens", ARRAY, Array(STRING, [b"<s>", b"a", b"\xff"]))
    model.set("tokenizer.ggml.merges", ARRAY, Array(STRING, [b"a b"]))
    model.u32("tokenizer.ggml.bos_token_id", 0).u32("tokenizer.ggml.eos_token_id", 9).u32(
        "tokenizer.ggml.eot_token_id", 2
    )
    model.set("tokenizer.ggml.add_bos_token", BOOL, True)
    model.text("tokenizer.chat_template", "{{ x }}").text("tokenizer.chat_template.tool_use", "y")
    found = described(model, tmp_path)
    assert found.vocabulary.special == (Token("bos", 0, "<s>"), Token("eos", 9, None), Token("eot", 2, "\ufffd"))
    assert (found.vocabulary.model, found.vocabulary.pre) == ("gpt2", "qwen2")
    assert (found.vocabulary.n_tokens, found.vocabulary.n_merges) == (3, 1)
    assert (found.vocabulary.adds_bos, found.vocabulary.adds_eos) == (True, None)
    assert (found.chat_template, found.other_templates) == ("{{ x }}", ("tool_use",))


def test_shares_of_the_tensor_types(tmp_path: Path) -> None:
    model = tiny()
    model.tensors += [Tensor(b"a", [64], 8, bytes(68)), Tensor(b"b", [32, 2], 8, bytes(68))]
    found = described(model, tmp_path)
    assert found.types == (
        TypeShare("Q8_0", 2, 128, 136, 136 / 264),
        TypeShare("F32", 1, 32, 128, 128 / 264),
    )
    assert sum(share.share for share in found.types) == pytest.approx(1)


@pytest.mark.parametrize("key", ["general.name", "general.license", "general.file_type", "tokenizer.ggml.model"])
@pytest.mark.parametrize(
    ("kind", "value"), [(U32, 7), (F32, math.nan), (ARRAY, Array(U32, [1])), (STRING, b"\xff\x1b")]
)
def test_a_key_of_any_type_breaks_nothing(tmp_path: Path, key: str, kind: int, value: object) -> None:
    found = described(tiny().set(key, kind, value), tmp_path)
    json.dumps([dict(found.provenance), dict(found.licence), found.name], allow_nan=False).encode()


def test_numbers_that_json_lacks_and_long_lists() -> None:
    assert plain(math.inf) == "inf"
    assert plain(math.nan) == "nan"
    assert plain(GgufArray("f32", 1, b"\0\0\x80\x7f")) == ["inf"]
    assert plain(GgufArray("u8", 100, bytes(100))) == [0] * 64 + ["…"]
    assert plain("a\udcffb") == "a\ufffdb"


def test_a_count_of_base_models_that_promises_too_much(tmp_path: Path) -> None:
    assert described(tiny().u32("general.base_model.count", 0xFFFFFFFF), tmp_path).base_models == ()


def test_facts_come_along(random_model: Callable[[str], Path]) -> None:
    path = random_model("iswa")
    facts = check_model(path, need_vocabulary=False)
    found = describe([read_header(path)], facts, None)
    assert (found.facts, found.n_params, found.tensor_bytes) == (facts, facts.n_params, facts.tensor_bytes)
    assert (found.quant, found.bpw) == (facts.quant, facts.bpw)
