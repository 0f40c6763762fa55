"""The scan of the models on this machine, and the layout of the Hugging Face cache."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.settings import Settings
from llmcli.models.library import (
    LocalModel,
    cached_repo,
    list_models,
    models_below,
    own_folder,
    repo_models,
    snapshots,
    starts_like_gguf,
)

NEW, OLD = "a" * 40, "b" * 40


@pytest.fixture
def settings(llmcli_home: Path) -> Settings:
    return settings_module.load()


def write(path: Path, size: int = 10, start: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(start.ljust(size, b"x"))
    return path


def add_to_cache(settings: Settings, repo_id: str, revision: str, name: str, size: int = 10) -> Path:
    """A file as the hub's client keeps it: bytes under blobs/, a link in the snapshot."""
    repo = settings.hub_cache_dir / ("models--" + repo_id.replace("/", "--"))
    blob = write(repo / "blobs" / f"{revision[:4]}{name.replace('/', '_')}", size)
    link = repo / "snapshots" / revision / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    return link


def point_main_at(settings: Settings, repo_id: str, revision: str) -> None:
    refs = settings.hub_cache_dir / ("models--" + repo_id.replace("/", "--")) / "refs"
    refs.mkdir(parents=True, exist_ok=True)
    (refs / "main").write_text(revision)


def test_nothing_is_there(settings: Settings) -> None:
    assert list_models(settings) == ()


def test_only_models_are_listed(settings: Settings, tmp_path: Path) -> None:
    good = write(tmp_path / "good-Q4_0.gguf")
    for name in ("half.gguf.incomplete", "half2.gguf.part", "mmproj-F16.gguf", "imatrix.gguf", ".hidden.gguf", "m.bin"):
        write(tmp_path / name)
    write(tmp_path / ".fetch-abc" / "unfinished.gguf")
    write(tmp_path / "page.gguf", start=b"<!doctype html>")
    write(tmp_path / "short.gguf", size=3, start=b"GGU")
    write(tmp_path / "empty.gguf", size=0, start=b"")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "gone")
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")  # opening it would wait for ever
    assert [f.path for f in models_below(tmp_path)] == [good]


def test_a_split_model_is_one_entry_with_the_size_of_all_shards(tmp_path: Path) -> None:
    for number, size in ((3, 30), (1, 10), (2, 20)):
        write(tmp_path / "q" / f"m-Q8_0-0000{number}-of-00003.gguf", size)
    (found,) = models_below(tmp_path)
    assert (found.relative, found.size_bytes) == ("q/m-Q8_0-00001-of-00003.gguf", 60)
    assert found.path == tmp_path / "q" / "m-Q8_0-00001-of-00003.gguf"


def test_a_loop_of_links_is_entered_once(tmp_path: Path) -> None:
    write(tmp_path / "a" / "m.gguf")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert [f.relative for f in models_below(tmp_path)] == ["a/m.gguf"]


def test_names_that_are_not_utf8_do_not_break_the_scan(settings: Settings) -> None:
    folder = own_folder(settings)
    folder.mkdir(parents=True)
    with open(os.fsencode(folder) + b"/\xff\x1b.gguf", "wb") as out:
        out.write(b"GGUF")
    assert len(list_models(settings)) == 1


def test_own_folders_and_cache(llmcli_home: Path, tmp_path: Path) -> None:
    (llmcli_home / "config").mkdir()
    extra = tmp_path / "extra"
    (llmcli_home / "config" / "config.toml").write_text(f'folders = ["{extra}", "{tmp_path / "absent"}"]')
    settings = settings_module.load()
    own = write(own_folder(settings) / "b.gguf", 11)
    other = write(extra / "sub" / "c-Q8_0.gguf", 12)
    hub = add_to_cache(settings, "o/a-GGUF", NEW, "a-Q4_K_M.gguf", 13)
    assert list_models(settings) == (
        LocalModel(hub, "a-Q4_K_M", "o/a-GGUF:Q4_K_M", 13, "hub"),
        LocalModel(own, "b", str(own), 11, "own"),
        LocalModel(other, "c-Q8_0", str(other), 12, "folder"),
    )


def test_one_file_under_two_names_is_one_model(settings: Settings) -> None:
    hub = add_to_cache(settings, "o/a", NEW, "a.gguf")
    own = own_folder(settings) / "linked.gguf"
    own.parent.mkdir(parents=True)
    own.symlink_to(hub)
    assert [m.path for m in list_models(settings)] == [own]


def test_main_comes_first_then_the_newest(settings: Settings) -> None:
    for stamp, revision in enumerate((OLD, NEW, "c" * 40)):
        folder = add_to_cache(settings, "o/a", revision, "a.gguf", 10 + stamp).parent
        os.utime(folder, (stamp, stamp))
    repo = cached_repo(settings, "o/a")
    assert repo is not None
    assert [s.name[0] for s in snapshots(repo)] == ["c", "a", "b"]
    point_main_at(settings, "o/a", OLD)
    assert [s.name[0] for s in snapshots(repo)] == ["b", "c", "a"]
    assert [f.size_bytes for f in repo_models(repo)] == [10]


@pytest.mark.parametrize("main", ["../../../etc", "", "z" * 40, "\0" * 500])
def test_a_bad_ref_and_bad_snapshot_names_are_ignored(settings: Settings, main: str) -> None:
    add_to_cache(settings, "o/a", NEW, "a.gguf")
    add_to_cache(settings, "o/a", "not-a-revision", "b.gguf")
    point_main_at(settings, "o/a", main)
    assert [m.name for m in list_models(settings)] == ["a"]


def test_two_files_of_one_quantization_are_referred_to_by_file(settings: Settings) -> None:
    for name in ("a-Q6_K.gguf", "a-MTP-Q6_K.gguf", "a-Q8_0.gguf"):
        add_to_cache(settings, "o/a-GGUF", NEW, name)
    assert [m.reference for m in list_models(settings)] == [
        "o/a-GGUF:a-MTP-Q6_K.gguf",
        "o/a-GGUF:a-Q6_K.gguf",
        "o/a-GGUF:Q8_0",
    ]


def test_a_repository_is_found_in_any_case_the_exact_one_first(settings: Settings) -> None:
    add_to_cache(settings, "Owner/Repo", NEW, "a.gguf")
    found = cached_repo(settings, "owner/repo")
    assert found is not None
    assert found.name == "models--Owner--Repo"
    add_to_cache(settings, "owner/repo", NEW, "a.gguf")
    found = cached_repo(settings, "owner/repo")
    assert found is not None
    assert found.name == "models--owner--repo"
    assert cached_repo(settings, "owner/other") is None


def test_starts_like_gguf(tmp_path: Path) -> None:
    assert starts_like_gguf(write(tmp_path / "a"))
    assert not starts_like_gguf(tmp_path)
    assert not starts_like_gguf(tmp_path / "absent")
    assert not starts_like_gguf(Path("nul\0byte"))


def test_300_models_list_in_half_a_second(settings: Settings) -> None:
    for number in range(100):
        write(own_folder(settings) / f"own{number}-Q4_0.gguf")
        for name in ("m-Q4_0.gguf", "m-Q8_0.gguf"):
            add_to_cache(settings, f"o/r{number}", NEW, name)
    began = time.perf_counter()
    assert len(list_models(settings)) == 300
    assert time.perf_counter() - began < 0.5
