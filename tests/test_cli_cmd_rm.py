"""`llmcli rm` as a process: the plan, the question, the prefixes that go along."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.settings import Settings, load
from llmcli.engine.kept_prefixes import kept_bytes
from llmcli.engine.prefix_report import CacheOptions
from llmcli.models.library import own_folder
from tests.cli_run_case import refused
from tests.conftest import OpenTerminal, RunCli
from tests.library_case import add_to_cache, files_below, fill_store, parsed, tiny, write_tiny


@pytest.fixture
def settings(llmcli_home: Path) -> Settings:
    return load()


def kept(settings: Settings) -> dict[str, int]:
    return kept_bytes(settings, pytest.fail, cache=CacheOptions())


def with_prefixes(settings: Settings) -> tuple[Path, str, int]:
    link = add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", tiny().dump())
    content_id = os.path.basename(os.path.realpath(link))
    return link, content_id, fill_store(settings, content_id, blocks=2, name="mine")


def test_a_dry_run_shows_the_plan_and_removes_nothing(run_cli: RunCli, settings: Settings) -> None:
    link, content_id, stored = with_prefixes(settings)
    done = run_cli("rm", "--dry-run", "o/M-GGUF:Q4_0")
    assert (done.code, done.err) == (0, "")
    assert str(link) in done.out
    assert "stored prefixes: 2 blocks, mine (--keep-cache keeps them)" in done.out
    assert link.exists()
    assert kept(settings) == {content_id: stored}
    plan = parsed(run_cli("rm", "--dry-run", "--json", "o/M-GGUF:Q4_0"))
    assert plan["planned_prefix_bytes"] == stored
    assert (plan["dry_run"], plan["removed_files"], len(plan["plan"])) == (True, 0, 2)


def test_a_model_goes_with_its_prefixes(run_cli: RunCli, settings: Settings) -> None:
    _, _, stored = with_prefixes(settings)
    fill_store(settings, "9" * 64, blocks=1)
    done = parsed(run_cli("rm", "--yes", "--json", "o/M-GGUF:Q4_0"))
    assert (done["removed_files"], done["removed_prefix_blocks"], done["removed_prefix_bytes"]) == (2, 2, stored)
    assert files_below(settings.hub_cache_dir) == []
    assert set(kept(settings)) == {"9" * 64}
    refused(run_cli("rm", "--yes", "o/M-GGUF:Q4_0"), 3)


def test_what_a_run_stored_is_listed_and_goes_along(
    run_cli: RunCli, settings: Settings, scripted_model: Callable[..., Path]
) -> None:
    folder = own_folder(settings)
    folder.mkdir(parents=True)
    shutil.copy(scripted_model(["Hello"], n_ctx=2048), folder / "m.gguf")
    done = run_cli("run", "-t", "1", "-m", "m", "-n", "1", "word " * 100)
    assert done.code == 0, done.err
    stored = parsed(run_cli("ls", "--json"))[0]["prefix_bytes"]
    assert stored > 0
    removed = parsed(run_cli("rm", "--yes", "--json", "m"))
    assert (removed["planned_prefix_bytes"], removed["removed_prefix_bytes"]) == (stored, stored)
    assert kept(settings) == {}
    assert files_below(folder) == []


def test_prefixes_stay_on_request_and_where_a_copy_is_here(run_cli: RunCli, settings: Settings) -> None:
    _, content_id, stored = with_prefixes(settings)
    assert run_cli("rm", "--yes", "-q", "--keep-cache", "o/M-GGUF:Q4_0").code == 0
    assert kept(settings) == {content_id: stored}
    add_to_cache(settings, "o/M-GGUF", "M-Q4_0.gguf", tiny().dump())
    add_to_cache(settings, "o/Copy-GGUF", "M-Q4_0.gguf", tiny().dump())
    done = run_cli("rm", "--yes", "o/M-GGUF:Q4_0")
    assert "stored prefixes stay: another copy of the model is here" in done.err
    assert kept(settings) == {content_id: stored}
    assert run_cli("rm", "--yes", "-q", "o/Copy-GGUF:Q4_0").code == 0
    assert kept(settings) == {}


def test_without_a_terminal_somebody_has_to_say_yes(run_cli: RunCli, settings: Settings) -> None:
    path = write_tiny(own_folder(settings) / "m.gguf")
    done = run_cli("rm", "m")
    assert done.code == 2
    assert "--yes" in done.err
    assert path.exists()


@pytest.mark.parametrize(("answer", "stays"), [("n\n", True), ("\n", True), ("y\n", False), ("yes\n", False)])
def test_the_question(open_terminal: OpenTerminal, settings: Settings, answer: str, stays: bool) -> None:
    path = write_tiny(own_folder(settings) / "m.gguf")
    with open_terminal("rm", "m") as terminal:
        terminal.read_until("remove 1 model? [y/N] ")
        terminal.send(answer)
        assert terminal.wait() == 0
    assert path.exists() == stays


def test_a_file_elsewhere_is_asked_about_plainly(open_terminal: OpenTerminal, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    with open_terminal("rm", path, columns=300) as terminal:
        terminal.read_until("OUTSIDE the folders of llmcli and the Hugging Face cache")
        terminal.read_until("remove 1 model, with 1 file that llmcli did not put there? [y/N] ")
        terminal.send("y\n")
        assert terminal.wait() == 0
    assert not path.exists()


def test_several_and_the_alias_that_is_left(run_cli: RunCli, settings: Settings, llmcli_home: Path) -> None:
    for name in ("a", "b"):
        write_tiny(own_folder(settings) / f"{name}.gguf")
    (llmcli_home / "config").mkdir()
    (llmcli_home / "config" / "config.toml").write_text('[alias]\nmine = "a"\n')
    done = run_cli("rm", "--yes", "mine", "b")
    assert done.out.startswith("2 files removed, ")
    assert "the alias mine stood for it (llmcli alias rm mine)" in done.err
    assert files_below(own_folder(settings)) == []


def test_refusals(run_cli: RunCli, tmp_path: Path) -> None:
    text = tmp_path / "notes\x1b[2J.txt"
    text.write_text("x")
    assert "is no model file" in refused(run_cli("rm", "--yes", text), 3)
    assert "no model called nosuch" in refused(run_cli("rm", "--yes", "nosuch"), 3)
    assert run_cli("rm").code == 2
    assert text.exists()
