"""A structure as text: one line of JSON, read back with every field checked, and a digest of it.

What is read may come from a damaged or hostile file. It is bounded here; whether it fits a context only llama.cpp can
say (`state_io.confirm`).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.engine.kv_layout import CELL_EXTRAS, KINDS, CellLayout, Rows, StateLayout, Structure

MAX_LAYERS = 1024
MAX_ROW_BYTES = 1 << 28  # of one layer and one cell; the recurrent states of large models have some MB
MAX_TOKEN_BYTES = 1 << 26  # of all layers; a 405B model with f32 caches 1 MB a token
_MAX_WINDOW_TOKENS = 1 << 31
_CELL_TYPES = frozenset((0, 1, 2, 3, 6, 7, 8, 20, 30))  # ggml types a KV cache can have (context.KV_TYPES)


class UnknownLayoutError(LlmcliError):
    """A kind of memory, or a layout, that this version does not know: nothing of it can be stored."""


def to_json(structure: Structure) -> str:
    """One line; the same for equal structures."""
    return json.dumps(_plain(structure), separators=(",", ":"))


def from_json(text: str) -> Structure:
    """What `to_json` wrote. Raises UnknownLayoutError for anything else; allocates no more than the text."""
    try:
        found = _structure_from(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error) as error:
        raise UnknownLayoutError(f"not a description of a sequence state: {type(error).__name__}") from None
    require_sound(found)
    return found


def digest(structure: Structure) -> str:
    """A sha256 in hex that differs where structures differ."""
    return hashlib.sha256(to_json(structure).encode()).hexdigest()


def _plain(value: object) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Rows):
        return [value.type_id, value.unit_bytes, value.units]
    if isinstance(value, Structure | CellLayout | StateLayout):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.init}
    return value


def _structure_from(found: Any) -> Structure:
    attention, window, recurrent = (found.pop(name) for name in ("attention", "window", "recurrent"))
    return Structure(
        attention=_cells_from(attention) if attention else None,
        window=_cells_from(window) if window else None,
        recurrent=StateLayout(rows=_rows_from(recurrent.pop("rows")), **recurrent) if recurrent else None,
        **found,
    )


def _cells_from(found: Any) -> CellLayout:
    return CellLayout(keys=_rows_from(found.pop("keys")), values=_rows_from(found.pop("values")), **found)


def _rows_from(found: Any) -> tuple[Rows, ...]:
    if any(type(number) is not int for item in found for number in item):
        raise TypeError("a size that is no integer")  # a text of that many characters, for one, would be made
    return tuple(Rows(*item) for item in found)


def require_sound(structure: Structure) -> None:
    """Raises UnknownLayoutError unless every field has its type and is within its limits."""
    have = (structure.attention is not None, structure.window is not None, structure.recurrent is not None)
    if (
        type(structure.kind) is not str
        or have != KINDS.get(structure.kind)
        or not _is_count(structure.window_tokens, least=have[1], most=_MAX_WINDOW_TOKENS)
    ):
        raise UnknownLayoutError("a sequence state with the wrong sections")
    for cells in filter(None, (structure.attention, structure.window)):
        per_layer = len(cells.keys)
        if type(cells.transposed) is not bool or cells.cell_extra not in CELL_EXTRAS:
            raise UnknownLayoutError("a sequence state with unknown cells")
        if not 1 <= per_layer <= MAX_LAYERS or len(cells.values) not in (0, per_layer):
            raise UnknownLayoutError(f"a sequence state with {per_layer} K and {len(cells.values)} V layers")
        _require_rows(cells.keys, transposed=False)
        _require_rows(cells.values, transposed=cells.transposed)
    if structure.token_bytes() > MAX_TOKEN_BYTES:
        raise UnknownLayoutError(f"{structure.token_bytes()} bytes a token")
    if states := structure.recurrent:
        if not _is_count(states.n_layer, least=1, most=MAX_LAYERS) or not 2 <= len(states.rows) <= 2 * states.n_layer:
            raise UnknownLayoutError("a recurrent state with too few or too many layers")
        _require_state_rows(states.rows)


def _require_rows(rows: Sequence[Rows], *, transposed: bool) -> None:
    for row in rows:
        known = type(row.type_id) is int and row.type_id in _CELL_TYPES
        if not known or not _is_count(row.unit_bytes, least=1, most=MAX_ROW_BYTES) or not _is_count(row.units, least=1):
            raise UnknownLayoutError(f"rows of {row.units} times {row.unit_bytes} bytes of type {row.type_id}")
        if row.cell_bytes > MAX_ROW_BYTES or (row.units > 1 and not transposed):
            raise UnknownLayoutError(f"rows of {row.units} times {row.unit_bytes} bytes")


def _require_state_rows(rows: Sequence[Rows]) -> None:
    """R and S each have one size in all layers (llama_hparams::n_embd_r, n_embd_s), which may be 0; always float32."""
    half = len(rows) // 2
    sizes = {*rows[:half]}, {*rows[half:]}
    for row in rows:
        fits = row.type_id == 0 and row.units == 1 and _is_count(row.unit_bytes, most=MAX_ROW_BYTES)
        if not fits or type(row.type_id) is not int:
            raise UnknownLayoutError("a recurrent state that is not of float32 rows")
    if len(rows) % 2 or len(sizes[0]) != 1 or len(sizes[1]) != 1:
        raise UnknownLayoutError("a recurrent state whose layers differ")


def _is_count(value: object, *, least: int = 0, most: int = MAX_ROW_BYTES) -> bool:
    return type(value) is int and least <= value <= most
