"""How an option of llmcli is declared, and the small ones that commands share. Named as in llama.cpp.

Each has an environment default, LLMCLI_<OPTION>. A group is a decorator; the command receives plain keyword arguments.
The large groups are in engine_options, sampling_options and cache_options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from llmcli.base.errors import ModelError
from llmcli.base.settings import flag_variable
from llmcli.cli.complete import complete_file, complete_folder, complete_model
from llmcli.cli.params import Text, Utf8, Whole

F = TypeVar("F", bound=Callable[..., Any])

# Pairs that say the same thing twice. Where both are given, the one from the stronger source counts.
_RIVALS = (
    ("words", "prompt"),
    ("system_prompt", "system_prompt_file"),
    ("raw", "chat_template"),
    ("grammar", "grammar_file"),
    ("rope_scale", "rope_freq_scale"),
)
_COMPLETERS = {"DIR": complete_folder, "MODEL": complete_model}  # by the metavar of an option
STRENGTH = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


class _Option(click.Option):
    """An option whose value may come from config.toml, where it can be of any kind."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        if ctx.get_parameter_source(self.name or "") is ParameterSource.DEFAULT_MAP:
            if self.multiple and isinstance(value, str):
                value = (value,)
            if self.multiple and not isinstance(value, (list, tuple)):
                raise click.BadParameter(f"{value!r} is not a list")
            if self.is_flag and not isinstance(value, (bool, str)):
                raise click.BadParameter(f"{value!r} is not true or false")
        return super().type_cast_value(ctx, value)


def option(*names: str, **attributes: Any) -> Callable[[F], F]:
    """click.option with the environment default that every llmcli option has.

    The command receives the value under the long flag's own name, which is its name in config.toml too.
    """
    long = next(name for name in names if name.startswith("--"))
    attributes = {"cls": _Option, "type": None if attributes.get("is_flag") else Text(), **attributes}
    if "FILE" in (metavar := attributes.get("metavar", "")):
        attributes.update(shell_complete=complete_file, callback=require_file)
    elif completer := _COMPLETERS.get(metavar):
        attributes.setdefault("shell_complete", completer)
    if metavar == "MODEL":
        attributes["callback"] = _require_model
    return click.option(*names, long[2:].replace("-", "_"), envvar=flag_variable(long), **attributes)


def require_file(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """An empty text names no file: it is what a shell makes of a variable that is not set."""
    if "" in (value if isinstance(value, tuple) else (value,)):
        raise click.BadParameter("the name of the file is empty", ctx, param)
    return value


def _require_model(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """The same for a model; in config.toml an empty text is as good as none, as it is in the environment."""
    if "" not in (value if isinstance(value, tuple) else (value,)):
        return value
    if ctx.get_parameter_source(param.name or "") is ParameterSource.DEFAULT_MAP:
        return () if isinstance(value, tuple) else None
    raise ModelError("the name of the model is empty", hint="llmcli ls shows what there is")


def without_weaker_rivals(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the running command, such that `--grammar` beats LLMCLI_GRAMMAR_FILE instead of clashing with it.

    Two of a kind from the same source stay: that is the user's mistake, and whoever makes settings of them says so.
    """
    kept, source_of = dict(values), click.get_current_context().get_parameter_source
    for pair in _RIVALS:
        given = [name for name in pair if kept.get(name) not in (None, (), False)]
        if len(given) == len(pair):
            strength = {name: STRENGTH.index(source) for name in given if (source := source_of(name)) in STRENGTH}
            for name in given:
                if strength.get(name, 0) > min(strength.values(), default=0):
                    kept[name] = {"words": (), "raw": False}.get(name)
    return kept


def group(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in this order."""

    def decorate(function: F) -> F:
        for one in reversed(options):
            function = one(function)
        return function

    return decorate


model_option = option(
    "-m", "--model", metavar="MODEL", help="A path, an alias, or owner/repo[:QUANT] in the Hugging Face cache."
)

verbosity_options = group(
    option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors."),
    option("-v", "--verbose", is_flag=True, help="llama.cpp's log and more detail on stderr."),
)

system_prompt_options = group(
    option("-sys", "--system-prompt", metavar="TEXT", help="The system prompt."),
    option("-sysf", "--system-prompt-file", metavar="FILE", help="The system prompt, from a file."),
)

length_options = group(
    option(
        "-n",
        "--predict",
        type=Whole(-1),
        metavar="N",
        help="Most tokens of an answer; -1: until the model ends. [default: -1]",
    ),
    option(
        "--stop", type=Utf8(), multiple=True, metavar="TEXT", help="End an answer before this text; may be repeated."
    ),
)

chat_template_option = option(
    "--chat-template", metavar="NAME|FILE", help="A template to use in place of the model's own."
)
