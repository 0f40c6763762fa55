"""Blocks of KV state, out of a context and back into it, through llama.cpp's sequence states.

Out: the block's cells are shared with the scratch sequence (no copy), its state is read, the sharing ends.
In: everything is forgotten, then each block is loaded into the scratch sequence straight from the bytes given, handed
to the answering sequence, and so on. Cells end up in the order of positions, as after a cold prefill: attention sums
over cells, and with several threads it is even split by cell number, so order and number matter to the last bit.

That is also why a sliding window is restored with places: only the last rows of a window are needed, but put into the
first cells they gave logits that differ by up to 4 while decoding with 2 threads (Gemma 3, flash attention). So the
cells in front are filled with zero rows that belong to a sequence of their own. Nothing reads them.

Rejected: one merged payload and one load. The load takes as long as those of 16 blocks, and the merging as long again,
with memory for all of it at once (4,096 tokens of SmolLM2-135M: 21 + 19 ms against 21).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

from llmcli.base.errors import LlmcliError
from llmcli.base.records import dataclass
from llmcli.engine.context import PLACEHOLDER, SEQUENCE, Context
from llmcli.engine.kv_layout import ATTENTION, HEADER_BYTES, SCRATCH, STATE, WINDOW, Structure
from llmcli.engine.kv_state import PartRefusedError, check_part, join_window
from llmcli.engine.read_ahead import ReadAhead

_ALIGN = 64


class ExportFailedError(LlmcliError):
    """The context does not hold what a block needs; nothing in it was changed."""


class RestoreFailedError(LlmcliError):
    """A block could not be restored, and the context is empty now: compute the prompt.

    block   the number of the block that failed, None where it was none in particular
    """

    def __init__(self, message: str, *, block: int | None = None) -> None:
        super().__init__(message)
        self.block = block


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens at `start` and behind, and how to get at their parts. `read` is called for needed parts only, in order,
    and in a thread of its own.
    """

    start: int
    tokens: Sequence[int]
    read: Callable[[str], memoryview]

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self.start + len(self.tokens)


