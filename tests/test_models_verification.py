"""Verifying: bytes against whatever states a digest, header and tensors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import ModelError
from llmcli.base.settings import Settings
from llmcli.models import verification
from llmcli.models.identity import inspect_model, known_content_id
from llmcli.models.library import own_folder
from llmcli.models.verification import Verification, verify_model
from tests.fixtures.gguf_edit import load
from tests.library_case import add_to_cache, tiny


@pytest.fixture
def settings(llmcli_home: Path) -> Settings:
    return settings_module.load()


@pytest.fixture
def model(scripted_model: Callable[..., Path]) -> bytes:
    return scripted_model(["Hello"]).read_bytes()


def verify(path: Path, settings: Settings) -> Verification:
    return verify_model(path, settings, on_bytes=lambda _done, _total: None)


def test_a_blob_of_the_cache_is_proven(settings: Settings, model: bytes) -> None:
    link = add_to_cache(settings, "o/M-GGUF", "m.gguf", model)
    found = verify(link, settings)
    (file,) = found.files
    assert (file.sha256, file.expected, file.stated_by, file.matches) == (
        hashlib.sha256(model).hexdigest(), hashlib.sha256(model).hexdigest(), "the hub", True,
    )  # fmt: skip
    assert (found.is_sound, found.is_proven, found.problem, found.as_before) == (True, True, None, None)
    assert found.n_tensors > 0


@pytest.mark.parametrize("at", [-1, -1000])
def test_one_flipped_bit_in_the_weights(settings: Settings, model: bytes, at: int) -> None:
    data = bytearray(model)
    data[at] ^= 1
    link = add_to_cache(settings, "o/M-GGUF", "m.gguf", bytes(data), digest=hashlib.sha256(model).hexdigest())
    found = verify(link, settings)
    assert (found.files[0].matches, found.is_sound, found.is_proven) == (False, False, False)


def test_a_small_file_of_git_has_its_sha1(settings: Settings, model: bytes) -> None:
    git = hashlib.sha1(b"blob %d\0" % len(model) + model).hexdigest()
    found = verify(add_to_cache(settings, "o/M-GGUF", "m.gguf", model, digest=git), settings)
    assert (found.files[0].expected, found.is_proven) == (git, True)
    found = verify(add_to_cache(settings, "o/M-GGUF", "n.gguf", model, digest="0" * 40), settings)
    assert not found.is_sound


def test_a_file_that_nothing_is_stated_of(settings: Settings, model: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model)
    found = verify(path, settings)
    assert (found.files[0].expected, found.files[0].matches) == (None, None)
    assert (found.is_sound, found.is_proven) == (True, False)


def test_bytes_that_went_bad_after_the_first_use(settings: Settings, model: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model)
    inspect_model(path, settings)
    found = verify(path, settings)
    assert (found.as_before, found.is_proven) == (True, True)
    # What a disk does: the bytes change, and nothing that the system notes of the file.
    path.write_bytes(model[:-1] + bytes([model[-1] ^ 1]))
    assert known_content_id(path, settings) is None
    assert verify(path, settings).as_before is None
    inspect_model(path, settings)
    assert verify(path, settings).as_before is True


def test_a_remembered_content_that_is_no_longer_there(
    settings: Settings, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model)
    monkeypatch.setattr(verification, "known_content_id", lambda _path, _settings: "0" * 64)
    found = verify(path, settings)
    assert (found.as_before, found.is_sound) == (False, False)


def test_a_header_that_cannot_be_run_is_a_problem_and_the_bytes_are_checked_all_the_same(
    settings: Settings, tmp_path: Path
) -> None:
    found = verify(tiny().write(tmp_path / "m.gguf"), settings)
    assert found.problem is not None
    assert (found.is_sound, found.files[0].size_bytes) == (False, os.stat(tmp_path / "m.gguf").st_size)


def test_what_is_cut_off_has_no_verdict_but_an_error(settings: Settings, model: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model[:-1])
    with pytest.raises(ModelError, match="cut off"):
        verify(path, settings)


def test_every_part_of_a_split_model(settings: Settings, model: bytes, tmp_path: Path) -> None:
    whole = tmp_path / "w.gguf"
    whole.write_bytes(model)
    first, second = load(whole), tiny()
    half = len(first.tensors) // 2
    second.tensors, first.tensors = first.tensors[half:], first.tensors[:half]
    count = len(first.tensors) + len(second.tensors)
    for number, part in enumerate((first, second)):
        part.set("split.count", 2, 2).set("split.no", 2, number).set("split.tensors.count", 5, count)
    data = [part.dump() for part in (first, second)]
    links = [add_to_cache(settings, "o/M", f"m-0000{n}-of-00002.gguf", some) for n, some in enumerate(data, 1)]
    told: list[tuple[int, int]] = []
    found = verify_model(links[1], settings, on_bytes=lambda done, total: told.append((done, total)))
    assert [file.matches for file in found.files] == [True, True]
    assert (found.problem, found.n_tensors, found.is_proven) == (None, count, True)
    assert told[-1] == (sum(map(len, data)), sum(map(len, data)))
    inspect_model(links[0], settings)
    assert verify(links[0], settings).as_before is True


def test_the_default_model_has_a_digest_of_its_own(settings: Settings, model: bytes) -> None:
    path = own_folder(settings) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(model)
    found = verify(path, settings)
    assert (found.files[0].stated_by, found.files[0].matches) == ("llmcli", False)
