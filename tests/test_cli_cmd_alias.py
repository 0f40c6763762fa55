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


def test_the_list_marks_what_is_not_here(run_cli: RunCli, llmcli_home: Path) -> None:
    for name, reference in (("gone", "/no/such.gguf"), ("far", "o/m:Q4_0"), ("small", "qwen3-0.6b")):
        assert run_cli("alias", "set", name, reference).code == 0
    ends = {line.split()[0]: line.split("config")[1].strip() for line in run_cli("alias", "ls").out.splitlines()[1:]}
    assert ends == {"gone": "leads nowhere", "far": "not fetched yet", "small": "not fetched yet"}


def test_nothing_is_left_of_the_last_alias(run_cli: RunCli, llmcli_home: Path) -> None:
    file = load().config_file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("temp = 0.2\n")
    assert run_cli("alias", "set", "a", "o/m").code == 0
    assert "[alias]" in file.read_text()
    assert run_cli("alias", "rm", "a").code == 0
    assert "[alias]" not in file.read_text()
    assert "temp = 0.2" in file.read_text()
    file.write_text('[alias]\n# mine\na = "o/m"\n')
    assert run_cli("alias", "rm", "a").code == 0
    assert file.read_text() == "[alias]\n# mine\n"
