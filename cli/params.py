"""Types of command line values: parsing and range checks live here, not in the commands."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click

from llmcli.engine.model import Lora


class Real(click.ParamType[float]):
    """A finite number within [least, most]; `nan` and `inf`, which click's own type lets through, are refused."""

    name = "number"

    def __init__(self, least: float | None = None, most: float | None = None) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse one value or fail with what was expected."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a number", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        if (self.least is not None and number < self.least) or (self.most is not None and number > self.most):
            self.fail(f"{value} is not {self._range()}", param, ctx)
        return number

    def _range(self) -> str:
        if self.least is None:
            return f"at most {self.most:g}"
        return f"at least {self.least:g}" if self.most is None else f"between {self.least:g} and {self.most:g}"


class LoraType(click.ParamType[Lora]):
    """FILE or FILE:SCALE."""

    name = "file[:scale]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lora:
        """Parse one value; the file must be there."""
        if isinstance(value, Lora):
            return value
        path, scale = Path(value), 1.0
        if not path.exists() and (found := re.fullmatch(r"(.+):(-?\d+(?:\.\d+)?)", value)):
            path, scale = Path(found[1]), float(found[2])
        if not path.is_file():
            self.fail(f"no such file: {path}", param, ctx)
        return Lora(path, scale)


class LogitBias(click.ParamType[tuple[int, float]]):
    """TOKEN_ID+BIAS or TOKEN_ID-BIAS, as in llama.cpp; `15043-inf` forbids a token."""

    name = "id(+|-)bias"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        """Parse one value."""
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d+)([+-])(\d+(?:\.\d+)?|inf)", value)
        if not found:
            self.fail(f"{value!r} is not of the form 15043+1.5 or 15043-inf", param, ctx)
        return int(found[1]), float(found[2] + found[3])
