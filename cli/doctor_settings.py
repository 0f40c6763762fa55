"""What `llmcli doctor` says of settings in the environment and in config.toml: those nobody reads, and wrong values.

An option is asked for its value as every command with that option would ask, so what passes here passes there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from llmcli.base.settings import OWN_VARIABLES, Settings
from llmcli.engine.diagnose import Check


@dataclass(frozen=True, slots=True)
class _Place:
    """An option of a command; `path` is what to type for the command."""

    path: str
    command: click.Command
    param: click.Option
    name: str
    variable: str


def judge_settings(settings: Settings) -> tuple[Check, ...]:
    """A line for every setting that has no effect or that commands refuse; none where all is well."""
    places = tuple(_options())
    return (*_meaningless(settings, places), *_refused(settings, places))


def _meaningless(settings: Settings, places: tuple[_Place, ...]) -> Iterator[Check]:
    """A slip of the pen has no effect, and nothing else would say so."""
    flags = {place.name for place in places}
    variables = {place.variable for place in places} | OWN_VARIABLES
    slips = [(f"{key} in {settings.config_file}", key, flags) for key in settings.flag_defaults() if key not in flags]
    ours = (name for name in sorted(settings.environment) if name.startswith("LLMCLI_"))
    slips += [(name, name, variables) for name in ours if name not in variables]
    for what, name, known in slips:
        yield Check("settings", "warn", f"{what} stands for no option, and has no effect", _meant(name, known))


def _refused(settings: Settings, places: tuple[_Place, ...]) -> Iterator[Check]:
    """Values that an option does not take; where only some commands refuse one, which."""
    defaults, environment = settings.flag_defaults(), settings.environment
    for key in sorted({place.name for place in places} & set(defaults)):
        same = [place for place in places if place.name == key]
        yield from _judge_value(f"{key} in {settings.config_file}", same, ParameterSource.DEFAULT_MAP, defaults[key])
    for name in sorted({place.variable for place in places} & set(environment)):
        same = [place for place in places if place.variable == name]
        if environment[name]:  # an empty one counts as not set
            yield from _judge_value(name, same, ParameterSource.ENVIRONMENT, environment[name])


def _judge_value(what: str, places: list[_Place], source: ParameterSource, value: Any) -> Iterator[Check]:
    refused = {place.path: why for place in places if (why := _why_not(place, source, value))}
    if refused:
        by_whom = "" if len(refused) == len(places) else f" by {', '.join(sorted(refused))}"
        why = next(iter(refused.values()))
        yield Check("settings", "fail", f"{what} is refused{by_whom}: {why}", "correct it, or take it out")


def _why_not(place: _Place, source: ParameterSource, value: Any) -> str | None:
    context = click.Context(place.command)
    context.set_parameter_source(place.name, source)
    param = place.param
    if source is ParameterSource.ENVIRONMENT and (param.multiple or param.nargs != 1):
        value = param.type.split_envvar_value(value)
    try:
        param.process_value(context, value)
    except click.UsageError as error:
        return error.format_message()
    return None


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    return f"write {near[0]}, if that is meant" if near else "take it out; llmcli COMMAND --help lists the options"


def _options() -> Iterator[_Place]:
    """Every option of every command that has a name in config.toml and a variable."""
    from llmcli.cli.main import main

    groups: list[tuple[str, click.Group]] = [("llmcli", main)]
    while groups:
        above, group = groups.pop()
        for name in group.list_commands(context := click.Context(group)):
            command, path = group.get_command(context, name), f"{above} {name}"
            if isinstance(command, click.Group):
                groups.append((path, command))
            for param in command.params if command else ():
                if isinstance(param, click.Option) and param.name and isinstance(param.envvar, str) and command:
                    yield _Place(path, command, param, param.name, param.envvar)
