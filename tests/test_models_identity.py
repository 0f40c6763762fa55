"""The content id and the memo: right, quick, and never the cause of an error."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.base.settings import Settings, load
from llmcli.models import check, identity
from llmcli.models.identity import Inspected, forget, inspect_model, known_content_id, known_content_ids
from tests.test_models_shards import NAMES, split, written


@pytest.fixture
def settings(llmcli_home: Path) -> Settings:
    return load({"LLMCLI_HOME": str(llmcli_home)})


@pytest.fixture
def model(scripted_model: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copy(scripted_model(["Hello", " world"]), tmp_path / "model.gguf"))


class Counter:
    """Counts the bytes that were hashed, and the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))


def memo_of(settings: Settings) -> Path:
    (memo,) = (settings.cache_dir / "models").iterdir()
    return memo


def test_the_content_id_is_the_sha256_of_the_bytes(model: Path, settings: Settings) -> None:
    found = inspect_model(model, settings)
    assert found.content_id == hashlib.sha256(model.read_bytes()).hexdigest()
    assert found == Inspected(model, check.check_model(model), found.content_id)


def test_it_is_worked_out_once(model: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter()
    first = inspect_model(model, settings, on_hash=counter)
    size = model.stat().st_size
    assert counter.calls[-1] == (size, size)
    monkeypatch.setattr(check, "check_model", lambda *_, **__: pytest.fail("checked again"))
    again = Counter()
    assert inspect_model(model, settings, on_hash=again) == first
    assert again.calls == []


def test_a_hit_is_cheap(model: Path, settings: Settings) -> None:
    inspect_model(model, settings)
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        inspect_model(model, settings)
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.002
    assert memo_of(settings).stat().st_size < 8192


def _touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def _replace_with_a_copy(path: Path) -> None:
    status = path.stat()
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(copy, path)


def _overwrite_in_place(path: Path) -> None:
    """Other weights, and the time of the last change set back."""
    status = path.stat()
    with open(path, "r+b") as handle:
        handle.seek(-200, os.SEEK_END)
        handle.write(b"\x01")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [_touch, _replace_with_a_copy, _overwrite_in_place])
def test_a_changed_file_is_looked_at_again(model: Path, settings: Settings, change: Callable[[Path], None]) -> None:
    inspect_model(model, settings)
    change(model)
    counter = Counter()
    found = inspect_model(model, settings, on_hash=counter)
    assert counter.calls
    assert found.content_id == hashlib.sha256(model.read_bytes()).hexdigest()
    assert len(list((settings.cache_dir / "models").iterdir())) == 1


def test_links_to_one_file_share_a_memo(model: Path, settings: Settings, tmp_path: Path) -> None:
    first = inspect_model(model, settings)
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    counter = Counter()
    found = inspect_model(link, settings, on_hash=counter)
    assert counter.calls == []
    assert (found.path, found.facts.shards) == (link, (str(link),))
    assert found.content_id == first.content_id


def test_a_name_that_is_a_digest_is_not_believed(model: Path, settings: Settings, tmp_path: Path) -> None:
    blob = Path(shutil.copy(model, tmp_path / ("0" * 64)))
    counter = Counter()
    found = inspect_model(blob, settings, on_hash=counter)
    assert counter.calls
    assert found.content_id == hashlib.sha256(model.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"version": 1}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"version": 1, "facts": [], "content_id": "", "files": []}',
    ],
)
def test_a_damaged_memo_is_replaced(model: Path, settings: Settings, content: bytes) -> None:
    first = inspect_model(model, settings)
    memo = memo_of(settings)
    good = memo.read_bytes()
    memo.write_bytes(content)
    assert inspect_model(model, settings) == first
    assert memo.read_bytes() == good


@pytest.mark.parametrize(("key", "value"), [("version", 0), ("content_id", "abc"), ("files", [])])
def test_a_memo_that_does_not_fit_is_replaced(model: Path, settings: Settings, key: str, value: object) -> None:
    first = inspect_model(model, settings)
    memo = memo_of(settings)
    memo.write_text(json.dumps({**json.loads(memo.read_bytes()), key: value}))
    assert inspect_model(model, settings) == first


