"""The operations on text that a template may use, none of which can run away.

str's own methods, printf-style formatting and str.format, with their cost worked out before they run: a width of
10**9, a replacement that makes a text a thousand times as long, a search that takes the product of two lengths.
Anything that is not in the lists below cannot be called. Knows a Meter and Python values; imports no Jinja.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from llmcli.engine.template_meter import Meter, TemplateLimitError

_TEXT_METHODS = (
    "capitalize casefold center count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier"
    " islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix"
    " removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase"
    " title upper zfill"
)
# Methods by type. Left out: what modifies, what makes bytes (encode), and what multiplies for no use (expandtabs).
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_TEXT_METHODS.split()),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
}
_STRIPPING = frozenset(("strip", "lstrip", "rstrip"))
# Python searches forward in linear time, backward in up to length times length.
_BACKWARD = frozenset(("rfind", "rindex", "rpartition", "rsplit"))
_PADDING = frozenset(("center", "ljust", "rjust", "zfill"))
_MOST_STEPS = 1_000_000_000  # of a search: about a second
_DIGIT = re.compile(r"\d")
_LONG_NUMBER = re.compile(r"\d{4}")  # in a format: a width or precision beyond 999
_MAPPING_KEY = re.compile(r"%\([^()]*\)")
_WIDE_CONVERSION = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)")


def allowed_method(owner: object, name: str) -> bool:
    """Whether a template may call the built-in method `name` of `owner`."""
    return any(isinstance(owner, kind) and name in names for kind, names in _METHODS.items())


def call_method(meter: Meter, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an allowed bound method of a built-in type, its cost checked first."""
    owner, name = method.__self__, method.__name__
    if isinstance(owner, str):
        if name == "replace":
            return replace(meter, owner, *args, **kwargs)
        if name == "join":
            return join(meter, owner, *args, **kwargs)
        _check_method(meter, owner, name, args, kwargs)
    return meter.made(method(*args, **kwargs))


def _check_method(meter: Meter, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    first = args[0] if args else kwargs.get("sep")
    if name in _PADDING and isinstance(first, int):
        meter.fits_text(first)
    if (name in _STRIPPING or name in _BACKWARD) and isinstance(first, str):
        searchable(owner, first)


def searchable(text: str, wanted: str) -> None:
    """Raise TemplateLimitError where a search of quadratic cost would take too long."""
    if len(text) * len(wanted) > _MOST_STEPS:
        raise TemplateLimitError("searches a long text for another long text")


def replace(meter: Meter, text: str, old: str, new: str, count: int = -1) -> str:
    """str.replace, refused where the result would be too long."""
    if isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        found = text.count(old)
        meter.fits_text(len(text) + (found if count < 0 else min(found, count)) * (len(new) - len(old)))
    return meter.made(text.replace(old, new, count))


def join(meter: Meter, separator: str, parts: Iterable[str]) -> str:
    """str.join, refused where the result would be too long."""
    return concat(meter, listed(meter, parts), separator)


def concat(meter: Meter, parts: Iterable[str], separator: str = "") -> str:
    """Texts in a row, their length summed up before they are joined; `parts` may be a generator."""
    pieces: list[str] = []
    length = 0
    for piece in parts:
        meter.tick()
        length += len(piece) + len(separator)
        meter.fits_text(length)
        pieces.append(piece)
    return meter.made(separator.join(pieces))


def listed(meter: Meter, items: Iterable[Any]) -> list[Any]:
    """`items` as a list that is never larger than one value may be; a list stays what it is."""
    if isinstance(items, list):
        return items
    result: list[Any] = []
    size = 0
    for item in items:
        meter.tick()
        size += meter.weigh(item)
        meter.fits(size)
        result.append(item)
    return meter.made(result)


def text_of(meter: Meter, value: object) -> str:
    """str(value), for containers only after their size written out is known."""
    if isinstance(value, str):
        return value
    meter.weigh(value)
    return meter.made(str(value))


def repeat(meter: Meter, left: Any, right: Any) -> Any:
    """Work out left * right, where a sequence is not made longer than one value may be."""
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
            size = 4 * len(sequence) if isinstance(sequence, str) else meter.weigh(sequence)
            meter.fits(size * max(times, 0))
    return left * right


def power(left: Any, right: Any) -> Any:
    """Work out left ** right, where no huge number is made on the way."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > 64:
        raise TemplateLimitError("makes a number of more than 63 bits")
    return left**right


def printf(meter: Meter, pattern: str, values: Any) -> str:
    """Work out pattern % values, without widths of more than three digits or taken from a value."""
    conversions = _MAPPING_KEY.sub("%", pattern)
    if _WIDE_CONVERSION.search(conversions):
        raise TemplateLimitError("formats with a width of more than 999")
    # A value may be printed once per conversion; escapes in %r make it up to ten times as long.
    largest = max(map(meter.weigh, _values(values)), default=0)
    width = 999 if _DIGIT.search(conversions) else 0
    meter.fits(4 * len(pattern) + pattern.count("%") * (largest + width))
    formatted: str = pattern % values
    return meter.made(formatted)


def _values(values: Any) -> Iterable[Any]:
    if isinstance(values, dict):
        return values.values()
    return values if isinstance(values, tuple) else (values,)


def checked_spec(spec: str) -> str:
    """A format specification of str.format, without widths or precisions of more than three digits."""
    if _LONG_NUMBER.search(spec):
        raise TemplateLimitError("formats with a width of more than 999")
    return spec


Operation = Callable[[Meter, Any, Any], Any]


def _modulo(meter: Meter, left: Any, right: Any) -> Any:
    return printf(meter, left, right) if isinstance(left, str) else left % right


# What needs a look before it is done; the other operators cannot make more than they are given.
OPERATORS: dict[str, Operation] = {
    "*": repeat,
    "**": lambda _meter, left, right: power(left, right),
    "%": _modulo,
    "+": lambda _meter, left, right: left + right,
    "-": lambda _meter, left, right: left - right,
    "/": lambda _meter, left, right: left / right,
    "//": lambda _meter, left, right: left // right,
}
