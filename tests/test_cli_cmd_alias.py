"""`llmcli alias` as a process."""

from __future__ import annotations

from pathlib import Path

from llmcli.base.settings import load
from llmcli.models.library import own_folder
from tests.cli_run_case import refused
from tests.conftest import RunCli
from tests.library_case import parsed, write_tiny


def test_set_use_list_remove(run_cli: RunCli, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    done = run_cli("alias", "set", "mine", "m.gguf", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert run_cli("path", "mine").out == f"{path}\n"
    assert run_cli("alias", "ls").out == f"ALIAS  MODEL{' ' * (len(str(path)) - 3)}FROM\nmine   {path}  config\n"
    assert parsed(run_cli("alias", "ls", "--json")) == [{"name": "mine", "reference": str(path), "source": "config"}]
    assert run_cli("alias", "rm", "mine").code == 0
    assert "there are no aliases" in run_cli("alias", "ls").out
    assert "there is no alias 'mine'" in refused(run_cli("alias", "rm", "mine"), 1)


def test_a_reference_that_leads_nowhere_yet_is_said_and_kept(run_cli: RunCli) -> None:
    done = run_cli("alias", "set", "big", "o/M-GGUF:Q4_0")
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert "o/M-GGUF is not in the Hugging Face cache" in done.err
    done = run_cli("alias", "set", "big", "o/other")
    assert "big stood for o/M-GGUF:Q4_0" in done.err
    assert run_cli("alias", "set", "-q", "big", "o/M-GGUF").err == ""


def test_several_are_removed_at_once(run_cli: RunCli) -> None:
    write_tiny(own_folder(load()) / "m.gguf")
    for name in ("a", "b", "c"):
        assert run_cli("alias", "set", name, "m").code == 0
    assert run_cli("alias", "rm", "a", "c").code == 0
    assert [row["name"] for row in parsed(run_cli("alias", "ls", "--json"))] == ["b"]


def test_the_names_that_llmcli_knows(run_cli: RunCli) -> None:
    rows = {row["name"]: row["source"] for row in parsed(run_cli("alias", "ls", "--all", "--json"))}
    assert rows["smollm2"] == "built in"
    assert "catalogue" in rows.values()


def test_bad_input(run_cli: RunCli, llmcli_home: Path) -> None:
    assert "cannot be an alias" in refused(run_cli("alias", "set", "a/b", "x"), 2)
    assert "lead back to itself" in refused(run_cli("alias", "set", "a", "a"), 2)
    assert run_cli("alias", "set", "a").code == 2
    assert run_cli("alias", "set", "a\x1b[2J", "x").code == 2
    assert not (llmcli_home / "config").exists()
