"""How much memory a model needs: weights, KV cache, recurrent state.

The sizes follow llama.cpp: src/llama-kv-cache.cpp (one K and one V tensor per layer, a row per cell),
src/llama-kv-cache-iswa.cpp (the cells of window layers) and src/llama-memory-recurrent.cpp. They leave out the
buffers for computing, which depend on the batch and are some tens of megabytes.
"""

from __future__ import annotations

from llmcli.base.errors import UsageError
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_types import GGML_TYPES, TYPE_IDS, GgmlType

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_CELLS_PADDING = 256  # llama.cpp rounds the context, and the cells of window layers, up to this
DEFAULT_UBATCH_TOKENS = 256


def weights_bytes(facts: ModelFacts) -> int:
    """The bytes of all tensors. With mmap they come and go with the page cache; without, they stay."""
    return facts.tensor_bytes


def kv_cache_bytes(
    facts: ModelFacts,
    n_ctx: int,
    type_k: str = "f16",
    type_v: str = "f16",
    *,
    swa_full: bool = False,
    n_seq_max: int = 1,
    n_ubatch: int = DEFAULT_UBATCH_TOKENS,
    kv_unified: bool = True,
) -> int:
    """The bytes that a context of `n_ctx` tokens holds for all sequences together: KV cache and recurrent state.

    Window layers keep the window and one batch, unless `swa_full`. kv_unified: the sequences share one set of cells,
    else each has n_ctx / n_seq_max of its own. Raises UsageError for a cache type that does not exist or does not fit.
    """
    kind_k, kind_v = kv_type(type_k), kv_type(type_v)
    streams = 1 if kv_unified else n_seq_max
    cells = _padded(_padded(n_ctx) // streams)
    window_cells = cells
    if facts.sliding_window is not None and not swa_full:
        window = facts.sliding_window * (n_seq_max if kv_unified else 1)
        window_cells = _padded(min(cells, window + n_ubatch))
    total = 0
    for layer, heads in enumerate(facts.n_head_kv):
        in_window = facts.window_layers[layer]
        row = _row_bytes(facts, heads, kind_k, kind_v, in_window=in_window)
        total += row * (window_cells if in_window else cells) * streams
    total += _indexer_row_bytes(facts, kind_k, kind_v) * cells * streams
    return total + facts.recurrent_state_bytes * max(1, n_seq_max)


def kv_bytes_per_token(facts: ModelFacts, type_k: str = "f16", type_v: str = "f16") -> int:
    """What one more token costs while every layer still keeps it (a window layer stops at its window)."""
    kind_k, kind_v = kv_type(type_k), kv_type(type_v)
    rows = (
        _row_bytes(facts, heads, kind_k, kind_v, in_window=facts.window_layers[layer])
        for layer, heads in enumerate(facts.n_head_kv)
    )
    return sum(rows) + _indexer_row_bytes(facts, kind_k, kind_v)


def kv_type(name: str) -> GgmlType:
    """The cache type of this name. Raises UsageError with the names that exist."""
    if name.lower() not in KV_TYPES:
        raise UsageError(f"{name!r} is not a KV cache type", hint=f"one of: {', '.join(KV_TYPES)}")
    return GGML_TYPES[TYPE_IDS[name.upper()]]


def _row_bytes(facts: ModelFacts, heads: int, kind_k: GgmlType, kind_v: GgmlType, *, in_window: bool) -> int:
    """The bytes of one position in one layer."""
    key = facts.n_embd_head_k_swa if in_window else facts.n_embd_head_k
    value = facts.n_embd_head_v_swa if in_window else facts.n_embd_head_v
    return _row(kind_k, heads * key) + (0 if facts.mla else _row(kind_v, heads * value))


def _indexer_row_bytes(facts: ModelFacts, kind_k: GgmlType, kind_v: GgmlType) -> int:
    """The bytes of one position in all indexer layers: one key head, and values of head width where there is no MLA."""
    if not facts.indexer_layers:
        return 0
    values = 0 if facts.mla else _row(kind_v, facts.n_embd_head_v)
    return facts.indexer_layers * (_row(kind_k, facts.indexer_width) + values)


def _row(kind: GgmlType, values: int) -> int:
    try:
        return kind.row_bytes(values)
    except ValueError:
        raise UsageError(
            f"a KV cache of type {kind.name.lower()} does not fit this model: its rows have {values} values, "
            f"expected a multiple of {kind.block_elements}",
            hint="use f16 for it",
        ) from None


def _padded(tokens: int) -> int:
    return -(-tokens // _CELLS_PADDING) * _CELLS_PADDING
