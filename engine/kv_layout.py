"""The bytes of a sequence state of llama.cpp, written down as values that can write them out again.

Read in llama-kv-cache.cpp, llama-memory-recurrent.cpp and llama-context.cpp of llama.cpp 0c1e57098; little-endian:

    header      u32 magic; i32 sequence
    attention   rows of layers with full attention       of plain, window, hybrid and hybrid-window memory
    window      rows of layers with a sliding window     of window and hybrid-window memory
    recurrent   one state                                of hybrid, hybrid-window and recurrent memory

    attention, window   u32 streams (1); u32 cells, and nothing else if that is 0
                        per cell: i32 position; u32 1; [i32 x, y, token]; i32 sequence
                        u32 transposed; u32 layers
                        K per layer: i32 type; u64 row bytes; rows
                        V per layer the same or, transposed: i32 type; u32 element bytes; u32 elements; for each
                        element the cells. No V at all with latent attention.
    recurrent           u32 cells; if 1: i32 position, u32 0; u32 0; u32 layers; R, then S of each layer that has a
                        state: i32 type; u64 row bytes; row

A **part** is such a payload with one section filled and the others empty, so it can be loaded as it lies in a file:
`attn` by a full load; `window` and `state`, which have no attention section, by a partial one.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import field

from llmcli.base.records import dataclass

ATTENTION, WINDOW, STATE = "attn", "window", "state"
SCRATCH = 1  # the sequence id in every part: blocks leave and enter the context through it
MAGIC = 0xAF143CD8
HEADER_BYTES = 8
# What stands in a cell between 1 and the sequence: nothing; 0, 0 and the token; the position twice and the token.
CELL_EXTRAS = ("none", "token", "position")
# kind -> whether it has an attention, a window and a recurrent section
KINDS = {
    "plain": (True, False, False),
    "window": (True, True, False),
    "hybrid": (True, False, True),
    "hybrid-window": (True, True, True),
    "recurrent": (False, False, True),
}
EMPTY_SECTION = struct.pack("<II", 1, 0)


@dataclass(frozen=True, slots=True)
class Rows:
    """One tensor of one layer: per cell `units` pieces of `unit_bytes`; more than 1 where it is transposed."""

    type_id: int
    unit_bytes: int
    units: int = 1

    @property
    def cell_bytes(self) -> int:
        """Bytes per cell."""
        return self.unit_bytes * self.units


@dataclass(frozen=True, slots=True)
class CellLayout:
    """An attention or window section: K and V of its layers; no V with latent attention.

    _tensors   made of the others: what stands before the rows of each tensor, and bytes per cell
    """

    transposed: bool
    cell_extra: str
    keys: tuple[Rows, ...]
    values: tuple[Rows, ...]
    _tensors: tuple[tuple[bytes, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        headers = [struct.pack("<iQ", rows.type_id, rows.unit_bytes) for rows in self.keys]
        headers[:1] = [struct.pack("<II", self.transposed, len(self.keys)) + header for header in headers[:1]]
        for rows in self.values:
            if self.transposed:
                headers.append(struct.pack("<iII", rows.type_id, rows.unit_bytes, rows.units))
            else:
                headers.append(struct.pack("<iQ", rows.type_id, rows.unit_bytes))
        sizes = (rows.cell_bytes for rows in (*self.keys, *self.values))
        object.__setattr__(self, "_tensors", tuple(zip(headers, sizes, strict=True)))

    @property
    def _cell_fields(self) -> int:
        return 3 if self.cell_extra == "none" else 6

    def nbytes(self, count: int) -> int:
        """The size of the section for so many tokens."""
        if not count:
            return len(EMPTY_SECTION)
        fixed = len(EMPTY_SECTION) + sum(len(header) for header, _ in self._tensors)
        return fixed + count * (4 * self._cell_fields + sum(size for _, size in self._tensors))

    def chunks(self, start: int, tokens: Sequence[int]) -> Iterator[tuple[bytes, int]]:
        """The section for these tokens: fixed bytes, then so many bytes of rows, and so on."""
        count = len(tokens)
        before = struct.pack("<II", 1, count) + self._cells(start, tokens)
        for header, size in self._tensors:
            yield before + header, size * count
            before = b""

    def _cells(self, start: int, tokens: Sequence[int]) -> bytes:
        count, width = len(tokens), self._cell_fields
        cells = array("i", (0, 1, 0, 0, 0, SCRATCH) if width > 3 else (0, 1, SCRATCH)) * count
        cells[0::width] = positions = array("i", range(start, start + count))
        if width > 3:
            cells[4::width] = array("i", tokens)
        if self.cell_extra == "position":
            cells[2::width] = cells[3::width] = positions
        return cells.tobytes()


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The recurrent section: `n_layer` of the whole model; R of each layer that has a state, then S."""

    n_layer: int
    rows: tuple[Rows, ...]

    def chunks(self, position: int | None) -> Iterator[tuple[bytes, int]]:
        """The section with the state at `position`, or without one."""
        before = struct.pack("<I", 0) if position is None else struct.pack("<IiI", 1, position, 0)
        before += struct.pack("<II", 0, self.n_layer)
        for rows in self.rows:
            header = struct.pack("<iQ", rows.type_id, rows.unit_bytes)
            yield before + header, rows.cell_bytes * (position is not None)
            before = b""


