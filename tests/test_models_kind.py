"""What a file is: a language model, a companion of one, or something that this build does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.gguf_header import read_header
from llmcli.models.kind import NotAModelError, check_kind
from tests.fixtures.gguf_edit import Gguf
from tests.library_case import tiny


def kind_of(model: Gguf, folder: Path) -> str:
    return check_kind(read_header(model.write(folder / "m.gguf")))


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "lfm2"])
def test_language_models(tmp_path: Path, name: str) -> None:
    assert kind_of(tiny(name), tmp_path) == name


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (tiny("clip"), "a vision or audio projector"),
        (tiny().text("general.type", "mmproj"), "a vision or audio projector"),
        (tiny().text("general.type", "adapter"), "a LoRA adapter"),
        (tiny().text("adapter.type", "lora"), "a LoRA adapter"),
        (tiny().u32("imatrix.chunk_count", 3), "an importance matrix"),
        (tiny("controlvector"), "a control vector"),
        (tiny("bert"), "an embedding model"),
        (tiny("nosuch\x1b[2J"), "which this build of llama.cpp does not know"),
    ],
)
def test_what_is_sound_and_no_model_for_text(tmp_path: Path, model: Gguf, what: str) -> None:
    with pytest.raises(NotAModelError) as caught:
        kind_of(model, tmp_path)
    assert what in caught.value.message
    assert caught.value.message.isprintable()


def test_a_file_without_an_architecture_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"general\.architecture is missing") as caught:
        kind_of(tiny().drop("general.architecture"), tmp_path)
    assert not isinstance(caught.value, NotAModelError)
