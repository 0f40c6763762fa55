"""What a Tab offers: names that are known here, and files beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.settings import Settings, load
from llmcli.cache_store.keys import KEY_BYTES, Key
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.names import Names
from llmcli.cache_store.writers import Writer
from llmcli.models.aliases import set_alias
from llmcli.models.library import own_folder
from llmcli.sessions.library import Library
from tests.conftest import RunCli

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(run_cli: RunCli, tmp_path: Path) -> Complete:
    """The answer to a Tab behind these words, in a folder with the file `model-F16.gguf` and the folder `models`."""
    folder = tmp_path / "here"
    (folder / "models").mkdir(parents=True)
    (folder / "model-F16.gguf").touch()
    (folder / ".hidden").touch()

    def ask(*words: str, shell: str = "bash") -> list[str]:
        typed = ["llmcli", *words]
        at = len(typed) - 1
        done = run_cli(
            env={"_LLMCLI_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join(typed), "COMP_CWORD": str(at)},
            cwd=folder,
        )
        assert (done.code, done.err) == (0, "")
        lines = done.out.splitlines()
        if shell == "zsh":
            return [f"{kind},{value}" for kind, value, _ in zip(lines[::3], lines[1::3], lines[2::3], strict=True)]
        return [line for line in lines if line]

    return ask


@pytest.fixture
def filled(llmcli_home: Path, scripted_model: Callable[..., Path]) -> Settings:
    """A home with a model, an alias, two sessions and a named prefix."""
    settings = load()
    own_folder(settings).mkdir(parents=True)
    (own_folder(settings) / "little-F32.gguf").write_bytes(scripted_model(["hi"]).read_bytes())
    set_alias("library", str(own_folder(settings) / "little-F32.gguf"), settings)
    for name in ("lights", "winter days"):
        settings.sessions_dir.mkdir(parents=True, exist_ok=True)
        Library(settings.sessions_dir).path(name).touch()
    layout = Layout(settings.cache_dir / "prefixes")
    for folder in layout.folders():
        folder.mkdir(parents=True, exist_ok=True)
    key = Key(bytes(KEY_BYTES))
    writer = Writer(layout)
    Names(layout, writer).save("licence", key, key, pinned=True)
    writer.end(keep_marker=False)
    return settings


@pytest.mark.parametrize(
    "words", [("show",), ("run", "-m"), ("quantize",), ("rm",), ("verify",), ("path",), ("imatrix",), ("quality",),
              ("alias", "set", "x"), ("doctor", "--estimate"), ("quality", "--base")]
)  # fmt: skip
def test_models_and_aliases(complete: Complete, filled: Settings, words: tuple[str, ...]) -> None:
    assert complete(*words, "li") == ["plain,library", "plain,little-F32"]
    assert complete(*words, "li", shell="zsh") == ["file,li", "plain,library", "plain,little-F32"]


def test_files_are_offered_where_they_can_be(complete: Complete, filled: Settings) -> None:
    assert complete("quantize", "mod") == ["file,mod"]
    set_alias("model", "x/y", load())
    assert complete("quantize", "mod") == ["plain,model", "plain,model-F16.gguf", "plain,models/"]
    assert "plain,.hidden" not in complete("quantize", "")


def test_types(complete: Complete, filled: Settings) -> None:
    assert complete("quantize", "little-F32", "Q6") == ["plain,Q6_K"]
    assert complete("quantize", "little-F32", "out/", "q4_0,q6") == ["plain,Q4_0,Q6_K"]
    assert complete("quantize", "--fit", "4G", "little-F32", "Q6") == ["file,Q6"]
    assert complete("quantize", "--output-tensor-type", "q6") == ["plain,Q6_K"]


def test_short_names_for_a_pull(complete: Complete, filled: Settings) -> None:
    assert complete("pull", "smollm2-3") == ["plain,smollm2-360m"]
    assert complete("pull", "lib") == ["plain,library"]


@pytest.mark.parametrize(
    "words", [("run", "--session"), ("chat", "--session"), ("sessions", "rm"), ("sessions", "show")]
)
def test_sessions(complete: Complete, filled: Settings, words: tuple[str, ...]) -> None:
    """A name with a blank would fall apart in the shell, so it is not offered."""
    assert complete(*words, "") == ["plain,lights"]


@pytest.mark.parametrize("words", [("run", "--prefix"), ("cache", "show"), ("cache", "rm"), ("cache", "export")])
def test_prefixes(complete: Complete, filled: Settings, words: tuple[str, ...]) -> None:
    assert complete(*words, "li") == ["plain,licence"]
    assert complete(words[0], "--cache-dir", "nowhere", *words[1:], "li")[:1] != ["plain,licence"]


def test_aliases(complete: Complete, filled: Settings) -> None:
    assert complete("alias", "rm", "l") == ["plain,library"]


def test_a_home_that_cannot_be_read_offers_nothing(complete: Complete, llmcli_home: Path) -> None:
    load().config_file.parent.mkdir(parents=True, exist_ok=True)
    load().config_file.write_text("= nonsense")
    assert complete("alias", "rm", "") == []
    assert complete("sessions", "rm", "") == []
    assert complete("show", "x") == ["file,x"]
