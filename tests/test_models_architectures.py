"""The table of architectures, against the library and against itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from llama_cpp import llama_cpp as lib

from llmcli.models import architectures as arch
from tests.fixtures.gguf_edit import F32, Gguf


def _log_of_loading(name: str, folder: Path) -> str:
    """What the library says about a file of this architecture that has nothing else."""
    model = Gguf().text("general.architecture", name).set(f"{name}.attention.layer_norm_rms_epsilon", F32, 1.0)
    path = model.write(folder / "model.gguf")
    lines: list[bytes] = []
    keep = lib.llama_log_callback(lambda _level, text, _data: lines.append(text))
    lib.llama_log_set(keep, ctypes.c_void_p(0))
    try:
        params = lib.llama_model_default_params()
        params.vocab_only = True
        assert not lib.llama_model_load_from_file(str(path).encode(), params)
    finally:
        lib.llama_log_set(lib.llama_log_callback(), ctypes.c_void_p(0))
    return b"".join(lines).decode()


@pytest.mark.parametrize("name", sorted(arch.KNOWN))
def test_the_library_knows_every_name(name: str, tmp_path: Path) -> None:
    log = _log_of_loading(name, tmp_path)
    assert "unknown model architecture" not in log
    assert ("unsupported model architecture" in log) is (name == "gptj")


def test_the_library_does_not_know_others(tmp_path: Path) -> None:
    assert "unknown model architecture: 'llama5'" in _log_of_loading("llama5", tmp_path)


def test_every_set_names_known_architectures() -> None:
    for name, value in vars(arch).items():
        if isinstance(value, (frozenset, set, dict)) and name.isupper():
            assert set(value) <= arch.KNOWN, name


def test_what_cannot_write_text_has_no_memory_of_its_own() -> None:
    kinds = arch.RECURRENT | arch.HYBRID | set(arch.WINDOW_PATTERN) | arch.WINDOW_LISTED | arch.LATENT_ATTENTION
    assert not kinds & set(arch.NOT_FOR_TEXT)
