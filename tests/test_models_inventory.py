"""The list of what is here: sound, half, damaged; and that it is read once and remembered."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from llmcli.base import settings as settings_module
from llmcli.base import shared_out
from llmcli.base.settings import Settings
from llmcli.models import headline, library
from llmcli.models.headline import Headline, read_headline
from llmcli.models.inventory import Listed, take_inventory
from llmcli.models.library import own_folder
from tests.library_case import COMMIT, OLD_COMMIT, add_to_cache, tiny, write_tiny


@pytest.fixture
def settings(llmcli_home: Path) -> Settings:
    return settings_module.load()


def entries(settings: Settings) -> dict[str, Listed]:
    found = take_inventory(settings)
    assert len({entry.path for entry in found}) == len(found)
    return {entry.path.name: entry for entry in found}


def test_nothing_is_here(settings: Settings) -> None:
    assert take_inventory(settings) == ()


def test_the_facts_of_a_sound_model(settings: Settings) -> None:
    path = write_tiny(own_folder(settings) / "m-Q4_0.gguf", context=8192, weights=64)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    (entry,) = take_inventory(settings)
    assert entry == Listed(
        name="m-Q4_0",
        reference="m-Q4_0",
        path=path,
        files=(path,),
        source="own",
        repo_id=None,
        size_bytes=path.stat().st_size,
        modified_s=1_700_000_000,
        headline=Headline("ok", None, "llama", "F32", 64, 256, 8192),
    )
    assert entry.headline.bpw == 32


def test_what_is_wrong_is_listed_and_breaks_nothing(settings: Settings) -> None:
    folder = own_folder(settings)
    good = write_tiny(folder / "good.gguf")
    data = good.read_bytes()
    (folder / "page.gguf").write_bytes(b"<!DOCTYPE html><html>")
    (folder / "pointer.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n")
    (folder / "empty.gguf").write_bytes(b"")
    (folder / "cut.gguf").write_bytes(data[:-1])
    (folder / "short.gguf").write_bytes(data[:30])
    (folder / "half.gguf.part").write_bytes(data[:30])
    (folder / "notes.part").write_bytes(b"something else")
    (folder / "dangling.gguf").symlink_to(folder / "gone")
    (folder / "folder.gguf").mkdir()
    os.mkfifo(folder / "pipe.gguf")
    tiny().text("general.type", "adapter").text("adapter.type", "lora").write(folder / "lora.gguf")
    tiny("nosucharch").write(folder / "unknown.gguf")
    tiny().set("general.architecture", 4, 7).write(folder / "wrongtype.gguf")
    found = {name: (e.headline.status, e.headline.problem) for name, e in entries(settings).items()}
    assert found.pop("good.gguf") == ("ok", None)
    clauses = {
        "page.gguf": ("damaged", 'an HTML page; expected a GGUF file, which starts with "GGUF"'),
        "empty.gguf": ("damaged", "an empty file, expected a GGUF file"),
        "half.gguf.part": ("incomplete", "half a download"),
        "dangling.gguf": ("incomplete", "a link to a file that is gone"),
        "lora.gguf": ("other", "a LoRA adapter, not a model"),
    }
    for name, expected in clauses.items():
        assert found.pop(name) == expected
    assert {name: status for name, (status, _) in found.items()} == {
        "pointer.gguf": "damaged",
        "cut.gguf": "incomplete",
        "short.gguf": "incomplete",
        "unknown.gguf": "other",
        "wrongtype.gguf": "damaged",
    }
    assert str(folder) not in "".join(problem or "" for _, problem in found.values())


@pytest.mark.parametrize(
    ("present", "problem"),
    [
        ((1, 2, 3), None),
        ((2, 3), "part 1 of 3 missing"),
        ((2,), "part 1 of 3 and 1 more missing"),
    ],
)
def test_parts_of_a_split_model(settings: Settings, present: tuple[int, ...], problem: str | None) -> None:
    folder = own_folder(settings)
    folder.mkdir(parents=True)
    for number in present:
        part = tiny()
        part.set("split.count", 2, 3).set("split.no", 2, number - 1).set("split.tensors.count", 5, 3)
        part.tensors[0].name = b"t%d" % number
        part.write(folder / f"m-Q8_0-{number:05}-of-00003.gguf")
    (entry,) = take_inventory(settings)
    assert (entry.name, len(entry.files), entry.headline.problem) == ("m-Q8_0", len(present), problem)
    assert entry.size_bytes == sum(path.stat().st_size for path in entry.files)
    if problem is None:
        assert entry.headline.n_params == 96
        (folder / "m-Q8_0-00002-of-00003.gguf").write_bytes(b"GGUF")
        assert take_inventory(settings)[0].headline.status == "incomplete"


def test_the_hugging_face_cache(settings: Settings) -> None:
    data = tiny().dump()
    for name in ("M-Q4_0.gguf", "M-Q8_0.gguf", "M-MTP-Q8_0.gguf"):
        add_to_cache(settings, "o/M-GGUF", name, data + name.encode())
    add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", b"an older one", commit=OLD_COMMIT)
    add_to_cache(settings, "o/M-GGUF", "old-Q2_K.gguf", data, commit=OLD_COMMIT)
    link = add_to_cache(settings, "o/M-GGUF", "gone-Q6_K.gguf", data + b"gone")
    os.unlink(os.path.realpath(link))
    blobs = link.parents[2] / "blobs"
    (blobs / ("c" * 64 + ".incomplete")).write_bytes(data[:20])
    (blobs / "other.incomplete").write_bytes(b"safetensors")
    found = take_inventory(settings)
    assert [(e.reference, e.headline.status) for e in found if e.is_usable] == [
        ("o/M-GGUF:M-MTP-Q8_0.gguf", "ok"),
        ("o/M-GGUF:Q4_0", "ok"),
        ("o/M-GGUF:M-Q8_0.gguf", "ok"),
        ("o/M-GGUF:Q2_K", "ok"),
    ]
    assert {(e.name, e.headline.problem) for e in found if not e.is_usable} == {
        ("gone-Q6_K", "a link to a file that is gone"),
        ("o/M-GGUF", "half a download"),
    }
    assert {e.repo_id for e in found} == {"o/M-GGUF"}
    assert next(e.path for e in found if e.name == "M-Q4_0").parent.name == COMMIT


def test_a_name_that_means_two_models_or_an_alias_is_not_the_reference(llmcli_home: Path, tmp_path: Path) -> None:
    (llmcli_home / "config").mkdir()
    (llmcli_home / "config" / "config.toml").write_text(f'folders = ["{tmp_path}"]\n[alias]\nTaken = "x"\n')
    settings = settings_module.load()
    own, other = write_tiny(own_folder(settings) / "same.gguf"), write_tiny(tmp_path / "Same.gguf")
    taken, smollm = write_tiny(tmp_path / "taken.gguf"), write_tiny(tmp_path / "smollm2.gguf")
    write_tiny(tmp_path / "free.gguf")
    assert {entry.reference for entry in take_inventory(settings)} == {*map(str, (own, other, taken, smollm)), "free"}


def test_a_second_list_reads_no_header(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_folder(settings)
    paths = [write_tiny(folder / f"m{n}.gguf") for n in range(3)]
    (folder / "bad.gguf").write_bytes(b"<html>")
    first = take_inventory(settings)
    read: list[Path] = []

    def counting(path: Path, **options: object) -> Headline:
        read.append(path)
        return read_headline(path)

    monkeypatch.setattr(headline, "read_headline", counting)
    assert take_inventory(settings) == first
    assert read == []
    tiny(context=1024).write(paths[1])
    os.utime(paths[1], (1, 1))
    assert {e.name: e.headline.n_ctx_train for e in take_inventory(settings) if e.is_usable} == {
        "m0": 512, "m1": 1024, "m2": 512,
    }  # fmt: skip
    assert read == [paths[1]]


@pytest.mark.parametrize(
    "memo",
    [b"", b"{", b"[]", b"null", b'{"version": 1}', b'{"version": 1, "files": []}', b'{"version": 99, "files": {}}'],
)
def test_a_bad_memo_costs_nothing_but_time(settings: Settings, memo: bytes) -> None:
    write_tiny(own_folder(settings) / "m.gguf")
    first = take_inventory(settings)
    kept = settings.cache_dir / "models" / "headlines.json"
    good = kept.read_bytes()
    kept.write_bytes(memo)
    assert take_inventory(settings) == first
    assert kept.read_bytes() == good


@pytest.mark.parametrize(
    "values",
    [
        None,
        "ok",
        [],
        {"status": "ok"},
        ["ok"],
        ["fine", None, "llama", "F32", 32, 128, 512],
        [["ok"], None, "llama", "F32", 32, 128, 512],
        ["ok", None, 7, "F32", 32, 128, 512],
        ["ok", None, "llama", "F32", "32", 128, 512],
        ["ok", None, "llama", "F32", True, 128, 512],
        ["ok", None, "llama", "F32", 32, -128, 512],
        ["ok", None, "llama", "F32", 32, 128, 512, 1],
    ],
)
def test_what_a_memo_cannot_say_is_read_again(settings: Settings, values: object) -> None:
    write_tiny(own_folder(settings) / "m.gguf")
    first = take_inventory(settings)
    kept = settings.cache_dir / "models" / "headlines.json"
    good = kept.read_bytes()
    broken = json.loads(good)
    for entry in broken["files"].values():
        entry[1] = values
    kept.write_bytes(json.dumps(broken).encode())
    assert take_inventory(settings) == first
    assert kept.read_bytes() == good


def test_many_are_read_by_several_processes_and_listed_as_by_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own_folder(settings)
    for number in range(60):
        write_tiny(folder / f"m{number}.gguf", context=512 + number)
    (folder / "page.gguf").write_bytes(b"<html>")
    monkeypatch.setattr(shared_out, "_processors", lambda: 1)
    alone = take_inventory(settings)
    monkeypatch.setattr(shared_out, "_processors", lambda: 3)
    (settings.cache_dir / "models" / "headlines.json").unlink()
    assert take_inventory(settings) == alone
    assert sorted(entry.headline.n_ctx_train or 0 for entry in alone) == [0, *range(512, 572)]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), ValueError("embedded null byte")])
def test_what_the_system_does_not_give_is_tried_again_next_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    write_tiny(own_folder(settings) / "m.gguf")

    def failing(path: Path, **options: object) -> Headline:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(headline, "read_headline", failing)
        (entry,) = take_inventory(settings)
    reason = getattr(error, "strerror", None) or str(error)
    assert entry.headline == Headline("damaged", f"cannot be read: {reason}")
    assert entry.reference == str(entry.path)
    assert take_inventory(settings)[0].headline.status == "ok"


def test_a_cache_folder_that_cannot_be_written_is_no_failure(settings: Settings) -> None:
    write_tiny(own_folder(settings) / "m.gguf")
    settings.cache_dir.parent.mkdir(parents=True, exist_ok=True)
    settings.cache_dir.write_bytes(b"a file in the way")
    assert [entry.name for entry in take_inventory(settings)] == ["m"]


def test_a_name_with_control_bytes(settings: Settings) -> None:
    folder = own_folder(settings)
    folder.mkdir(parents=True)
    with open(os.fsencode(folder) + b"/\xff\x1b[2J.gguf", "wb") as out:
        out.write(tiny().dump())
    (entry,) = take_inventory(settings)
    assert entry.is_usable


def test_a_download_that_ends_while_it_is_looked_at(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    link = add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", tiny().dump())
    half = link.parents[2] / "blobs" / ("c" * 64 + ".incomplete")
    half.write_bytes(b"GGUF")

    def ending(path: Path) -> bool:
        if path == half:
            half.unlink()
        return True

    monkeypatch.setattr(library, "starts_like_gguf", ending)
    assert [entry.name for entry in take_inventory(settings)] == ["M-Q4_0"]
