"""The filters a chat template may use: Jinja's own where they cannot run away, bounded ones of ours elsewhere.

Left out: filters for web pages (urlize, xmlattr, striptags, urlencode), pprint, random and others that no chat
template has a use for. Generators are turned into lists on the way in and out, so that everything between two
filters has a known size. Imported only when a template is compiled: it imports Jinja.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from jinja2 import pass_environment
from jinja2.filters import FILTERS, make_attrgetter, sync_do_slice
from markupsafe import escape

from llmcli.engine import template_text as text
from llmcli.engine.template_meter import TemplateLimitError

if TYPE_CHECKING:
    from llmcli.engine.template_sandbox import BoundedEnvironment

# Jinja's own, after their first argument and result were weighed: linear in their input.
_PLAIN = (
    "abs attr capitalize count d default dictsort first float groupby items last length list lower map max min"
    " reject rejectattr reverse select selectattr sort title truncate unique upper wordcount"
)
_MOST_COLUMNS = 10_000
_MOST_INDENT = 64
_MOST_DIGITS = 1000

Filter = Callable[..., Any]


def bounded_filters(environment: BoundedEnvironment) -> dict[str, Filter]:
    """The table of filters for `environment`."""
    table: dict[str, Filter] = {name: FILTERS[name] for name in _PLAIN.split()}
    table |= {name: pass_environment(function) for name, function in _OWN.items()}
    return {name: _metered(environment, function) for name, function in table.items()}


def _metered(environment: BoundedEnvironment, function: Filter) -> Filter:
    """`function` with generators listed and its result accounted for; wraps() keeps what Jinja passes it first."""
    # The value stands first, or second behind what Jinja passes (context, environment, evaluation context).
    place = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        meter = environment.meter
        meter.tick()
        if len(args) > place:
            value = args[place]
            value = text.listed(meter, value) if isinstance(value, GeneratorType) else value
            meter.weigh(value)
            args = (*args[:place], value, *args[place + 1 :])
        result = function(*args, **kwargs)
        return text.listed(meter, result) if isinstance(result, GeneratorType) else meter.made(result)

    return filtered


def _string(environment: BoundedEnvironment, value: Any) -> str:
    return text.text_of(environment.meter, value)


def _trim(environment: BoundedEnvironment, value: Any, chars: str | None = None) -> str:
    string = text.text_of(environment.meter, value)
    if chars is not None:
        text.searchable(string, chars)
    return string.strip(chars)


def _replace(environment: BoundedEnvironment, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    meter = environment.meter
    string, old, new = (text.text_of(meter, part) for part in (value, old, new))
    return text.replace(meter, string, old, new, -1 if count is None else count)


def _join(environment: BoundedEnvironment, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    meter = environment.meter
    items = text.listed(meter, value)
    if attribute is not None:
        items = text.listed(meter, map(make_attrgetter(environment, attribute), items))
    return text.concat(meter, (text.text_of(meter, item) for item in items), text.text_of(meter, d))


def _center(environment: BoundedEnvironment, value: Any, width: int = 80) -> str:
    environment.meter.fits_text(width)
    return text.text_of(environment.meter, value).center(width)


def _format(environment: BoundedEnvironment, value: Any, *args: Any, **kwargs: Any) -> str:
    return text.printf(environment.meter, text.text_of(environment.meter, value), kwargs or args)


def _indent(environment: BoundedEnvironment, value: Any, width: int | str = 4, *args: Any, **kwargs: Any) -> Any:
    string = text.text_of(environment.meter, value)
    lines = string.count("\n") + 2
    environment.meter.fits_text(len(string) + lines * (len(width) if isinstance(width, str) else width))
    return FILTERS["indent"](string, width, *args, **kwargs)


def _batch(_environment: BoundedEnvironment, value: Any, linecount: int, fill_with: Any = None) -> Any:
    return FILTERS["batch"](value, _column_count(linecount), fill_with)


def _slice(environment: BoundedEnvironment, value: Any, slices: int, fill_with: Any = None) -> Any:
    return sync_do_slice(text.listed(environment.meter, value), _column_count(slices), fill_with)


def _column_count(count: int) -> int:
    if count > _MOST_COLUMNS:
        raise TemplateLimitError(f"makes more than {_MOST_COLUMNS:,} columns")
    return count


def _int(_environment: BoundedEnvironment, value: Any, default: int = 0, base: int = 10) -> Any:
    if isinstance(value, str) and len(value) > _MOST_DIGITS:
        raise TemplateLimitError(f"reads a number of more than {_MOST_DIGITS:,} digits")
    return FILTERS["int"](value, default, base)


def _round(_environment: BoundedEnvironment, value: Any, precision: int = 0, method: str = "common") -> Any:
    if abs(precision) > _MOST_DIGITS // 10:
        raise TemplateLimitError(f"rounds to more than {_MOST_DIGITS // 10} digits")
    return FILTERS["round"](value, precision, method)


def _sum(environment: BoundedEnvironment, value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    meter = environment.meter
    items = text.listed(meter, value)
    if attribute is not None:
        items = text.listed(meter, map(make_attrgetter(environment, attribute), items))
    for item in (start, *items):
        meter.tick()
        if not isinstance(item, (int, float)):  # sum() of lists copies all that went before at every step
            raise TypeError("sum adds up numbers only")
    return sum(items, start)


def _escape(environment: BoundedEnvironment, value: Any) -> str:
    # A plain string, not Markup: templates are rendered without autoescape, and Markup brings its own methods.
    string = text.text_of(environment.meter, value)
    environment.meter.fits_text(5 * len(string))
    return str(escape(string))


def _tojson(
    environment: BoundedEnvironment,
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 (the order of transformers' filter)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """The filter of transformers: JSON as it is, where Jinja's own would escape it for HTML."""
    if (indent or 0) > _MOST_INDENT or len("".join(separators or ())) > _MOST_INDENT:
        raise TemplateLimitError(f"indents by more than {_MOST_INDENT}")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    environment.meter.weigh(value)
    return text.concat(environment.meter, encoder.iterencode(value))


_OWN: dict[str, Filter] = {
    "batch": _batch,
    "center": _center,
    "e": _escape,
    "escape": _escape,
    "format": _format,
    "indent": _indent,
    "int": _int,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "safe": _string,
    "slice": _slice,
    "string": _string,
    "sum": _sum,
    "tojson": _tojson,
    "trim": _trim,
}
