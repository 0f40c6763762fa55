"""The values in the metadata of a GGUF file: their types, and arrays that stay packed until they are asked for."""

from __future__ import annotations

import struct
from typing import Any

from llmcli.base.records import dataclass
from llmcli.models.gguf_source import U64

STRING, ARRAY = 8, 9
_SCALARS: dict[int, tuple[str, str]] = {  # number -> name, struct code
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    7: ("bool", "?"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
TYPE_NAMES = {number: name for number, (name, _) in _SCALARS.items()} | {STRING: "str", ARRAY: "arr"}
READERS = {number: struct.Struct("<" + code) for number, (_, code) in _SCALARS.items()}


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array of the metadata, kept as the file's bytes: most are large and nobody asks for them.

    item_type  the name of the elements' type: "str", "u32", "f32" …
    """

    item_type: str
    count: int
    data: bytes

    def values(self) -> tuple[Any, ...]:
        """The elements of an array of numbers or booleans. Raises TypeError for one of strings."""
        for name, code in _SCALARS.values():
            if name == self.item_type:
                return struct.unpack(f"<{self.count}{code}", self.data)
        raise TypeError(f"an array of {self.item_type} holds no numbers")

    def first(self, most: int) -> GgufArray:
        """At most so many elements from the start: an array may have millions."""
        if self.count <= most:
            return self
        size = len(self.data) if self.item_type == "str" else len(self.data) // self.count * most
        return GgufArray(self.item_type, most, self.data[:size])

    def strings(self) -> list[bytes]:
        """The elements of an array of strings. Raises TypeError for one of numbers."""
        if self.item_type != "str":
            raise TypeError(f"an array of {self.item_type} holds no strings")
        found, position, unpack, data = [], 0, U64.unpack_from, self.data
        for _ in range(self.count):
            (size,) = unpack(data, position)
            start = position + 8
            position = start + size
            found.append(data[start:position])
        return found
