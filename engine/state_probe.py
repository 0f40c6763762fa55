"""What the sequence states of a context look like: found out by computing two tokens, or confirmed from memory."""

from __future__ import annotations

from llmcli.engine.context import SEQUENCE, Context
from llmcli.engine.kv_description import UnknownLayoutError
from llmcli.engine.kv_layout import ATTENTION, SCRATCH, STATE, Structure
from llmcli.engine.kv_state import parse_structure
from llmcli.engine.model import Model


def memory_kinds(model: Model) -> tuple[str, ...]:
    """The kinds of memory that llama.cpp may give this model; which one it is, a state shows (`probe`)."""
    if model.is_recurrent:
        return ("recurrent",)
    if model.is_hybrid:
        return ("hybrid-window", "hybrid") if model.window_tokens else ("hybrid",)
    return ("window", "plain") if model.window_tokens else ("plain",)


def probe(context: Context) -> Structure:
    """The structure of this context's states, from two tokens computed in it. The context is empty before and after.

    Costs about two decoded tokens; `confirm` tells for next to nothing whether a remembered structure still holds.
    Raises UnknownLayoutError where blocks of this memory cannot be stored.
    """
    if not context.can_move_blocks:
        raise UnknownLayoutError("a sliding window that is not kept in full")
    tokens = (0, 1)  # differ, as do their positions: a cell's extra fields show what they are
    step = min(len(tokens), context.plan.n_ubatch)
    context.clear()
    try:
        for position in range(0, len(tokens), step):
            context.decode(tokens[position : position + step], position, want_logits=False)
        context.copy_range(SEQUENCE, SCRATCH, 0, len(tokens))
        full, partial = (_state(context, partial=partial) for partial in (False, True))
    finally:
        context.clear()
    return parse_structure(memory_kinds(context.model), context.model.window_tokens, full, partial, tokens)


def confirm(context: Context, structure: Structure) -> bool:
    """Whether llama.cpp takes states of this structure in this context, which is empty before and after.

    It compares streams, layers, types, row sizes and the layout of V itself; nothing is computed.
    """
    fits = (structure.kind in memory_kinds(context.model)) and context.can_move_blocks
    if not fits or (structure.window and structure.window_tokens != context.model.window_tokens):
        return False
    context.clear()
    try:
        blanks: dict[str, bytes | bytearray] = {
            name: structure.blank(name, 0, (0,)) for name in structure.part_names if name != STATE
        }
        if structure.recurrent:
            blanks[STATE] = structure.without_rows()
        return all(
            context.write_state(data, SCRATCH, partial=name != ATTENTION) == len(data) for name, data in blanks.items()
        )
    finally:
        context.clear()


def _state(context: Context, *, partial: bool) -> bytes:
    buffer = bytearray(context.state_bytes(SCRATCH, partial=partial))
    return bytes(buffer[: context.read_state(buffer, SCRATCH, partial=partial)])
