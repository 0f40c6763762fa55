"""What a typed reference and a file name say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.models.reference import (
    HubReference,
    Shard,
    is_half_name,
    is_model_name,
    looks_like_path,
    model_name,
    parse_hub,
    quant_of,
    select,
    shard_of,
)

QUANTS = [
    *("Q4_0", "Q4_1", "Q8_0", "Q4_0_4_4", "Q2_K", "Q3_K_S", "Q4_K_M", "Q3_K_XL", "Q6_K", "TQ1_0", "TQ2_0"),
    *("IQ1_S", "IQ2_XXS", "IQ3_M", "IQ4_NL", "IQ4_XS", "IQ4_KS", "MXFP4", "MXFP4_MOE", "NVFP4"),
    *("BF16", "F16", "F32", "UD-Q4_K_XL", "UD-IQ2_M", "UD-Q8_K_XL"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/repo", HubReference("owner", "repo", None)),
        ("Owner/Repo-GGUF:Q4_K_M", HubReference("Owner", "Repo-GGUF", "Q4_K_M")),
        ("hf://a/b:sub/x.gguf", HubReference("a", "b", "sub/x.gguf")),
        ("a/b.c-d_e", HubReference("a", "b.c-d_e", None)),
        ("a/b/c", None),
        ("word", None),
        ("../b", None),
        ("a/..", None),
        ("a--b/c", None),
        ("a/b\n", None),
        ("/a/b", None),
        ("a/b:", None),
    ],
)
def test_parse_hub(text: str, expected: HubReference | None) -> None:
    assert parse_hub(text) == expected


@given(st.text(alphabet="ab.-_/:~\\\0\n G", max_size=12))
def test_a_parsed_repository_never_holds_a_path(text: str) -> None:
    found = parse_hub(text)
    if found:
        assert not {"..", ".", "", "~"} & {found.owner, found.repo}
        assert "--" not in found.repo_id
        assert found.repo_id.count("/") == 1


@pytest.mark.parametrize("text", ["x.gguf", "./x", "../x", "/x", "~/x", "a/b/c", "models/x.gguf", "a--b/c", "X.GGUF"])
def test_paths(text: str) -> None:
    assert looks_like_path(text)


@pytest.mark.parametrize("text", ["smollm2", "owner/repo", "owner/repo:x.gguf", "owner/repo:sub/x.gguf", "hf://a/b"])
def test_not_paths(text: str) -> None:
    assert not looks_like_path(text)


def test_shards() -> None:
    shard = shard_of("big-Q8_0-00002-of-00003.gguf")
    assert shard == Shard("big-Q8_0", 2, 3)
    assert shard.sibling(1) == "big-Q8_0-00001-of-00003.gguf"
    assert shard_of("big-2-of-3.gguf") is None


def test_names_of_models() -> None:
    assert model_name("big-Q8_0-00002-of-00003.gguf") == "big-Q8_0"
    assert model_name("tiny.GGUF") == "tiny"
    assert model_name("blob") == "blob"


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("pattern", ["Model-7B-{}.gguf", "model.{}.gguf", "{}.gguf", "m_{}-00001-of-00002.gguf"])
def test_every_quantization_is_known_in_any_place_and_case(quant: str, pattern: str) -> None:
    for spelled in (quant, quant.lower()):
        assert quant_of(pattern.format(spelled)) == quant


@pytest.mark.parametrize(
    "name", ["Qwen2.5-7B.gguf", "x-Q4_K_NEW.gguf", "xQ4_0.gguf", "llama-3-8b.gguf", "x-Q4_0a.gguf"]
)
def test_a_field_that_is_not_known_is_none_never_a_shorter_one(name: str) -> None:
    assert quant_of(name) is None


@pytest.mark.parametrize(
    "name", ["m.gguf", "M-Q4_0.GGUF", "m-imatrix-Q4_K_M.gguf", "m-Q4_K_M-imat.gguf", "m-00002-of-00002.gguf"]
)
def test_model_names(name: str) -> None:
    assert is_model_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "mmproj-F16.gguf",
        "m-mmproj-Q8_0.gguf",
        "imatrix.gguf",
        "imatrix_unsloth.gguf",
        "m-BF16-imatrix.gguf",
        "m.gguf.incomplete",
        "m.gguf.part",
        ".m.gguf",
        "m.bin",
        "imatrix.dat",
    ],
)
def test_names_that_are_no_models(name: str) -> None:
    assert not is_model_name(name)


def test_half_names() -> None:
    assert is_half_name("abc.1234.incomplete")
    assert is_half_name("x.gguf.PART")
    assert not is_half_name("x.gguf")


NAMES = [
    "M-Q4_K.gguf",
    "M-Q4_K_M.gguf",
    "M-UD-Q4_K_XL.gguf",
    "M-Q8_0.gguf",
    "M-UD-Q8_0.gguf",
    "BF16/M-00001-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("q4_k", ["M-Q4_K.gguf"]),
        ("Q4_K_M", ["M-Q4_K_M.gguf"]),
        ("Q4_K_XL", ["M-UD-Q4_K_XL.gguf"]),
        ("ud-q4_k_xl", ["M-UD-Q4_K_XL.gguf"]),
        ("Q8_0", ["M-Q8_0.gguf"]),
        ("UD-Q8_0", ["M-UD-Q8_0.gguf"]),
        ("Q4", []),
        ("Q5_K_M", []),
        ("K_M", []),
        ("m-q4_k_m.GGUF", ["M-Q4_K_M.gguf"]),
        ("M-Q4_K_M", ["M-Q4_K_M.gguf"]),
        ("bf16", ["BF16/M-00001-of-00002.gguf"]),
        ("BF16/M", ["BF16/M-00001-of-00002.gguf"]),
        ("M-00001-of-00002.gguf", ["BF16/M-00001-of-00002.gguf"]),
        ("../M-Q4_K.gguf", []),
    ],
)
def test_select(selector: str, expected: list[str]) -> None:
    assert select(selector, NAMES, "M-GGUF") == expected


def test_select_words_of_the_authors_own() -> None:
    names = ["Model-Compact.gguf", "Model-I-Compact.gguf"]
    assert select("COMPACT", names, "Model-GGUF") == ["Model-Compact.gguf"]
    assert select("i-compact", names, "Model-GGUF") == ["Model-I-Compact.gguf"]


def test_two_files_of_one_quantization_are_both_returned() -> None:
    names = ["Model-MTP-Q6_K.gguf", "Model-Q6_K.gguf"]
    assert select("Q6_K", names, "Model-GGUF") == names
