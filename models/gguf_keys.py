"""Typed look-ups in the metadata of a GGUF file: a wrong type or range is a ModelError that names file and key."""

from __future__ import annotations

import math
from typing import NoReturn

from llmcli.base.errors import ModelError
from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.models.gguf_header import GgufHeader
from llmcli.models.gguf_source import shown
from llmcli.models.gguf_values import GgufArray

U32_MAX = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Keys:
    """The metadata of one header. `architecture` stands before the keys of its own that are asked for by suffix."""

    header: GgufHeader
    architecture: str = ""

    def fail(self, problem: str, *, hint: str | None = None) -> NoReturn:
        """Refuse the file: the metadata is not what llama.cpp can be given."""
        raise ModelError(f"{shown(self.header.path)} is not a usable model: {problem}", hint=hint)

    def own(self, suffix: str) -> str:
        """The full key of a suffix of this architecture."""
        return f"{self.architecture}.{suffix}"

    def text(self, key: str) -> str | None:
        """A string. llama.cpp reads it up to its first NUL, so one with a NUL would be two different strings."""
        value = self.header.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self._wrong_type(key, "a string")
        if "\0" in value:
            self.fail(f"{key} holds a NUL byte")
        return value

    def flag(self, key: str) -> bool | None:
        """A boolean."""
        value = self.header.metadata.get(key)
        if value is not None and not isinstance(value, bool):
            self._wrong_type(key, "a boolean")
        return value

    def array(self, key: str, *item_types: str) -> GgufArray | None:
        """An array with elements of one of these types."""
        value = self.header.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, GgufArray) or value.item_type not in item_types:
            self._wrong_type(key, f"an array of {' or '.join(item_types)}")
        return value

    def integer(self, key: str, *, least: int = 0, most: int = U32_MAX) -> int | None:
        """A whole number within these bounds."""
        value = self.header.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self._wrong_type(key, "a whole number")
        if not least <= value <= most:
            self.fail(f"{key} is {value}, expected {least} to {most}")
        return value

    def required(self, key: str, *, least: int = 0, most: int = U32_MAX) -> int:
        """A whole number that has to be there."""
        value = self.integer(key, least=least, most=most)
        if value is None:
            self.fail(f"{key} is missing")
        return value

    def number(self, key: str) -> float | None:
        """A finite floating-point number."""
        value = self.header.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, float):
            self._wrong_type(key, "a floating-point number")
        if not math.isfinite(value):
            self.fail(f"{key} is {value}, expected a finite number")
        return value

    def per_layer(self, suffix: str, layers: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """A whole number for each layer: the file has one for all of them, or an array with one each."""
        key = self.own(suffix)
        if not isinstance(self.header.metadata.get(key), GgufArray):
            single = self.integer(key)
            return default if single is None else (single,) * layers
        values = self.integers(suffix)
        if len(values) != layers:
            self.fail(f"{key} has {len(values)} values, expected one for each of {layers} layers")
        return values

    def integers(self, suffix: str) -> tuple[int, ...]:
        """An array of whole numbers or booleans, none negative; () where it is missing."""
        key = self.own(suffix)
        found = self.array(key, "u32", "i32", "bool")
        if found is None:
            return ()
        values = tuple(int(value) for value in found.values())
        if values and min(values) < 0:
            self.fail(f"{key} holds {min(values)}, expected no negative number")
        return values

    def _wrong_type(self, key: str, expected: str) -> NoReturn:
        value = self.header.metadata[key]
        kind = self.header.value_types[key]
        found = f"an array of {value.item_type}" if isinstance(value, GgufArray) else kind
        self.fail(f"{printable(key)} is {found}, expected {expected}")