@dataclass(frozen=True, slots=True)
class Structure:
    """What every payload of one model in one kind of context looks like.

    window_tokens   how far back the layers of the window section look
    """

    kind: str
    window_tokens: int = 0
    attention: CellLayout | None = None
    window: CellLayout | None = None
    recurrent: StateLayout | None = None

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts a block can have; the state only where the context stood exactly at the block's end."""
        have = ((ATTENTION, self.attention), (WINDOW, self.window), (STATE, self.recurrent))
        return tuple(name for name, layout in have if layout)

    def needed_parts(self, block_end: int, end: int) -> tuple[str, ...]:
        """The parts of a block that ends at `block_end` without which the context cannot go on at `end`."""
        wanted = {
            ATTENTION: True,
            WINDOW: block_end > end - self.window_tokens,
            STATE: block_end == end,
        }
        return tuple(name for name in self.part_names if wanted[name])

    @property
    def ends_anywhere(self) -> bool:
        """Whether a restore may end inside a block: a recurrent state is good for one position."""
        return self.recurrent is None

    def part_bytes(self, name: str, n_tokens: int) -> int:
        """The size of a part for so many tokens."""
        size = HEADER_BYTES
        if self.attention and name == ATTENTION:
            size += self.attention.nbytes(n_tokens)
        if self.window:
            size += self.window.nbytes(n_tokens if name == WINDOW else 0)
        if self.recurrent:
            size += sum(len(fixed) + rows for fixed, rows in self.recurrent.chunks(0 if name == STATE else None))
        return size

    def attention_bytes(self, n_tokens: int) -> int:
        """The size of the attention section alone."""
        return self.attention.nbytes(n_tokens) if self.attention else 0

    def token_bytes(self) -> int:
        """What one more token adds to the per-token parts."""
        layouts = [layout for layout in (self.attention, self.window) if layout]
        return sum(rows.cell_bytes for layout in layouts for rows in (*layout.keys, *layout.values))

    def state_bytes(self) -> int:
        """The size of a state part, 0 where there is none."""
        return self.part_bytes(STATE, 1) if self.recurrent else 0

    def chunks(self, name: str, start: int, tokens: Sequence[int]) -> Iterator[tuple[bytes, int]]:
        """A part as fixed bytes, then so many bytes of rows, and so on."""
        yield struct.pack("<Ii", MAGIC, SCRATCH), 0
        if self.attention and name == ATTENTION:
            yield from self.attention.chunks(start, tokens)
        if self.window:
            yield from self.window.chunks(start, tokens) if name == WINDOW else ((EMPTY_SECTION, 0),)
        if self.recurrent:
            yield from self.recurrent.chunks(start + len(tokens) - 1 if name == STATE else None)

    def blank(self, name: str, start: int, tokens: Sequence[int]) -> bytearray:
        """A part whose rows are all zero."""
        return bytearray().join(fixed + bytes(nbytes) for fixed, nbytes in self.chunks(name, start, tokens))

    def without_rows(self) -> bytes:
        """A partial payload without window rows and without a state."""
        return b"".join(fixed for fixed, _ in self.chunks("", 0, ()))
