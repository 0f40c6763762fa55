"""Changing one table of config.toml, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.config_edit import set_table, with_table
from llmcli.base.errors import LlmcliError, UsageError

MINE = """\
# my settings
threads = 3   # fast ones

[alias]
tiny = "smollm2"  # the small one

[tuned.abc]
threads = 1
# a note in it
ubatch_size = 64

[tuned.def]
threads = 2
"""


def test_a_file_is_made(tmp_path: Path) -> None:
    path = tmp_path / "config" / "config.toml"
    set_table(path, "tuned", "abc", {"threads": 2, "model": 'a "b"\\c', "fast": True})
    assert tomllib.loads(path.read_text()) == {"tuned": {"abc": {"threads": 2, "model": 'a "b"\\c', "fast": True}}}
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_rest_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(MINE)
    path.chmod(0o644)
    set_table(path, "tuned", "abc", {"threads": 8})
    text = path.read_text()
    assert text == MINE.replace("threads = 1\n# a note in it\nubatch_size = 64\n", "threads = 8\n")
    assert path.stat().st_mode & 0o777 == 0o644
    set_table(path, "tuned", "ghi", {"threads": 4})
    assert path.read_text() == text + "\n[tuned.ghi]\nthreads = 4\n"
    set_table(path, "tuned", "def", {"threads": 5})
    assert tomllib.loads(path.read_text())["tuned"] == {
        "abc": {"threads": 8},
        "def": {"threads": 5},
        "ghi": {"threads": 4},
    }


@pytest.mark.parametrize(
    "text",
    [
        "tuned = 3\n",
        "tuned = {abc = {threads = 1}}\n",
        "[tuned]\nabc = 1\n",
        '["tuned".abc]\nthreads = 1\n',
        'note = """\n[tuned.abc]\n"""\n',
        "not toml at all [",
    ],
)
def test_what_it_does_not_see_through_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"cannot be changed safely"):
        set_table(path, "tuned", "abc", {"threads": 8})
    assert path.read_text() == text


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles.toml").write_text("a = 1\n")
    (tmp_path / "config.toml").symlink_to("dotfiles.toml")
    set_table(tmp_path / "config.toml", "tuned", "abc", {"threads": 8})
    assert (tmp_path / "config.toml").is_symlink()
    assert tomllib.loads((tmp_path / "dotfiles.toml").read_text()) == {"a": 1, "tuned": {"abc": {"threads": 8}}}


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(LlmcliError, match="cannot write"):
        set_table(tmp_path / "config.toml", "tuned", "abc", {"threads": 8})


values = st.one_of(st.text(max_size=20), st.integers(-(2**63), 2**63 - 1), st.booleans())


@given(st.dictionaries(st.from_regex(r"\A[a-z_]{1,8}\Z"), values, max_size=4))
def test_any_values_come_back(wanted: dict[str, str | int | bool]) -> None:
    wanted = {key: value for key, value in wanted.items() if not _has_surrogate(value)}
    text = with_table(MINE, "tuned", "abc", wanted)
    assert tomllib.loads(text)["tuned"] == {"abc": wanted, "def": {"threads": 2}}
    assert with_table(text, "tuned", "abc", wanted) == text


def _has_surrogate(value: object) -> bool:
    return isinstance(value, str) and any(0xD800 <= ord(ch) <= 0xDFFF for ch in value)
