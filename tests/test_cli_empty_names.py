"""An empty text names no file and no model: it is what a shell makes of a variable that is not set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import pytest

from llmcli.cli.main import call, main

Refuse = Callable[[Sequence[str]], tuple[int, str]]
NO_FILE, NO_MODEL = "the name of the file is empty", "the name of the model is empty"
# What the command wants besides; the empty name is looked at before any of it.
WORDS = {
    "alias set": ("a", "b"),
    "bench compare": ("a", "b"),
    "cache save": ("a",),
    "cache show": ("a",),
    "cache restore": ("a",),
    "cache import": ("a",),
    "cache warm": ("a",),
    "cache why": ("a", "b"),
    "sessions export": ("a",),
}


def commands(
    group: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if path:
        yield path, group
    if isinstance(group, click.Group):
        with click.Context(group) as context:
            for name in group.list_commands(context):
                found = group.get_command(context, name)
                assert found is not None
                yield from commands(found, (*path, name))


def options(named: Callable[[str], bool]) -> list[tuple[str, ...]]:
    """A command line for every option whose metavar says that it names one."""
    return [
        (*path, *WORDS.get(" ".join(path), ()), param.opts[-1], "")
        for path, command in commands()
        for param in command.params
        if isinstance(param, click.Option) and named(param.metavar or "")
    ]


@pytest.fixture
def refuse(llmcli_home: Path, capfd: pytest.CaptureFixture[str]) -> Refuse:
    """The exit code and the one line of a command line that must be refused."""

    def run(words: Sequence[str]) -> tuple[int, str]:
        code = call(words)
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return code, err

    return run


@pytest.mark.parametrize("words", options(lambda metavar: "FILE" in metavar), ids=" ".join)
def test_options_that_name_a_file(refuse: Refuse, words: tuple[str, ...]) -> None:
    code, line = refuse(words)
    assert code == 2
    assert words[-2] in line
    assert NO_FILE in line


@pytest.mark.parametrize("words", options(lambda metavar: metavar == "MODEL"), ids=" ".join)
def test_options_that_name_a_model(refuse: Refuse, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMCLI_MODEL", "another.gguf")  # which is not meant
    code, line = refuse(words)
    assert code == 3
    assert NO_MODEL in line


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("quantize", "", "Q8_0"), 3, NO_MODEL),
        (("quantize", "", "out.gguf", "Q8_0"), 3, NO_MODEL),
        (("quantize", "in.gguf", "", "Q8_0"), 2, "the name of the output is empty"),
        (("quality", ""), 3, NO_MODEL),
        (("imatrix", ""), 3, NO_MODEL),
        (("imatrix", "--show-statistics", ""), 2, NO_FILE),
        (("show", ""), 3, NO_MODEL),
        (("verify", ""), 3, NO_MODEL),
        (("path", ""), 3, NO_MODEL),
        (("rm", ""), 3, NO_MODEL),
        (("pull", ""), 3, NO_MODEL),
        (("bench", "compare", "", "b"), 2, NO_FILE),
        (("bench", "compare", "a", ""), 2, NO_FILE),
        (("cache", "warm", "a", ""), 2, NO_FILE),
    ],
)
def test_words_that_name_one(
    refuse: Refuse, words: tuple[str, ...], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMCLI_MODEL", "another.gguf")
    found, line = refuse(words)
    assert found == code
    assert says in line


def test_an_empty_default_is_none(refuse: Refuse, llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In config.toml and in the environment."""
    (llmcli_home / "config").mkdir()
    (llmcli_home / "config" / "config.toml").write_text('model = ""\n')
    monkeypatch.setenv("LLMCLI_FILE", "")
    assert NO_MODEL not in refuse(("run", "-t", "1", "hi"))[1]


@pytest.mark.parametrize("command", ["imatrix", "quality"])
def test_no_windows_are_nothing_to_measure(refuse: Refuse, command: str) -> None:
    assert refuse((command, "m.gguf", "--chunks", "0")) == (
        2,
        f"error: Invalid value for '--chunks': 0 is not at least 1, or -1 for all (see llmcli {command} --help)\n",
    )
