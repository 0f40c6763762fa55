"""The tensors that a GGUF file lists: name, shape, type, place. What is in them is not known here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, overload

Kind: TypeAlias = tuple[tuple[int, ...], int, int]
"""Shape, type and bytes: what most tensors of a model have in common with others of its layers."""


class GgufTensor(NamedTuple):
    """One tensor.

    shape   ggml order: the fastest dimension first, at least one
    offset  from the start of the data, in bytes
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        """How many weights it holds."""
        return math.prod(self.shape)


class TensorList(Sequence[GgufTensor]):
    """The tensors of a file, in order.

    Kept as columns, and made into entries once one is asked for: a list of models asks for none of a hundred thousand.

    kinds    shape, type and bytes of each
    offsets  of each, from the start of the data, in bytes
    """

    __slots__ = ("_entries", "_names", "kinds", "offsets")

    def __init__(self, names: Sequence[bytes], kinds: Sequence[Kind], offsets: Sequence[int]) -> None:
        self._names, self.kinds, self.offsets = names, kinds, offsets
        self._entries: tuple[GgufTensor, ...] | None = None

    def _made(self) -> tuple[GgufTensor, ...]:
        if self._entries is None:
            rows = zip(self._names, self.kinds, self.offsets, strict=True)
            self._entries = tuple(
                GgufTensor(name.decode("utf-8", "surrogateescape"), shape, type_id, offset, nbytes)
                for name, (shape, type_id, nbytes), offset in rows
            )
        return self._entries

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[GgufTensor]:
        return iter(self._made())

    @overload
    def __getitem__(self, index: int) -> GgufTensor: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[GgufTensor, ...]: ...
    def __getitem__(self, index: int | slice) -> GgufTensor | tuple[GgufTensor, ...]:
        return self._made()[index]

    def __eq__(self, other: object) -> bool:
        return self._made() == other._made() if isinstance(other, TensorList) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._made())
