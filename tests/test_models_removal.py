"""Removing models: what goes, what stays, and that nothing else is ever touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import LlmcliError, ModelError
from llmcli.base.settings import Settings
from llmcli.models.library import own_folder
from llmcli.models.removal import RemovalPlan, carry_out, plan_removal
from tests.library_case import OLD_COMMIT, add_to_cache, files_below, tiny, write_tiny

DATA = tiny().dump()


@pytest.fixture
def settings(llmcli_home: Path) -> Settings:
    return settings_module.load()


def remove(settings: Settings, *references: str) -> RemovalPlan:
    """Plan and carry out: exactly what was planned goes."""
    plan = plan_removal(references, settings)
    assert carry_out(plan) == (len(plan.files), plan.nbytes)
    assert not any(os.path.lexists(file.path) for file in plan.files)
    assert carry_out(plan) == (0, 0)
    return plan


def repo_of(settings: Settings) -> Path:
    return settings.hub_cache_dir / "models--o--M-GGUF"


def test_a_file_of_ours(settings: Settings) -> None:
    path, other = write_tiny(own_folder(settings) / "a.gguf"), write_tiny(own_folder(settings) / "b.gguf")
    plan = plan_removal(["a"], settings)
    assert [(f.path, f.nbytes, f.is_link) for f in plan.files] == [(path, path.stat().st_size, False)]
    assert (plan.models, plan.kept, plan.outside) == ((path,), (), ())
    assert path.exists()
    remove(settings, "a")
    assert files_below(own_folder(settings)) == [other.name]


def test_all_parts_of_a_split_model_go_named_by_any(settings: Settings) -> None:
    folder = own_folder(settings)
    for number in (1, 2, 3):
        write_tiny(folder / f"m-{number:05}-of-00003.gguf")
    write_tiny(folder / "m-00001-of-00004.gguf")
    plan = remove(settings, str(folder / "m-00002-of-00003.gguf"))
    assert plan.models == (folder / "m-00001-of-00003.gguf",)
    assert files_below(folder) == ["m-00001-of-00004.gguf"]


def test_the_last_model_of_a_cached_repository(settings: Settings) -> None:
    link = add_to_cache(settings, "o/M-GGUF", "sub/M-Q4_0.gguf", DATA)
    blob = Path(os.path.realpath(link))
    other = add_to_cache(settings, "o/other", "x.gguf", DATA)
    plan = remove(settings, "o/M-GGUF:Q4_0")
    assert [(f.path, f.nbytes) for f in plan.files] == [(link, 0), (blob, len(DATA))]
    assert not repo_of(settings).exists()
    assert other.exists()


def test_other_files_of_the_repository_stay(settings: Settings) -> None:
    add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", DATA)
    kept = add_to_cache(settings, "o/M-GGUF", "M-Q8_0.gguf", DATA + b"8")
    readme = add_to_cache(settings, "o/M-GGUF", "README.md", b"hello", digest="d" * 40)
    remove(settings, "o/M-GGUF:Q4_0")
    assert kept.read_bytes() == DATA + b"8"
    assert readme.read_bytes() == b"hello"
    assert (repo_of(settings) / "refs" / "main").exists()


def test_every_revision_of_the_file_goes(settings: Settings) -> None:
    new = add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", DATA)
    old = add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", DATA + b"old", commit=OLD_COMMIT)
    plan = remove(settings, "o/M-GGUF:Q4_0")
    assert {f.path for f in plan.files if f.is_link} == {new, old}
    assert plan.nbytes == 2 * len(DATA) + 3
    assert not repo_of(settings).exists()


def test_bytes_that_another_name_needs_stay(settings: Settings) -> None:
    link = add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", DATA)
    other = add_to_cache(settings, "o/M-GGUF", "renamed.gguf", DATA, commit=OLD_COMMIT)
    plan = remove(settings, "o/M-GGUF:M-Q4_0.gguf")
    assert ([f.path for f in plan.files], plan.nbytes) == ([link], 0)
    assert [(k.path, k.nbytes, k.reason) for k in plan.kept] == [
        (Path(os.path.realpath(other)), len(DATA), f"{OLD_COMMIT}/renamed.gguf needs it")
    ]
    assert other.read_bytes() == DATA
    assert not link.parent.exists()  # its snapshot is empty now


def test_two_that_share_their_bytes_go_together(settings: Settings) -> None:
    add_to_cache(settings, "o/M-GGUF", "one.gguf", DATA)
    add_to_cache(settings, "o/M-GGUF", "two.gguf", DATA)
    plan = remove(settings, "o/M-GGUF:one.gguf", "o/M-GGUF:two.gguf")
    assert (len(plan.files), plan.nbytes, plan.kept) == (3, len(DATA), ())


def test_a_blob_named_by_its_path_takes_its_names_along(settings: Settings) -> None:
    link = add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", DATA)
    remove(settings, os.path.realpath(link))
    assert not repo_of(settings).exists()


def test_what_is_half_damaged_or_a_link_to_nothing(settings: Settings) -> None:
    folder = own_folder(settings)
    folder.mkdir(parents=True)
    (folder / "page.gguf").write_bytes(b"<html>")
    (folder / "half.gguf.part").write_bytes(b"GG")
    (folder / "dangling.gguf").symlink_to(folder / "gone")
    link = add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", DATA)
    os.unlink(os.path.realpath(link))
    half = repo_of(settings) / "blobs" / ("c" * 64 + ".incomplete")
    half.write_bytes(DATA[:20])
    remove(settings, *(str(folder / n) for n in ("page.gguf", "half.gguf.part", "dangling.gguf")), str(link), str(half))
    assert files_below(folder) == []
    assert not repo_of(settings).exists()


def test_a_link_in_our_folder_goes_alone(settings: Settings) -> None:
    hub = add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", DATA)
    own = own_folder(settings) / "linked.gguf"
    own.parent.mkdir(parents=True)
    own.symlink_to(hub)
    plan = remove(settings, str(own))
    assert [(f.path, f.is_link) for f in plan.files] == [(own, True)]
    assert hub.read_bytes() == DATA


def test_a_file_elsewhere_only_by_its_path(llmcli_home: Path, tmp_path: Path) -> None:
    elsewhere = write_tiny(tmp_path / "elsewhere" / "m.gguf")
    (llmcli_home / "config").mkdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "away").symlink_to(elsewhere.parent)  # what is listed by name lies outside all the same
    (llmcli_home / "config" / "config.toml").write_text(f'folders = ["{inside}"]\n[alias]\nmine = "{elsewhere}"\n')
    settings = settings_module.load()
    with pytest.raises(ModelError, match=r"outside the folders of llmcli: refused"):
        plan_removal(["m"], settings)
    for reference in (str(elsewhere), str(inside / "away" / "m.gguf"), "mine"):
        assert len(plan_removal([reference], settings).outside) == 1
    remove(settings, str(elsewhere))
    assert files_below(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("name", ["notes.txt", "model.safetensors", "folder.gguf", "pipe.gguf", "notes.part"])
def test_only_models_are_removed(settings: Settings, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder.gguf":
        path.mkdir()
    elif name == "pipe.gguf":
        os.mkfifo(path)
    else:
        path.write_bytes(b"text")
    with pytest.raises(ModelError):
        plan_removal([str(path)], settings)
    assert os.path.lexists(path)


def test_a_file_with_another_name_that_is_a_model(settings: Settings, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "model.bin")
    remove(settings, str(path))
    assert not path.exists()


@pytest.mark.parametrize("reference", ["nosuch", "o/nosuch:Q4_0", "/no/such.gguf", "a\0b"])
def test_what_is_not_here(settings: Settings, reference: str) -> None:
    with pytest.raises(ModelError):
        plan_removal([reference], settings)


def test_several_that_fit_are_named_not_removed(settings: Settings) -> None:
    for name in ("M-Q4_0.gguf", "M-Q8_0.gguf"):
        add_to_cache(settings, "o/M-GGUF", name, DATA + name.encode())
    with pytest.raises(ModelError, match="there are 2"):
        plan_removal(["o/M-GGUF"], settings)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove anything")
def test_what_cannot_be_removed_is_said(settings: Settings) -> None:
    path = write_tiny(own_folder(settings) / "m.gguf")
    path.parent.chmod(0o500)
    with pytest.raises(LlmcliError, match="cannot remove"):
        carry_out(plan_removal(["m"], settings))
    path.parent.chmod(0o700)


def test_bytes_that_a_hard_link_keeps_are_not_freed(settings: Settings, tmp_path: Path) -> None:
    folder = own_folder(settings)
    path = write_tiny(folder / "a.gguf")
    size = path.stat().st_size
    os.link(path, tmp_path / "elsewhere")
    plan = remove(settings, "a")
    assert [(file.path, file.nbytes) for file in plan.files] == [(path, 0)]
    assert [(kept.path, kept.nbytes) for kept in plan.kept] == [(path, size)]
    assert plan.nbytes == 0
    assert (tmp_path / "elsewhere").stat().st_size == size


def test_the_last_of_several_hard_links_frees_them(settings: Settings) -> None:
    folder = own_folder(settings)
    path = write_tiny(folder / "a.gguf")
    size = path.stat().st_size
    for name in ("b.gguf", "c.gguf"):
        os.link(path, folder / name)
    some = plan_removal([str(folder / "a.gguf"), str(folder / "b.gguf")], settings)
    assert (some.nbytes, [kept.nbytes for kept in some.kept]) == (0, [size])
    plan = remove(settings, *(str(folder / name) for name in ("a.gguf", "b.gguf", "c.gguf")))
    assert (plan.nbytes, plan.kept) == (size, ())
