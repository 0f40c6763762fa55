"""The default model: found, fetched from the hub, else from the index, and what is said on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import LlmcliError, ModelError
from llmcli.models import wheel
from llmcli.models.check import check_model
from llmcli.models.default_model import BUILT_IN, SMOLLM2, DefaultModel, ensure, find
from llmcli.models.library import own_folder
from tests.fixtures.hub_stub import COMMIT, HubStub
from tests.fixtures.small_wheels import write_pip, write_wheel

MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture(scope="module")
def content(scripted_model: Callable[..., Path]) -> bytes:
    """A real model: what is found in the cache is inspected like one."""
    return scripted_model(["Hello"]).read_bytes()


@pytest.fixture
def model(content: bytes) -> DefaultModel:
    return DefaultModel(
        name="tiny",
        title="Tiny",
        licence="MIT",
        file="tiny.gguf",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        repo_id="o/tiny-GGUF",
        revision=COMMIT,
        requirement="tiny-model==1.0",
        member=MEMBER,
        wheel_bytes=1000,
        facts=SMOLLM2.facts,
    )


@pytest.fixture
def hub(llmcli_home: Path, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStub]:
    from huggingface_hub import close_session, constants

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    (tmp_path / "hub" / "o" / "tiny-GGUF").mkdir(parents=True)
    (tmp_path / "hub" / "o" / "tiny-GGUF" / "tiny.gguf").write_bytes(content)
    close_session()
    with HubStub(tmp_path / "hub") as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.endpoint)
        yield stub
    close_session()


@pytest.fixture
def no_hub(llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")


@pytest.fixture
def pip(tmp_path: Path, content: bytes) -> tuple[str, ...]:
    path = write_wheel(tmp_path / "index", "tiny_model", "1.0", {MEMBER: content})
    return write_pip(tmp_path, f"shutil.copy({str(path)!r}, dest)")


NO_PIP = ("/nowhere/pip",)


def get(model: DefaultModel, pip: tuple[str, ...] = NO_PIP, notes: list[str] | None = None) -> Path:
    told: list[str] = [] if notes is None else notes
    return ensure(model, settings_module.load(), notify=told.append, pip=pip)


def test_the_facts_of_the_default() -> None:
    assert BUILT_IN["smollm2"] is SMOLLM2
    assert SMOLLM2.size_bytes == 98_362_432
    assert SMOLLM2.member.endswith("/" + SMOLLM2.file)
    assert len(SMOLLM2.revision) == 40
    assert len(SMOLLM2.sha256) == 64


def test_from_the_hub_into_its_cache(hub: HubStub, model: DefaultModel, content: bytes) -> None:
    notes: list[str] = []
    path = get(model, notes=notes)
    assert path.read_bytes() == content
    assert path.is_relative_to(settings_module.load().hub_cache_dir)
    assert len(notes) == 1
    for part in ("Tiny", "MiB", "MIT", hub.endpoint, "o/tiny-GGUF"):
        assert part in notes[0]
    assert not own_folder(settings_module.load()).exists()
    asked = len(hub.requests)
    assert get(model, notes=notes) == path
    assert (len(hub.requests), len(notes)) == (asked, 1)


def test_from_the_index_where_the_hub_is_out_of_reach(
    no_hub: None, model: DefaultModel, content: bytes, pip: tuple[str, ...]
) -> None:
    notes: list[str] = []
    path = get(model, pip, notes)
    assert path == own_folder(settings_module.load()) / "tiny.gguf"
    assert path.read_bytes() == content
    assert len(notes) == 2
    assert notes[1].startswith("cannot reach 127.0.0.1: Connection refused; fetching it from the package index")
    assert "tiny-model==1.0" in notes[1]
    assert get(model) == path


@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"status": 429}, {"status": 404}, {"gated": True}, {"html": True}, {"sha256": "0" * 64}]
)
def test_from_the_index_where_the_hub_has_it_not(
    hub: HubStub, model: DefaultModel, content: bytes, pip: tuple[str, ...], fault: dict[str, object]
) -> None:
    hub.set_fault("o/tiny-GGUF", **fault)
    assert get(model, pip) == own_folder(settings_module.load()) / "tiny.gguf"
    assert {r.method for r in hub.requests} == {"HEAD"}


def test_wrong_bytes_of_the_hub_do_not_stay(
    hub: HubStub, model: DefaultModel, content: bytes, pip: tuple[str, ...]
) -> None:
    (hub.root / "o" / "tiny-GGUF" / "tiny.gguf").write_bytes(content[:-1] + b"!")
    hub.set_fault("o/tiny-GGUF", sha256=model.sha256)
    notes: list[str] = []
    assert get(model, pip, notes).read_bytes() == content
    assert "wrong bytes" in notes[1]
    assert list(settings_module.load().hub_cache_dir.rglob("tiny.gguf")) == []


def test_a_failure_is_not_remembered(hub: HubStub, model: DefaultModel) -> None:
    hub.set_fault("o/tiny-GGUF", status=503)
    with pytest.raises(ModelError) as caught:
        get(model)
    assert "the hub answers 503" in caught.value.message
    assert "cannot start /nowhere/pip" in caught.value.message
    assert "-m FILE" in str(caught.value.hint)
    hub.set_fault("o/tiny-GGUF")
    assert get(model).is_file()


def test_no_pip_says_the_next_step(no_hub: None, model: DefaultModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "pip_command", lambda: None)
    with pytest.raises(ModelError) as caught:
        ensure(model, settings_module.load(), notify=lambda _: None)
    assert "this Python has no pip" in caught.value.message
    assert "ensurepip" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "LLMCLI_OFFLINE"])
def test_offline_asks_nobody(
    hub: HubStub, model: DefaultModel, pip: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    notes: list[str] = []
    with pytest.raises(ModelError) as caught:
        get(model, pip, notes)
    assert caught.value.exit_code == 3
    assert name in str(caught.value.hint)
    assert (notes, hub.requests) == ([], [])


def test_offline_and_here(model: DefaultModel, content: bytes) -> None:
    own = own_folder(settings_module.load()) / "tiny.gguf"
    own.parent.mkdir(parents=True)
    own.write_bytes(content)
    assert get(model) == own


@pytest.mark.parametrize("bad", [b"", b"GGUF", b"<html>"])
def test_a_damaged_file_of_our_own_is_fetched_again(
    no_hub: None, model: DefaultModel, content: bytes, pip: tuple[str, ...], bad: bytes
) -> None:
    own = own_folder(settings_module.load()) / "tiny.gguf"
    own.parent.mkdir(parents=True)
    own.write_bytes(bad)
    assert get(model, pip) == own
    assert own.read_bytes() == content


def cached(model: DefaultModel, revision: str, data: bytes) -> Path:
    repo = settings_module.load().hub_cache_dir / "models--o--tiny-GGUF"
    path = repo / "snapshots" / revision / model.file
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def test_another_tools_download_of_any_revision_is_used(model: DefaultModel, content: bytes) -> None:
    settings = settings_module.load()
    assert find(model, settings) is None
    path = cached(model, "d" * 40, content)
    assert find(model, settings) == path
    assert get(model) == path


def test_what_is_in_the_cache_counts_by_its_content(hub: HubStub, model: DefaultModel, content: bytes) -> None:
    """As after a kill between the client's rename and the check of the bytes."""
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    path = cached(model, COMMIT, flipped)
    assert find(model, settings_module.load()) is None
    assert get(model) == path
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_written(no_hub: None, model: DefaultModel, pip: tuple[str, ...]) -> None:
    settings = settings_module.load()
    settings.data_dir.write_text("")
    with pytest.raises(LlmcliError) as caught:
        get(model, pip)
    assert caught.value.exit_code == 1
    assert "LLMCLI_HOME" in str(caught.value.hint)


@pytest.mark.real_model
def test_the_recorded_bytes_are_those_of_the_wheel(smollm2_path: Path) -> None:
    own = own_folder(settings_module.load()) / SMOLLM2.file
    own.parent.mkdir(parents=True)
    os.symlink(smollm2_path, own)
    assert find(SMOLLM2, settings_module.load()) == own
    assert hashlib.sha256(own.read_bytes()).hexdigest() == SMOLLM2.sha256
    assert replace(check_model(smollm2_path, need_vocabulary=True), shards=SMOLLM2.facts.shards) == SMOLLM2.facts
