"""Types of command line values: parsing and range checks live here, not in the commands.

A value comes as text from the command line and the environment, and as whatever TOML has from config.toml; each type
refuses what it would have to reinterpret. In the environment an option that may be repeated has one value per line.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from llmcli.base.errors import UsageError
from llmcli.base.text import decode_word
from llmcli.base.units import parse_bytes, parse_duration
from llmcli.engine.lora import Lora

# Numbers end up in C as int32_t and float: what does not fit there would be changed in silence.
_INT32_MAX = (1 << 31) - 1
_FLOAT32_MAX = 3.4028234e38


def _lines(value: str) -> Sequence[str]:
    return [line for line in value.splitlines() if line]


class Text(click.ParamType[str]):
    """Any text; a number or a list in config.toml is refused."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is; bytes that are not UTF-8 stay surrogates, as in names of files."""
        if not isinstance(value, str):
            self.fail(f"{_shortened(repr(value))} is not a text", param, ctx)
        return value

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """One value per line."""
        return _lines(rv)


class Utf8(Text):
    """Text that is compared with the model's or given to a parser: bytes that are not UTF-8 are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, or fail naming the offset of the first wrong byte."""
        decoded = decode_word(super().convert(value, param, ctx))
        if decoded.bad_offset is not None:
            self.fail(f"not UTF-8 at byte {decoded.bad_offset:,}", param, ctx)
        return decoded.text


class Whole(click.IntRange):
    """A whole number within [least, most]; 3.7 and true, which click's own type rounds, are refused."""

    name = "whole number"

    def __init__(self, least: int, most: int = _INT32_MAX) -> None:
        super().__init__(least, most)
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse one value or fail with what was expected."""
        try:
            number = math.nan if isinstance(value, (bool, float)) else int(value)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(number, float):
            self.fail(f"{_shortened(repr(value))} is not a whole number", param, ctx)
        if not self._least <= number <= self._most:
            self.fail(f"{_shortened(str(value))} is not {self._range(number)}", param, ctx)
        return number

    def _range(self, number: int) -> str:
        if self._most == _INT32_MAX:  # the limit of C, which nobody chose
            return f"at least {self._least}" if number < self._least else f"at most {self._most}"
        return f"between {self._least} and {self._most}"

    def _describe_range(self) -> str:
        """What help says; nothing where only C sets the upper end."""
        return "" if self._most == _INT32_MAX else f"{self._least} to {self._most}"


class Real(click.ParamType[float]):
    """A finite number within [least, most]; `nan` and `inf`, which click's own type lets through, are refused."""

    name = "number"

    def __init__(self, least: float | None = None, most: float | None = None) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse one value or fail with what was expected."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            self.fail(f"{_shortened(repr(value))} is not a number", param, ctx)
        if not abs(number) <= _FLOAT32_MAX:  # also true of nan
            self.fail(f"{_shortened(repr(value))} is not a finite number", param, ctx)
        if (self.least is not None and number < self.least) or (self.most is not None and number > self.most):
            self.fail(f"{value} is not {self._range()}", param, ctx)
        return number

    def _range(self) -> str:
        if self.least is None:
            return f"at most {self.most:g}"
        return f"at least {self.least:g}" if self.most is None else f"between {self.least:g} and {self.most:g}"


class Size(click.ParamType[int]):
    """A number of bytes: 512M, 4G, 1.5GiB, or a plain number."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse one value or fail with how it is written."""
        return _parsed(parse_bytes, self, value, param, ctx)


class Duration(click.ParamType[float]):
    """A time span in seconds: 90, 30m, 12h, 7d, 2w; `never`, where `or_never`, is infinity."""

    name = "duration"

    def __init__(self, *, or_never: bool = False) -> None:
        self._or_never = or_never

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse one value or fail with how it is written."""
        if self._or_never and (value == math.inf or (isinstance(value, str) and value.strip().lower() == "never")):
            return math.inf
        return _parsed(parse_duration, self, value, param, ctx)


class LoraType(click.ParamType[Lora]):
    """FILE or FILE:SCALE."""

    name = "file[:scale]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lora:
        """Parse one value; the file must be there."""
        if isinstance(value, Lora):
            return value
        text = Text().convert(value, param, ctx)
        if not text:  # which as a path would be the current folder
            self.fail("the name of the file is empty", param, ctx)
        path, scale = Path(text), 1.0
        if not os.path.exists(path) and (found := re.fullmatch(r"(.+):([^:]+)", text)):
            path, scale = Path(found[1]), Real().convert(found[2], param, ctx)
        if not os.path.isfile(path):
            self.fail(f"no such file: {path}", param, ctx)
        return Lora(path, scale)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """One value per line."""
        return _lines(rv)


class LogitBias(click.ParamType[tuple[int, float]]):
    """TOKEN_ID+BIAS or TOKEN_ID-BIAS, as in llama.cpp; `15043-inf` forbids a token."""

    name = "id(+|-)bias"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        """Parse one value."""
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d{1,9})(\+\d+(?:\.\d+)?|-\d+(?:\.\d+)?|-inf)", Text().convert(value, param, ctx))
        if not found:
            self.fail(f"{_shortened(repr(value))} is not of the form 15043+1.5 or 15043-inf", param, ctx)
        bias = -math.inf if found[2] == "-inf" else Real().convert(found[2], param, ctx)
        return int(found[1]), bias

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """One value per line."""
        return _lines(rv)


_Number = TypeVar("_Number", int, float)


def _parsed(
    parse: Callable[[str], _Number],
    kind: click.ParamType[_Number],
    value: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> _Number:
    """A number as `base.units` reads it; config.toml has it as a text or as a number."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        kind.fail(f"{_shortened(repr(value))} is not a {kind.name}", param, ctx)
    try:
        return parse(str(value))
    except UsageError as error:
        kind.fail(_shortened(error.message) + (f"; {error.hint}" if error.hint else ""), param, ctx)


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
