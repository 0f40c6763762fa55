"""Versions, folders, the default model, environment and config: facts without secrets, and without the network."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from llmcli.base.settings import Settings, load
from llmcli.base.version import VERSION
from llmcli.engine import surroundings
from llmcli.engine.surroundings import (
    HIDDEN,
    DefaultModelState,
    config_in_force,
    environment_in_force,
    read_default_model,
    read_folders,
    read_versions,
)


def with_config(text: str) -> Settings:
    path = load().config_file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return load()


def test_versions() -> None:
    found = read_versions()
    assert found.llmcli == VERSION
    assert found.llama_cpp_python == found.llama_cpp_python_wanted
    assert found.huggingface_hub


def test_versions_of_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(surroundings, "version", missing)
    monkeypatch.setattr(surroundings, "requires", missing)
    found = read_versions()
    assert (found.llama_cpp_python, found.llama_cpp_python_wanted, found.huggingface_hub) == (None, None, None)


def test_folders_that_are_not_there_yet(llmcli_home: Path) -> None:
    found = {folder.name: folder for folder in read_folders(load())}
    assert list(found) == ["config", "cache", "state", "data", "hub_cache"]
    assert found["data"].path == str(llmcli_home / "data")
    assert (found["data"].exists, found["data"].writable) == (False, True)
    assert found["data"].free_bytes
    assert not (llmcli_home / "data").exists()


def test_folder_that_is_there(llmcli_home: Path) -> None:
    (llmcli_home / "cache").mkdir()
    assert [f.exists for f in read_folders(load())] == [False, True, False, False, False]


def test_a_file_in_the_way_is_not_writable(llmcli_home: Path) -> None:
    (llmcli_home / "state").write_text("")
    found = {folder.name: folder for folder in read_folders(load())}
    assert (found["state"].exists, found["state"].writable) == (False, False)
    assert found["cache"].writable


def test_a_folder_that_may_not_be_written(llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != llmcli_home)
    assert not any(folder.writable for folder in read_folders(load()) if folder.name != "hub_cache")


def test_default_model_not_here_and_offline() -> None:
    found = read_default_model(load())
    assert (found.configured, found.path, found.fetchable, found.models_here) == (None, None, False, 0)
    assert found.problem == "the default model SmolLM2-135M-Instruct is not here, and the network is switched off"
    assert found.hint


@pytest.mark.parametrize("configured", [None, "smollm2"])
def test_default_model_not_here_and_online(monkeypatch: pytest.MonkeyPatch, configured: str | None) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    if configured:
        monkeypatch.setenv("LLMCLI_MODEL", configured)
    assert read_default_model(load()) == DefaultModelState(configured, None, True, None, None, 0)


def test_configured_model_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("LLMCLI_MODEL", "/no/such.gguf")
    found = read_default_model(load())
    assert (found.configured, found.path, found.fetchable) == ("/no/such.gguf", None, False)
    assert found.problem
    assert "/no/such.gguf" in found.problem


def test_the_only_model_here(scripted_model: Callable[..., Path]) -> None:
    folder = load().data_dir / "models"
    folder.mkdir(parents=True)
    (folder / "mine.gguf").write_bytes(scripted_model(["hi"]).read_bytes())
    assert read_default_model(load()) == DefaultModelState(None, str(folder / "mine.gguf"), False, None, None, 1)


def test_environment_shows_what_matters_and_no_secret() -> None:
    environment = {
        "PATH": "/bin",
        "LLMCLI_CTX_SIZE": "512",
        "LLMCLI_MAX_TOKENS": "9",
        "HF_TOKEN": "hf_secret1",
        "HUGGING_FACE_HUB_TOKEN": "hf_secret2",
        "LLMCLI_API_KEY": "secret3",
        "https_proxy": "http://me:secret4@proxy:3128",
        "LANG": "C.UTF-8\x1b[2J",
    }
    found = environment_in_force(replace(load(), environment=environment))
    assert found == {
        "HF_TOKEN": HIDDEN,
        "HUGGING_FACE_HUB_TOKEN": HIDDEN,
        "LANG": "C.UTF-8\\x1b[2J",
        "LLMCLI_API_KEY": HIDDEN,
        "LLMCLI_CTX_SIZE": "512",
        "LLMCLI_MAX_TOKENS": "9",
        "https_proxy": "http://proxy:3128",
    }


def test_config_shows_values_and_no_secret() -> None:
    settings = with_config(
        'ctx-size = 512\ntemp = 0.5\nmlock = true\nhf_token = "secret"\nfolders = ["~/m"]\nsince = 2024-01-02\n'
        '[alias]\ntiny = "smollm2"\n'
    )
    assert config_in_force(settings) == {
        "alias": {"tiny": "smollm2"},
        "ctx-size": 512,
        "folders": ["~/m"],
        "hf_token": HIDDEN,
        "mlock": True,
        "since": "2024-01-02",
        "temp": 0.5,
    }
