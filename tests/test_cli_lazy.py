"""A group that imports a command only to run it."""

from __future__ import annotations

from types import SimpleNamespace

import click
import pytest

from llmcli.cli import lazy
from llmcli.cli.lazy import LazyGroup

TABLE = {"one": ("x_one", "command", "Does one."), "two": ("x_two", "command", "Does two.")}


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def load(name: str) -> SimpleNamespace:
        names.append(name)
        return SimpleNamespace(command=click.Command("one", callback=lambda: "done"))

    monkeypatch.setattr(lazy, "import_module", load)
    return names


def test_only_the_command_that_is_called_is_imported(imported: list[str]) -> None:
    group = LazyGroup("g", table=TABLE)
    context = click.Context(group, info_name="g")
    text = group.get_help(context)
    assert "one  Does one.\n" in text and "two  Does two." in text
    assert group.list_commands(context) == ["one", "two"]
    assert (group.get_command(context, "three"), imported) == (None, [])
    with group.make_context("g", ["one"]) as made:
        assert group.invoke(made) == "done"
    assert imported == ["llmcli.cli.x_one"]


@pytest.mark.parametrize(("word", "meant"), [("tow", "g two"), ("xyz", "advice")])
def test_an_unknown_command(word: str, meant: str, imported: list[str]) -> None:
    group = LazyGroup("g", table=TABLE, otherwise="advice")
    with pytest.raises(click.UsageError, match=f"there is no command '{word}'; did you mean: {meant}"):
        group.resolve_command(click.Context(group, info_name="g"), [word])
    assert imported == []


def test_defaults_are_passed_on() -> None:
    group = LazyGroup("g", table=TABLE)
    context = click.Context(group, info_name="g")
    context.default_map = {"threads": 1}
    group.pass_defaults_on(context)
    assert context.default_map == {"one": {"threads": 1}, "two": {"threads": 1}}
    context.default_map = {}
    group.pass_defaults_on(context)
    assert context.default_map is None


def test_help_as_a_word(imported: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    group = LazyGroup("g", table=TABLE)
    name, _, rest = group.resolve_command(click.Context(group, info_name="g"), ["help", "one"])
    assert (name, rest) == ("one", ["--help"])
    imported.clear()
    with pytest.raises(click.exceptions.Exit) as caught:
        group.resolve_command(click.Context(group, info_name="g"), ["help"])
    assert (caught.value.exit_code, imported) == (0, [])
    assert capfd.readouterr().out.startswith("Usage: g ")
    with pytest.raises(click.UsageError, match="there is no command 'tow'"):
        group.resolve_command(click.Context(group, info_name="g"), ["help", "tow"])