class StateMover:
    """Takes blocks out of one context and puts them back. `structure` is of `probe`, or confirmed."""

    def __init__(self, context: Context, structure: Structure) -> None:
        self.context, self.structure = context, structure
        self._parts, self._pieces, self._places = bytearray(), bytearray(), bytearray()
        self._without_rows = structure.without_rows()

    def export(self, start: int, tokens: Sequence[int], *, state: bool = False) -> dict[str, memoryview]:
        """The parts of the block of `tokens` at `start`, which the context must hold.

        state   with the recurrent state, which must stand exactly at the block's end
        The views share one buffer that the next call writes over: pages that were touched before are ten times as
        fast as new ones. Raises ExportFailedError.
        """
        names = [name for name in self.structure.part_names if name != STATE or state]
        if not tokens or not names or self.context.length() < start + len(tokens):
            raise ExportFailedError(f"no block of {len(tokens)} tokens at {start} to take out")
        sizes = {name: self.structure.part_bytes(name, len(tokens)) for name in names}
        nbytes = sum(size + _ALIGN for size in sizes.values())
        if len(self._parts) < nbytes:
            self._parts = bytearray(nbytes)  # not resized: views of the old one may still be in use
        room = memoryview(self._parts)
        parts, offset = dict[str, memoryview](), 0
        for name in names:
            parts[name] = room[offset : offset + sizes[name]]
            self._export_part(name, parts[name], room[offset:], start, tokens)
            offset += -(-sizes[name] // _ALIGN) * _ALIGN
        try:
            for name, data in parts.items():
                check_part(self.structure, name, data, start, tokens)
        except PartRefusedError as error:  # cells out of order, after a context shift; rows of a window that are gone
            raise ExportFailedError(error.message) from None
        return parts

    def _export_part(self, name: str, part: memoryview, room: memoryview, start: int, tokens: Sequence[int]) -> None:
        if name == WINDOW:
            self._export_window(part, start, tokens)
        elif name == STATE:
            if self.context.length() != start + len(tokens):
                raise ExportFailedError(f"the recurrent state is not at {start + len(tokens)}")
            self._read(part, 0, 0, partial=True)  # no cell is in an empty range, and the state has none
        else:
            self._export_attention(part, room, start, tokens)

    def _export_attention(self, part: memoryview, room: memoryview, start: int, tokens: Sequence[int]) -> None:
        """A full state has the window's rows behind the attention section; an empty section is put in their place."""
        needed = part.nbytes + (self.structure.part_bytes(WINDOW, len(tokens)) if self.structure.window else 0)
        written = self._read(room[:needed], start, start + len(tokens), partial=False)
        if not part.nbytes <= written <= needed:
            raise ExportFailedError(f"a state of {written} bytes, expected {part.nbytes}")
        rest = self._without_rows[HEADER_BYTES:]
        part[part.nbytes - len(rest) :] = rest

    def _export_window(self, part: memoryview, start: int, tokens: Sequence[int]) -> None:
        """llama.cpp leaves out rows that the span's last token does not see, so a small window goes out in pieces.

        They are cut at multiples of the window: where it moves in steps (chunked attention), those are the steps.
        """
        window, end = self.structure.window_tokens, start + len(tokens)
        first_cut = start - start % window + window
        if first_cut >= end:
            self._read_exactly(part, start, end)
            return
        bounds = [start, *range(first_cut, end, window), end]
        sizes = [self.structure.part_bytes(WINDOW, b - a) for a, b in itertools.pairwise(bounds)]
        if len(self._pieces) < sum(sizes):
            self._pieces = bytearray(sum(sizes))
        pieces, rest = list[tuple[int, memoryview]](), memoryview(self._pieces)
        for (begin, until), size in zip(itertools.pairwise(bounds), sizes, strict=True):
            self._read_exactly(rest[:size], begin, until)
            pieces.append((until - begin, rest[:size]))
            rest = rest[size:]
        join_window(self.structure, start, tokens, pieces, part)

    def _read_exactly(self, target: memoryview, start: int, end: int) -> None:
        if (written := self._read(target, start, end, partial=True)) != target.nbytes:
            raise ExportFailedError(f"window rows of [{start}, {end}) have {written} bytes, expected {target.nbytes}")

    def _read(self, target: memoryview, start: int, end: int, *, partial: bool) -> int:
        """The state of the cells at [start, end), through the scratch sequence."""
        context = self.context
        context.copy_range(SEQUENCE, SCRATCH, start, end)
        try:
            if self.structure.recurrent and end > start and not self._write(self._without_rows, partial=True):
                raise ExportFailedError("the recurrent state cannot be left out")
            return context.read_state(target, SCRATCH, partial=partial)
        finally:
            context.drop_sequence(SCRATCH)

    def restore(self, blocks: Sequence[Block], end: int) -> None:
        """Forget everything, then hold exactly the first `end` tokens of `blocks`, which follow each other from 0.

        Raises RestoreFailedError; after any exception, those of `Block.read` included, the context is empty.
        """
        done = False
        try:
            self._require_chain(blocks, end)
            with ReadAhead(list(self._readers(blocks, end))) as ahead:
                self.context.clear()
                for number, block in enumerate(blocks):
                    self._restore_block(number, block, end, ahead.take)
            self._finish(end)
            done = True
        finally:
            if not done:
                self.context.clear()

    def _require_chain(self, blocks: Sequence[Block], end: int) -> None:
        position = 0
        for number, block in enumerate(blocks):
            if block.start != position or not block.tokens:
                raise RestoreFailedError(f"a block at {block.start}, expected {position}", block=number)
            position = block.end
        inside = blocks and blocks[-1].start < end <= position
        if not inside or (end < position and not self.structure.ends_anywhere) or end > self.context.n_ctx:
            raise RestoreFailedError(f"blocks of {position} tokens cannot be restored to {end}")

    def _readers(self, blocks: Sequence[Block], end: int) -> Iterator[Callable[[], memoryview]]:
        """One for each part needed, in the order of `_restore_block`."""
        for number, block in enumerate(blocks):
            for name in self.structure.needed_parts(block.end, end):
                yield functools.partial(self._read_checked, number, block, name)

    def _read_checked(self, number: int, block: Block, name: str) -> memoryview:
        data = block.read(name)
        try:
            check_part(self.structure, name, data, block.start, block.tokens)
        except PartRefusedError as error:
            raise RestoreFailedError(error.message, block=number) from None
        return data

    def _restore_block(self, number: int, block: Block, end: int, take: Callable[[], memoryview]) -> None:
        needed = self.structure.needed_parts(block.end, end)
        for name in needed:
            self._load(number, name, take(), SEQUENCE)
        if self.structure.window and WINDOW not in needed:
            self._load(number, WINDOW, self._place(block), PLACEHOLDER)

    def _load(self, number: int, name: str, data: memoryview, owner: int) -> None:
        """Load a checked part and give what is in it to `owner`."""
        taken = self._write(data, partial=name != ATTENTION)
        self.context.copy_range(SCRATCH, owner, -1, -1)
        if not self.context.drop_sequence(SCRATCH) or not taken:
            raise RestoreFailedError(f"llama.cpp refused the {name} part", block=number)

    def _place(self, block: Block) -> memoryview:
        """Window rows of zeros for the block; the rows of the last call are used again where the size is the same."""
        chunks = self.structure.chunks(WINDOW, block.start, block.tokens)
        if len(self._places) != self.structure.part_bytes(WINDOW, len(block.tokens)):
            self._places = self.structure.blank(WINDOW, block.start, block.tokens)
        offset = 0
        for fixed, nbytes in chunks:
            self._places[offset : offset + len(fixed)] = fixed
            offset += len(fixed) + nbytes
        return memoryview(self._places)

    def _finish(self, end: int) -> None:
        """Cut what lies behind `end`, and believe nothing that llama.cpp does not confirm."""
        context, structure = self.context, self.structure
        if context.length() > end and not context.remove_from(end):
            raise RestoreFailedError(f"the state cannot be cut at {end}")
        first = context.first_position()
        expected = end - 1 if structure.recurrent else max(0, end - structure.window_tokens) if structure.window else 0
        if context.length() != end or not 0 <= first <= expected:
            raise RestoreFailedError(f"positions {first} to {context.length() - 1} are there, expected up to {end - 1}")
        if (found := self._attention_bytes()) != structure.attention_bytes(end):
            raise RestoreFailedError(f"attention rows of {found} bytes, expected {structure.attention_bytes(end)}")

    def _attention_bytes(self) -> int:
        """The size of the attention section now, which positions alone do not show: window and state hide it."""
        full, partial = (self.context.state_bytes(SEQUENCE, partial=partial) for partial in (False, True))
        if not self.structure.attention:
            return 0
        return full - partial if len(self.structure.part_names) > 1 else full - HEADER_BYTES

    def _write(self, data: bytes | bytearray | memoryview, *, partial: bool) -> bool:
        return self.context.write_state(data, SCRATCH, partial=partial) == len(data)