def test_a_memo_is_private(model: Path, settings: Settings) -> None:
    inspect_model(model, settings)
    assert memo_of(settings).stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written(model: Path, settings: Settings) -> None:
    # A file where the folder should be: that fails for every user, root too.
    settings.cache_dir.parent.mkdir(parents=True, exist_ok=True)
    settings.cache_dir.write_bytes(b"")
    for _ in range(2):
        counter = Counter()
        assert inspect_model(model, settings, on_hash=counter).content_id
        assert counter.calls


def test_a_bad_model_is_not_remembered(model: Path, settings: Settings) -> None:
    model.write_bytes(model.read_bytes()[:-100])
    for _ in range(2):
        with pytest.raises(ModelError, match="is cut off"):
            inspect_model(model, settings)
    assert not (settings.cache_dir / "models").exists()


def test_a_file_that_changes_while_it_is_hashed(model: Path, settings: Settings) -> None:
    def grow(_done: int, _total: int) -> None:
        with open(model, "ab") as handle:
            handle.write(b"\0")

    with pytest.raises(ModelError, match="changed while it was read"):
        inspect_model(model, settings, on_hash=grow)
    assert not (settings.cache_dir / "models").exists()


def test_a_split_model(scripted_model: Callable[..., Path], settings: Settings, tmp_path: Path) -> None:
    paths = written(split(scripted_model(["Hello", " world"])), tmp_path)
    counter = Counter()
    found = inspect_model(paths[1], settings, on_hash=counter)
    digests = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)
    total = sum(path.stat().st_size for path in paths)
    assert found.content_id == hashlib.sha256(digests).hexdigest()
    assert found.path == paths[0]
    assert counter.calls[-1] == (total, total)
    assert [done for done, _ in counter.calls] == sorted(done for done, _ in counter.calls)
    again = Counter()
    assert inspect_model(paths[1], settings, on_hash=again) == found
    assert again.calls == []
    _overwrite_in_place(paths[2])
    assert inspect_model(paths[1], settings).content_id != found.content_id
    paths[2].unlink()
    with pytest.raises(ModelError, match=f"{NAMES[2]} is missing"):
        inspect_model(paths[1], settings)


def test_the_vocabulary_is_asked_for_each_time(random_model: Callable[[str], Path], settings: Settings) -> None:
    path = random_model("plain")
    assert inspect_model(path, settings, need_vocabulary=False).facts.has_vocabulary is False
    with pytest.raises(ModelError, match="has no tokenizer"):
        inspect_model(path, settings)


def _inspect(path: Path, home: str) -> str:
    return inspect_model(path, load({"LLMCLI_HOME": home})).content_id


def test_two_processes_at_once(model: Path, llmcli_home: Path, settings: Settings) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(_inspect, [(model, str(llmcli_home))] * 4)
    assert set(found) == {hashlib.sha256(model.read_bytes()).hexdigest()}
    counter = Counter()
    inspect_model(model, settings, on_hash=counter)
    assert counter.calls == []


def test_the_version_is_part_of_the_memo(model: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    inspect_model(model, settings)
    monkeypatch.setattr(identity, "MEMO_VERSION", identity.MEMO_VERSION + 1)
    counter = Counter()
    inspect_model(model, settings, on_hash=counter)
    assert counter.calls


def test_what_is_known_without_reading(model: Path, settings: Settings) -> None:
    assert known_content_id(model, settings) is None
    assert known_content_ids(model, settings) == frozenset()
    found = inspect_model(model, settings).content_id
    assert known_content_id(model, settings) == found
    assert known_content_ids(model, settings) == {found}
    blob = model.with_name("c" * 64)
    os.rename(model, blob)
    model.symlink_to(blob)
    assert known_content_ids(model, settings) == {"c" * 64}
    inspect_model(model, settings)
    assert known_content_ids(model, settings) == {"c" * 64, found}
    forget(model, settings)
    assert known_content_id(model, settings) is None
    forget(model, settings)
