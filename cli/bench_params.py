"""Options and value types of `llmcli bench`: lists and ranges where other commands have one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from llmcli.base.errors import UsageError
from llmcli.bench.sizes import parse_list, parse_pair
from llmcli.bench.trials import Grid
from llmcli.cli.options import option
from llmcli.engine.context import KV_TYPES

F = TypeVar("F", bound=Callable[..., Any])


class ListOption(click.Option):
    """An option that takes a list and may be repeated; config.toml may have a single value, as other commands need."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """The values of all lists behind each other."""
        if ctx.get_parameter_source(self.name or "") is ParameterSource.DEFAULT_MAP and not isinstance(
            value, (list, tuple)
        ):
            value = (value,)
        return tuple(one for many in super().type_cast_value(ctx, value) for one in many)


class _OneText(click.ParamType[tuple[Any, ...]]):
    """The environment has one value, which may be a list."""

    def split_envvar_value(self, rv: str) -> list[str]:
        """No splitting: a list is parsed here."""
        return [rv]

    def parsed(self, parse: Callable[[str], Any], value: Any, param: Any, ctx: Any) -> Any:
        """What `parse` makes of it, with its refusal told by click."""
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            self.fail(f"{value!r} is not a {self.name}", param, ctx)
        try:
            return parse(str(value))
        except UsageError as error:
            self.fail(error.message + (f"; {error.hint}" if error.hint else ""), param, ctx)


class Numbers(_OneText):
    """`512,1024-4096*2`: each at least `least`."""

    name = "list of numbers"

    def __init__(self, least: int) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse one list."""
        found: tuple[int, ...] = self.parsed(lambda text: parse_list(text, least=self._least), value, param, ctx)
        return found


class Pair(_OneText):
    """`512,128`."""

    name = "pair"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Parse one pair; a tuple of one, as every list option gives a tuple."""
        return (self.parsed(parse_pair, value, param, ctx),)


class Words(_OneText):
    """`on,off`: each of the known words."""

    name = "list of words"

    def __init__(self, known: tuple[str, ...], synonyms: Mapping[str, str] | None = None) -> None:
        self._known, self._synonyms = known, synonyms or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Parse one list."""
        words = [word.strip().lower() for word in str(value).split(",")]
        words = [self._synonyms.get(word, word) for word in words]
        if unknown := [word for word in words if word not in self._known]:
            self.fail(f"{unknown[0]!r} is not one of {', '.join(self._known)}", param, ctx)
        return tuple(words)


class Texts(_OneText):
    """One text per use of the option, one per line in the environment."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The text as a tuple of one."""
        if not isinstance(value, str):
            self.fail(f"{value!r} is not a text", param, ctx)
        return (value,)

    def split_envvar_value(self, rv: str) -> list[str]:
        """One per line."""
        return [line for line in rv.splitlines() if line]


def list_option(*names: str, kind: click.ParamType[Any], **attributes: Any) -> Callable[[F], F]:
    """An option with a list for a value."""
    return option(*names, cls=ListOption, type=kind, multiple=True, **attributes)


KINDS_OF_KV = Words(tuple(KV_TYPES))
FLASH = Words(("auto", "on", "off"), {"1": "on", "0": "off", "-1": "auto"})  # llama-bench writes 0 and 1


def grid_from(values: Mapping[str, Any]) -> Grid:
    """The cross product that the options of `llmcli bench` ask for; what is not given is as in llama-bench."""
    return Grid(
        models=values["model"] or (None,),
        n_prompt=values["n_prompt"] or (512,),
        n_gen=values["n_gen"] or (128,),
        pairs=values["pg"],
        n_depth=values["n_depth"] or (0,),
        n_gpu_layers=values["n_gpu_layers"] or (None,),
        n_batch=values["batch_size"] or (None,),
        n_ubatch=values["ubatch_size"] or (None,),
        type_k=values["cache_type_k"] or ("f16",),
        type_v=values["cache_type_v"] or ("f16",),
        flash_attn=values["flash_attn"] or ("auto",),
        n_threads=values["threads"] or (None,),
        use_mmap=not values["no_mmap"],
        use_mlock=values["mlock"],
    )
