"""Which file of a repository a reference means, and that nothing similar is taken for it."""

from __future__ import annotations

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.hub_listing import RemoteFile
from llmcli.models.remote_models import RemoteModel, find, models_of, require_complete, table

QUANTS = (
    *("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_1", "Q4_K", "Q4_K_S", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"),
    *("MXFP4", "NVFP4", "BF16", "F16", "F32", "UD-Q4_K_XL", "UD-IQ2_XXS", "UD-Q8_K_XL"),
)  # fmt: skip


def files(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 100 + at, f"{at:064x}") for at, name in enumerate(names)]


def names(models: list[RemoteModel] | tuple[RemoteModel, ...]) -> list[str]:
    return [model.name for model in models]


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("change", [str.lower, str.upper])
def test_the_exact_field_in_any_case(quant: str, change: object) -> None:
    assert callable(change)
    found = find(change(quant), files(*(f"Some-Model-7B-{q}.gguf" for q in QUANTS)), "Some-Model-7B-GGUF")
    assert names(found) == [f"Some-Model-7B-{quant}.gguf"]


@pytest.mark.parametrize("selector", ["Q4", "K_M", "Q4_K_XL_", "4", "GGUF", "Q5_K_S", "IQ4", ""])
def test_nothing_similar(selector: str) -> None:
    assert find(selector or "-", files(*(f"m-{q}.gguf" for q in QUANTS)), "m-GGUF") == []


def test_a_ud_variant_only_where_there_is_no_other() -> None:
    assert names(find("q4_k_xl", files("m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"), "m")) == ["m-UD-Q4_K_XL.gguf"]
    assert names(find("q8_0", files("m-UD-Q8_0.gguf", "m-Q8_0.gguf"), "m")) == ["m-Q8_0.gguf"]


def test_words_of_the_owners_own() -> None:
    two = files("Model-Compact.gguf", "Model-I-Compact.gguf")
    assert names(find("COMPACT", two, "Model-GGUF")) == ["Model-Compact.gguf"]
    assert names(find("i-compact", two, "Model-GGUF")) == ["Model-I-Compact.gguf"]


def test_a_file_name_is_a_tag_too() -> None:
    two = files("a/m-Q4_0.gguf", "b/m-Q4_0.gguf")
    assert len(find("Q4_0", two, "m")) == 2
    assert len(find("m-Q4_0.gguf", two, "m")) == 2
    assert names(find("a/m-q4_0.GGUF", two, "m")) == ["a/m-Q4_0.gguf"]


def test_companions_are_no_models() -> None:
    listing = files(
        *("mmproj-F16.gguf", "m-mmproj-Q8_0.gguf", "imatrix.gguf", "m-imatrix.gguf", "imatrix.dat", "README.md"),
        *("m-draft-Q4_0.gguf", "MTP/m-Q4_K_M.gguf", "eagle3-m.gguf", "m-lora-F16.gguf", ".m-Q4_0.gguf", "m-Q8_0.gguf"),
    )
    assert names(models_of(listing, "m-GGUF")) == ["m-Q8_0.gguf"]
    assert find("F16", listing, "m-GGUF") == []
    assert find("Q4_0", listing, "m-GGUF") == []
    assert names(find("mmproj-F16.gguf", listing, "m-GGUF")) == ["mmproj-F16.gguf"]


def test_a_repository_about_such_models() -> None:
    listing = files("Model-MTP-Q6_K.gguf", "Model-MTP-Q4_K_M.gguf")
    assert names(find("Q6_K", listing, "Model-MTP-GGUF")) == ["Model-MTP-Q6_K.gguf"]


def test_the_parts_of_a_split_model() -> None:
    listing = files(*(f"Q8_0/m-Q8_0-{n:05d}-of-00003.gguf" for n in (3, 1, 2)), "m-Q4_0.gguf")
    for selector in ("q8_0", "Q8_0/m-Q8_0-00002-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf", "m-Q8_0"):
        (model,) = find(selector, listing, "m")
        assert [f.name[-19:] for f in model.files] == [f"-0000{n}-of-00003.gguf"[-19:] for n in (1, 2, 3)]
        assert model.size_bytes == 303
        require_complete(model, "o/m")


def test_a_missing_part_is_named() -> None:
    (model,) = models_of(files("m-00001-of-00003.gguf", "m-00003-of-00003.gguf"), "m")
    assert model.missing == ("m-00002-of-00003.gguf",)
    with pytest.raises(ModelError, match=r"o/m lacks m-00002-of-00003\.gguf, a part of the model: nothing fetched"):
        require_complete(model, "o/m")


def test_one_file_goes_before_the_same_in_parts() -> None:
    listing = files("m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "m-Q8_0.gguf")
    assert names(find("Q8_0", listing, "m")) == ["m-Q8_0.gguf"]
    assert names(models_of(listing, "m")) == ["m-Q8_0.gguf"]
    assert len(find("m-Q8_0-00001-of-00002.gguf", listing, "m")[0].files) == 2


def test_what_quantizations_have_in_common() -> None:
    listing = files("A-1B-Q4_0.gguf", "A-1B.Q8_0.gguf", "Q5_K_M/a-1b-Q5_K_M.gguf", "B-3B-Q4_0.gguf")
    assert [m.base for m in models_of(listing, "x")] == ["a-1b", "a-1b", "a-1b", "b-3b"]


def test_the_table() -> None:
    models = models_of([RemoteFile("m-Q4_0.gguf", 5 << 30, None), RemoteFile("m-\x1b-F16.gguf", 16 << 30, None)], "m")
    lines = table(models, lambda m: 8 << 30 if m.quant == "Q4_0" else None).split("\n")
    assert lines == ["  m-Q4_0.gguf        5.0 GiB   5.00 bpw", "  m-\\x1b-F16.gguf   16.0 GiB      ? bpw"]
    many = models_of(files(*(f"m{n}.gguf" for n in range(50))), "m")
    assert table(many, lambda _: None).split("\n")[-1] == "  … and 10 more"


@pytest.mark.parametrize(
    "name",
    [".git/m-Q4_0.gguf", "a/.b/m-Q4_0.gguf", "a/" * 7 + "m-Q4_0.gguf"]
    + [f"m-Q4_0-{part}.gguf" for part in ("00000-of-00000", "00003-of-00002", "00001-of-01000", "00001-of-99999")],
)
def test_what_would_not_be_found_or_could_not_be_whole_is_no_model(name: str) -> None:
    listing = files(name, "a/" * 6 + "m-Q8_0.gguf")
    assert names(models_of(listing, "m")) == ["a/" * 6 + "m-Q8_0.gguf"]
    assert find("Q4_0", listing, "m") == []
