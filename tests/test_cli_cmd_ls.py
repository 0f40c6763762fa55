"""`llmcli ls` as a process: the table, the object, the names; and that nothing in a file reaches the terminal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmcli.base.settings import Settings, load
from llmcli.models.library import own_folder
from tests.cli_run_case import refused
from tests.conftest import OpenTerminal, RunCli
from tests.library_case import add_to_cache, fill_store, parsed, tiny, write_tiny


@pytest.fixture
def settings(llmcli_home: Path) -> Settings:
    return load()


@pytest.fixture
def filled(settings: Settings) -> Settings:
    """Two models and three files that are none."""
    folder = own_folder(settings)
    os.utime(write_tiny(folder / "b-Q4_0.gguf", context=4096), (1, 1))
    add_to_cache(settings, "o/A-GGUF", "A-Q8_0.gguf", tiny(context=131072, weights=6400).dump())
    (folder / "page.gguf").write_bytes(b"<html>")
    (folder / "half.gguf.part").write_bytes(b"GG")
    with open(os.fsencode(folder) + b"/evil\x1b[2J\r.gguf", "wb") as out:
        out.write(tiny().text("general.architecture", b"\x1b]0;x\x07").dump())
    return settings


def test_no_models(run_cli: RunCli, llmcli_home: Path) -> None:
    done = run_cli("ls")
    assert (done.code, done.err) == (0, "")
    assert done.out == "there are no models here; llmcli run fetches a small one, llmcli pull others\n"
    assert run_cli("ls", "--json").out == "[]\n"
    assert run_cli("ls", "-q").out == ""
    assert not llmcli_home.joinpath("cache", "prefixes").exists()


def test_the_table(run_cli: RunCli, filled: Settings) -> None:
    done = run_cli("ls")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["MODEL", "QUANT", "BPW", "SIZE", "CONTEXT", "ARCH", "MODIFIED", "PREFIXES"]
    assert lines[1].split()[:6] == ["o/A-GGUF:Q8_0", "F32", "32.00", "25.2", "KiB", "131,072"]
    assert lines[2].split()[0] == "b-Q4_0"
    assert lines[3] == ""
    assert lines[4].split() == ["NOT", "USABLE", "SIZE", "WHY"]
    assert sum("incomplete: half a download" in line for line in lines) == 1
    assert sum("damaged: an HTML page" in line for line in lines) == 1
    assert len(lines) == 8
    assert done.out.replace("\n", "").isprintable()


def test_json(run_cli: RunCli, filled: Settings) -> None:
    found = parsed(run_cli("ls", "--json"))
    assert [entry["status"] for entry in found] == ["ok", "ok", "other", "incomplete", "damaged"]
    first = found[0]
    assert first.pop("modified_s") > 0
    path = filled.hub_cache_dir / "models--o--A-GGUF" / "snapshots" / ("a" * 40) / "A-Q8_0.gguf"
    assert first == {
        "name": "A-Q8_0", "reference": "o/A-GGUF:Q8_0", "path": str(path), "files": 1, "source": "hub",
        "repo_id": "o/A-GGUF", "status": "ok", "problem": None, "architecture": "llama", "quant": "F32", "bpw": 32.0,
        "n_params": 6400, "n_ctx_train": 131072, "size_bytes": path.stat().st_size, "prefix_bytes": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sort", "first"),
    [("name", "o/A-GGUF:Q8_0"), ("size", "o/A-GGUF:Q8_0"), ("context", "o/A-GGUF:Q8_0"), ("modified", "o/A-GGUF:Q8_0"),
     ("arch", "o/A-GGUF:Q8_0"), ("quant", "o/A-GGUF:Q8_0"), ("bpw", "o/A-GGUF:Q8_0"), ("prefixes", "o/A-GGUF:Q8_0")],
)  # fmt: skip
def test_orders(run_cli: RunCli, filled: Settings, sort: str, first: str) -> None:
    names = run_cli("ls", "-q", "--sort", sort).out.splitlines()
    assert names == [first, "b-Q4_0"]


def test_a_newline_in_a_name_makes_no_second_name(run_cli: RunCli, settings: Settings) -> None:
    write_tiny(own_folder(settings) / "a\nb.gguf")
    assert run_cli("ls", "-q").out == "a\\nb\n"


def test_the_order_follows_the_value(run_cli: RunCli, settings: Settings) -> None:
    folder = own_folder(settings)
    os.utime(write_tiny(folder / "a.gguf", weights=32, context=9), (2, 2))
    os.utime(write_tiny(folder / "b.gguf", weights=3200, context=8), (1, 1))
    os.utime(write_tiny(folder / "c.gguf", weights=320, context=10), (3, 3))
    orders = {sort: run_cli("ls", "-q", "--sort", sort).out.split() for sort in ("name", "size", "modified", "context")}
    assert orders == {
        "name": ["a", "b", "c"], "size": ["b", "c", "a"], "modified": ["c", "a", "b"], "context": ["c", "a", "b"],
    }  # fmt: skip


def test_kept_prefixes(run_cli: RunCli, settings: Settings) -> None:
    link = add_to_cache(settings, "o/A-GGUF", "A-Q8_0.gguf", tiny().dump())
    total = fill_store(settings, os.path.basename(os.path.realpath(link)), blocks=2)
    fill_store(settings, "9" * 64, blocks=1)
    assert parsed(run_cli("ls", "--json"))[0]["prefix_bytes"] == total


def test_a_terminal_cuts_lines(open_terminal: OpenTerminal, filled: Settings) -> None:
    with open_terminal("ls", columns=40) as terminal:
        assert terminal.wait() == 0
        shown = terminal.screen.decode()
    assert "\x1b" not in shown.replace("\x1b[0m", "")
    assert max(len(line) for line in shown.splitlines()) <= 40


def test_usage(run_cli: RunCli) -> None:
    assert "is not one of" in refused(run_cli("ls", "--sort", "colour"), 2)


@pytest.mark.parametrize("name", [b"inv\xff", b"esc\x1b[31mx"])
def test_what_ls_and_path_print_names_the_model_again(
    run_cli: RunCli, settings: Settings, open_terminal: OpenTerminal, name: bytes
) -> None:
    folder = os.fsencode(own_folder(settings))
    os.makedirs(folder)
    file = folder + b"/" + name + b".gguf"
    with open(file, "wb") as out:
        out.write(tiny().dump())
    listed = run_cli("ls", "-q").stdout
    assert listed == name + b"\n"
    for reference in (listed[:-1], file):
        done = run_cli("path", os.fsdecode(reference))
        assert (done.code, done.stdout) == (0, file + b"\n")
    with open_terminal("path", os.fsdecode(name)) as terminal:
        assert terminal.wait() == 0
        assert b"\x1b[31m" not in terminal.screen
