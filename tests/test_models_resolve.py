"""Every way to name a model, and what is said where the name does not fit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import ModelError, UsageError
from llmcli.base.settings import Settings
from llmcli.models import default_model
from llmcli.models.library import own_folder
from llmcli.models.removal import plan_removal
from llmcli.models.resolve import ResolvedModel, resolve, resolve_here

REVISION = "a" * 40
Resolve = Callable[[str | None], ResolvedModel]


def write(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF".ljust(size, b"x"))
    return path


def repo_folder(repo_id: str) -> Path:
    return settings_module.load().hub_cache_dir / ("models--" + repo_id.replace("/", "--"))


def cache(repo_id: str, *names: str, revision: str = REVISION) -> list[Path]:
    return [write(repo_folder(repo_id) / "snapshots" / revision / name) for name in names]


@pytest.fixture
def find(llmcli_home: Path) -> Resolve:
    """Resolves with the settings of the moment; a notice is a failure: these tests fetch nothing."""
    return lambda reference: resolve(reference, settings_module.load(), notify=pytest.fail)


def configure(home: Path, text: str) -> None:
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "config.toml").write_text(text)


def failure(find: Resolve, reference: str | None) -> ModelError:
    with pytest.raises(ModelError) as caught:
        find(reference)
    assert caught.value.exit_code == 3
    assert "\n" not in caught.value.message
    assert "\x1b" not in caught.value.message + (caught.value.hint or "")
    return caught.value


# Paths


def test_a_file(find: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "tiny-Q4_0.gguf")
    assert find(str(path)) == ResolvedModel(path, "tiny-Q4_0", str(path))
    monkeypatch.chdir(tmp_path)
    for relative in ("tiny-Q4_0.gguf", "./tiny-Q4_0.gguf", f"../{tmp_path.name}/tiny-Q4_0.gguf"):
        assert find(relative).path == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find("~/tiny-Q4_0.gguf").path == path


def test_a_file_of_any_name_is_for_the_check_to_judge(find: Resolve, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(b"<!doctype html>")
    assert find(str(path)).path == path


def test_any_shard_is_the_first(find: Resolve, tmp_path: Path) -> None:
    shards = [write(tmp_path / f"m-0000{n}-of-00003.gguf") for n in (1, 2, 3)]
    for shard in shards:
        assert find(str(shard)) == ResolvedModel(shards[0], "m", str(shard))
    shards[0].unlink()
    assert "m-00001-of-00003.gguf" in failure(find, str(shards[1])).message


def test_a_missing_file_with_near_names(find: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "tiny-Q4_0.gguf")
    monkeypatch.chdir(tmp_path)
    error = failure(find, "tiny-Q4_1.gguf")
    assert error.message == "no such file: tiny-Q4_1.gguf"
    assert error.hint == "did you mean tiny-Q4_0.gguf?"
    error = failure(find, f"{tmp_path}/tinyQ4_0.gguf")
    assert error.hint == f"did you mean {tmp_path}/tiny-Q4_0.gguf?"


def test_a_missing_file_that_the_library_has(find: Resolve) -> None:
    cache("o/tiny-GGUF", "tiny-Q4_0.gguf")
    assert failure(find, "./tiny-Q4_0.gguf").hint == "did you mean o/tiny-GGUF:Q4_0?"
    assert failure(find, "/nowhere/at/all.gguf").hint is None


@pytest.mark.parametrize(
    "reference", ["nul\0.gguf", "./x\x1b[31m.gguf", "/" + "n" * 300, "models/none.gguf", "~nobody/x"]
)
def test_odd_paths(find: Resolve, reference: str) -> None:
    assert failure(find, reference).message.startswith("no such file: ")


@pytest.mark.parametrize("reference", ["  ", "\t"])
def test_an_empty_name_is_not_the_current_folder(
    find: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    write(tmp_path / "only.gguf")
    monkeypatch.chdir(tmp_path)
    assert failure(find, reference).message == "the name of the model is empty"
    for empty in ("", reference):
        with pytest.raises(ModelError, match="is empty"):
            resolve_here(empty, settings_module.load())
        with pytest.raises(ModelError, match="is empty"):
            plan_removal([empty], settings_module.load())


def test_what_is_no_file(find: Resolve, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in failure(find, str(tmp_path / "pipe.gguf")).message
    (tmp_path / "link.gguf").symlink_to(tmp_path / "gone")
    assert "a file that is gone" in failure(find, str(tmp_path / "link.gguf")).message
    half = write(tmp_path / "m.gguf.incomplete")
    assert "half a download" in failure(find, str(half)).message


# Folders


def test_a_folder_with_one_model(find: Resolve, tmp_path: Path) -> None:
    only = write(tmp_path / "m-00001-of-00002.gguf")
    write(tmp_path / "m-00002-of-00002.gguf")
    write(tmp_path / "mmproj-F16.gguf")
    write(tmp_path / "x.gguf.part")
    assert find(str(tmp_path)).path == only


def test_a_folder_with_several_models_lists_them_with_sizes(find: Resolve, tmp_path: Path) -> None:
    write(tmp_path / "a-Q4_0.gguf", 2048)
    write(tmp_path / "sub" / "b-Q8_0.gguf", 3 * 1024 * 1024)
    error = failure(find, str(tmp_path))
    assert error.message == f"{tmp_path} holds 2 models"
    assert error.hint == "name one of them:\n  a-Q4_0.gguf        2.0 KiB\n  sub/b-Q8_0.gguf    3.0 MiB"


def test_a_folder_without_a_model_names_what_is_not_whole(find: Resolve, tmp_path: Path) -> None:
    assert failure(find, str(tmp_path)).message == f"no model in the folder {tmp_path}"
    (tmp_path / "page.gguf").write_text("<html>")
    write(tmp_path / "m.gguf.part")
    assert failure(find, str(tmp_path)).message.endswith("not whole or not models: m.gguf.part, page.gguf")


def test_folders_of_the_cache(find: Resolve) -> None:
    (model,) = cache("o/a", "a-Q4_0.gguf")
    cache("o/a", "old-Q4_0.gguf", revision="b" * 40)
    assert find(str(model.parent)).path == model
    (repo_folder("o/a") / "refs").mkdir()
    (repo_folder("o/a") / "refs" / "main").write_text(REVISION)
    assert find(str(repo_folder("o/a"))).path == model


# The Hugging Face cache


def test_a_cached_repository(find: Resolve) -> None:
    small, large = cache("Owner/Tiny-GGUF", "tiny-Q4_0.gguf", "tiny-UD-Q8_K_XL.gguf")
    assert find("Owner/Tiny-GGUF:Q4_0") == ResolvedModel(small, "tiny-Q4_0", "Owner/Tiny-GGUF:Q4_0")
    for reference in (
        "owner/tiny-gguf:q8_k_xl",
        "hf://Owner/Tiny-GGUF:UD-Q8_K_XL",
        "Owner/Tiny-GGUF:tiny-UD-Q8_K_XL.gguf",
    ):
        assert find(reference).path == large


def test_one_model_needs_no_selector_and_a_projector_is_none(find: Resolve) -> None:
    model, *_ = cache("o/a", "a-Q4_0.gguf", "mmproj-Q4_0.gguf", "imatrix.gguf", "a-Q8_0.gguf.incomplete")
    assert find("o/a").path == model
    assert find("o/a:Q4_0").path == model
    assert "no Q8_0" in failure(find, "o/a:Q8_0").message


def test_several_models_are_listed(find: Resolve) -> None:
    cache("o/a-GGUF", "a-Q4_K_M.gguf", "a-Q6_K.gguf", "a-MTP-Q6_K.gguf")
    error = failure(find, "o/a-GGUF")
    assert error.message == "o/a-GGUF: there are 3 models in the cache"
    assert error.hint is not None
    assert [line.split()[0] for line in error.hint.splitlines()[1:]] == [
        "a-MTP-Q6_K.gguf",
        "a-Q4_K_M.gguf",
        "a-Q6_K.gguf",
    ]
    error = failure(find, "o/a-GGUF:q6_k")
    assert error.message == "o/a-GGUF: q6_k fits 2 models in the cache"
    assert "a-Q4_K_M" not in str(error.hint)


@pytest.mark.parametrize("selector", ["Q4_K", "Q4", "K_M", "Q8_0", "../a-Q4_K_M.gguf", "Q4\x1b[31m"])
def test_no_match_lists_what_there_is(find: Resolve, selector: str) -> None:
    cache("o/a-GGUF", "a-Q4_K_M.gguf")
    error = failure(find, f"o/a-GGUF:{selector}")
    assert error.message.startswith("o/a-GGUF has no ")
    assert "a-Q4_K_M.gguf" in str(error.hint)
    assert re.search(r"fetch it: llmcli pull '?o/a-GGUF:", str(error.hint))


def test_main_decides_and_older_snapshots_fill_in(find: Resolve) -> None:
    (new,) = cache("o/a", "renamed-Q4_0.gguf")
    _, other = cache("o/a", "a-Q4_0.gguf", "a-Q8_0.gguf", revision="b" * 40)
    (repo_folder("o/a") / "refs").mkdir()
    (repo_folder("o/a") / "refs" / "main").write_text(REVISION)
    assert find("o/a").path == new
    assert find("o/a:Q4_0").path == new
    assert find("o/a:Q8_0").path == other


@pytest.mark.parametrize(
    ("reference", "command"),
    [
        ("o/none", "llmcli pull o/none"),
        ("o/none:Q4_K_M", "llmcli pull o/none:Q4_K_M"),
        ("o/none:x.gguf", "llmcli pull o/none:x.gguf"),
        ("o/none:x;rm.gguf", "llmcli pull 'o/none:x;rm.gguf'"),
    ],
)
def test_not_in_the_cache_says_what_to_type(find: Resolve, reference: str, command: str) -> None:
    error = failure(find, reference)
    assert error.message.startswith("o/none is not in the Hugging Face cache (")
    assert f"fetch it: {command}; " in str(error.hint)


def test_half_a_download_is_no_model(find: Resolve) -> None:
    write(repo_folder("o/half") / "blobs" / f"{'0' * 64}.incomplete")
    error = failure(find, "o/half:Q4_0")
    assert error.message == "the download of o/half did not finish"
    assert error.hint == "go on with it: llmcli pull o/half:Q4_0"


def test_a_short_name_of_the_catalogue(find: Resolve) -> None:
    error = failure(find, "Qwen3-0.6B")
    assert error.message == "Qwen3-0.6B (unsloth/Qwen3-0.6B-GGUF) is not here"
    assert error.hint == "fetch it: llmcli pull qwen3-0.6b"
    (path,) = cache("unsloth/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf")
    assert find("qwen3-0.6b").path == path


def test_an_existing_folder_comes_before_a_repository(
    find: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache("o/a", "cached.gguf")
    here = write(tmp_path / "o" / "a" / "here.gguf")
    monkeypatch.chdir(tmp_path)
    assert find("o/a").path == here


# Aliases and names


def test_aliases_lead_on(find: Resolve, llmcli_home: Path) -> None:
    (model,) = cache("o/a", "a-Q4_0.gguf")
    configure(llmcli_home, '[alias]\nmine = "second"\nsecond = "o/a:Q4_0"\nround = "about"\nabout = "round"')
    assert find("mine") == ResolvedModel(model, "a-Q4_0", "mine")
    with pytest.raises(UsageError, match="leads back to itself"):
        find("round")


def test_an_alias_is_before_a_file_of_that_name(
    find: Resolve, llmcli_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = cache("o/a", "a.gguf")
    configure(llmcli_home, '[alias]\nword = "o/a"')
    file = write(tmp_path / "word")
    monkeypatch.chdir(tmp_path)
    assert find("word").path == model
    assert find("./word").path == file


def test_a_listed_name(find: Resolve) -> None:
    (model,) = cache("o/a", "Tiny-Q4_0.gguf")
    assert find("tiny-q4_0").path == model
    cache("o/b", "tiny-Q4_0.gguf")
    assert "o/b:Q4_0" in str(failure(find, "tiny-q4_0").hint)


def test_an_unknown_word(find: Resolve) -> None:
    assert failure(find, "smolm2").hint == "did you mean smollm2 or smollm2-360m or smollm2-1.7b?"
    error = failure(find, "zzz\x1b[31m")
    assert error.message == "no model called zzz\\x1b[31m"


# Nothing given


def test_the_configured_model(find: Resolve, llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = cache("o/a", "a-Q4_0.gguf", "a-Q8_0.gguf")
    configure(llmcli_home, 'model = "o/a:Q4_0"')
    assert find(None).path == first
    monkeypatch.setenv("LLMCLI_MODEL", "o/a:Q8_0")
    assert find(None) == ResolvedModel(second, "a-Q8_0", "o/a:Q8_0")
    monkeypatch.delenv("LLMCLI_MODEL")
    configure(llmcli_home, "model = 3")
    with pytest.raises(UsageError):
        find(None)


def test_the_only_model(find: Resolve) -> None:
    (model,) = cache("o/a", "a-Q4_0.gguf")
    assert find(None) == ResolvedModel(model, "a-Q4_0", "o/a:Q4_0")


@pytest.mark.parametrize("others", [(), ("a-Q4_0.gguf", "a-Q8_0.gguf"), (default_model.SMOLLM2.file,)])
def test_none_or_several_is_the_default_model(
    others: tuple[str, ...], llmcli_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ensure(model: default_model.DefaultModel, settings: Settings, **_: object) -> Path:
        assert model is default_model.SMOLLM2
        return own_folder(settings) / model.file

    cache("o/a", *others)
    monkeypatch.setattr(default_model, "ensure", ensure)
    found = resolve(None, settings_module.load(), notify=pytest.fail)
    assert (found.name, found.reference) == ("SmolLM2-135M-Instruct.Q4_1", "smollm2")
    assert resolve("smollm2", settings_module.load(), notify=pytest.fail) == found


def test_offline_and_absent(find: Resolve) -> None:
    for reference in (None, "smollm2"):
        error = failure(find, reference)
        assert error.message == "the default model SmolLM2-135M-Instruct is not here, and the network is switched off"
        assert "HF_HUB_OFFLINE" in str(error.hint)
