"""`llmcli verify` and `llmcli path` as processes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.settings import Settings, load
from llmcli.models.library import own_folder
from tests.cli_run_case import refused
from tests.conftest import RunCli
from tests.library_case import add_to_cache, parsed, tiny


@pytest.fixture
def settings(llmcli_home: Path) -> Settings:
    return load()


@pytest.fixture
def model(scripted_model: Callable[..., Path]) -> bytes:
    return scripted_model(["Hello"]).read_bytes()


def test_a_sound_model(run_cli: RunCli, settings: Settings, model: bytes) -> None:
    add_to_cache(settings, "o/M-GGUF", "m.gguf", model)
    done = run_cli("verify", "o/M-GGUF")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("o/M-GGUF: ok\n")
    assert f"sha256 {hashlib.sha256(model).hexdigest()[:12]}…: as the hub states it" in done.out
    (found,) = parsed(run_cli("verify", "--json", "o/M-GGUF"))
    assert (found["sound"], found["proven"], found["problem"]) == (True, True, None)


def test_wrong_bytes(run_cli: RunCli, settings: Settings, model: bytes) -> None:
    stated = hashlib.sha256(model).hexdigest()
    add_to_cache(settings, "o/M-GGUF", "m.gguf", model[:-1] + b"\xff", digest=stated)
    done = run_cli("verify", "o/M-GGUF")
    assert done.code == 3
    assert done.out.startswith("o/M-GGUF: WRONG\n")
    assert f"NOT what the hub states, {stated}" in done.out
    assert "remove it (llmcli rm) and pull it again" in done.out


def test_all_of_them_one_bad_one_does_not_hide_the_others(run_cli: RunCli, settings: Settings, model: bytes) -> None:
    folder = own_folder(settings)
    folder.mkdir(parents=True)
    (folder / "a.gguf").write_bytes(model)
    (folder / "b.gguf").write_bytes(model[:-100])
    (folder / "c.gguf").symlink_to(folder / "gone")
    tiny().text("general.type", "adapter").text("adapter.type", "lora").write(folder / "lora.gguf")
    done = run_cli("verify", "--all")
    assert done.code == 3
    verdicts = [line.rpartition(": ")[2] for line in done.out.splitlines() if not line.startswith(" ")]
    assert verdicts == ["ok", "WRONG", "WRONG"]
    found = parsed(run_cli("verify", "--all", "--json"))
    assert [entry["sound"] for entry in found] == [True, False, False]


def test_bad_input(run_cli: RunCli, tmp_path: Path) -> None:
    assert "no model called nosuch" in refused(run_cli("verify", "nosuch"), 3)
    assert "name models, or --all" in refused(run_cli("verify"), 2)
    assert "--all leaves no model to name" in refused(run_cli("verify", "--all", "x"), 2)
    (tmp_path / "page.gguf").write_bytes(b"<html>")
    assert "an HTML page" in refused(run_cli("verify", tmp_path / "page.gguf"), 3)


def test_path(run_cli: RunCli, settings: Settings, model: bytes) -> None:
    link = add_to_cache(settings, "o/M-GGUF", "m.gguf", model)
    assert run_cli("path", "o/M-GGUF").out == f"{link}\n"
    assert run_cli("path", "--real", "o/M-GGUF").out == f"{os.path.realpath(link)}\n"
    assert parsed(run_cli("path", "--json", "m")) == {
        "reference": "m", "name": "m", "path": str(link), "files": [str(link)],
    }  # fmt: skip
    assert "no model called nosuch" in refused(run_cli("path", "nosuch"), 3)
    assert run_cli("path").code == 2


def test_the_path_of_the_default_model_fetches_nothing(run_cli: RunCli, llmcli_home: Path) -> None:
    assert "is not here yet" in refused(run_cli("path", "smollm2", env={"HF_HUB_OFFLINE": None}), 3)


def test_the_paths_of_all_parts(run_cli: RunCli, settings: Settings) -> None:
    links = []
    for number in (1, 2):
        part = tiny().set("split.count", 2, 2).set("split.no", 2, number - 1).set("split.tensors.count", 5, 2)
        part.tensors[0].name = b"t%d" % number
        links.append(add_to_cache(settings, "o/M", f"m-0000{number}-of-00002.gguf", part.dump()))
    assert run_cli("path", "--all", "o/M").out == "".join(f"{link}\n" for link in links)
    assert run_cli("path", links[1]).out == f"{links[0]}\n"
