"""[alias] in config.toml: changed in place, everything else as the user wrote it."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.settings import Settings, load
from llmcli.models.aliases import remove_alias, set_alias

HAND_WRITTEN = """\
# mine
ctx-size = 2048   # tokens

[alias]
# the small one
tiny = 'smollm2'      # single quotes
"b b" = "x"

[other]
list = [
  1,  # one
  2,
]
"""


def config(home: Path, text: str | bytes) -> Path:
    path = home / "config" / "config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_first_alias_makes_the_file(llmcli_home: Path) -> None:
    set_alias("tiny", "o/r:Q4_0", load())
    path = llmcli_home / "config" / "config.toml"
    assert path.read_text() == '[alias]\ntiny = "o/r:Q4_0"\n'
    assert path.stat().st_mode & 0o777 == 0o600
    assert dict(load().aliases) == {"tiny": "o/r:Q4_0"}


def test_comments_order_and_spelling_stay(llmcli_home: Path) -> None:
    path = config(llmcli_home, HAND_WRITTEN)
    set_alias("big", "o/r", load())
    assert path.read_text() == HAND_WRITTEN.replace('"b b" = "x"\n', '"b b" = "x"\nbig = "o/r"\n')
    set_alias("tiny", "new", load())
    remove_alias("big", load())
    assert path.read_text() == HAND_WRITTEN.replace("'smollm2'", '"new"')


def test_the_last_line_keeps_its_end(llmcli_home: Path) -> None:
    path = config(llmcli_home, '[alias]\na = "1"\nb = "2"\n')
    remove_alias("b", load())
    assert path.read_text() == '[alias]\na = "1"\n'
    remove_alias("a", load())
    assert path.read_text() == ""
    assert dict(load().aliases) == {}


@pytest.mark.parametrize(
    "text",
    [
        b'\xef\xbb\xbf[alias]\r\na = "1"\r\n',
        b'alias = {a = "1"}\n',
        b'alias.a = "1"\n',
        b'x = 1\nalias.a = "1"\ny = 2\n[z]\nw = 3',
    ],
    ids=["byte order mark and CRLF", "inline table", "dotted key", "dotted among others"],
)
def test_other_ways_to_write_it(llmcli_home: Path, text: bytes) -> None:
    path = config(llmcli_home, text)
    before = dict(load().values)
    set_alias("b", "2", load())
    assert dict(load().values) == {**before, "alias": {"a": "1", "b": "2"}}
    remove_alias("b", load())
    assert dict(load().values) == before
    assert path.read_bytes().startswith(text[:3])


def test_mode_and_link_of_the_file_stay(llmcli_home: Path, tmp_path: Path) -> None:
    path = config(llmcli_home, HAND_WRITTEN)
    real = tmp_path / "dotfiles.toml"
    os.rename(path, real)
    real.chmod(0o644)
    path.symlink_to(real)
    set_alias("big", "o/r", load())
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o644
    assert 'big = "o/r"' in real.read_text()


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "a\nb", "a\x1b[2J", "-x", "o/r", "./m", "~m", "/m", "m.gguf", "a:b", "x" * 101, "hf://a/b"]
)
def test_names_that_could_not_be_used(llmcli_home: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be an alias"):
        set_alias(name, "o/r", load())
    assert not (llmcli_home / "config").exists()


@pytest.mark.parametrize("reference", ["", "  ", "a\x1b]0;x\x07"])
def test_references_that_are_none(llmcli_home: Path, reference: str) -> None:
    with pytest.raises(UsageError, match="is no reference"):
        set_alias("tiny", reference, load())


def test_a_circle_is_refused(llmcli_home: Path) -> None:
    config(llmcli_home, '[alias]\na = "b"\nb = "c"\n')
    for name, reference in (("c", "a"), ("a", "a"), ("b", "a")):
        with pytest.raises(UsageError, match="lead back to itself"):
            set_alias(name, reference, load())


def test_removing_what_is_not_there(llmcli_home: Path) -> None:
    with pytest.raises(LlmcliError, match="there is no alias 'x'"):
        remove_alias("x", load())


def test_a_file_that_was_broken_meanwhile_is_left_alone(llmcli_home: Path) -> None:
    path = config(llmcli_home, HAND_WRITTEN)
    settings = load()
    path.write_text("[alias\n")
    with pytest.raises(LlmcliError, match="cannot be changed safely"):
        set_alias("a", "b", settings)
    assert path.read_text() == "[alias\n"


def _set(environment: dict[str, str], name: str, settings: Settings) -> None:
    os.environ.update(environment)
    set_alias(name, "o/r", settings)


def test_two_processes_lose_nothing(llmcli_home: Path) -> None:
    """Each was started before the other wrote."""
    settings = load()
    context = multiprocessing.get_context("fork")
    names = [f"n{number}" for number in range(6)]
    processes = [context.Process(target=_set, args=(dict(os.environ), name, settings)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(names)
    assert set(load().aliases) == set(names)
