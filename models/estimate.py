"""How much memory a model needs: weights, KV cache, recurrent state, and the buffers for computing.

Weights. The bytes of all tensors, as the file has them.

KV cache. Source: src/llama-kv-cache.cpp (one K and one V tensor per layer, a row per cell), src/llama-kv-cache-iswa.cpp
(the cells of window layers), src/llama-memory-recurrent.cpp. With cells = n_ctx rounded up to 256:

    plain, GQA      layers x cells x KV heads x (key width + value width) x bytes of the type
    MLA             layers x cells x (latent rank + rotated width): keys alone, values are a part of them
    sliding window  the window layers have min(cells, window + u-batch) cells, rounded up to 256
    recurrent       layers x (convolution + recurrence) x 4 bytes for each sequence, whatever the context
    hybrid          the sum, each layer by its kind

So Llama 3 70B (80 layers, 8 KV heads of 128) at 4,096 tokens and 16 bits: 80 x 4096 x 8 x (128 + 128) x 2 = 1.25 GiB.

Computing. llama.cpp reserves one buffer for the largest graph (llama_context::graph_reserve), in which the allocator
(ggml-alloc.c) lets tensors share memory. Its size has no closed form; what is live at its widest moment was read off
the graph (src/models/llama.cpp, src/llama-graph.cpp) and fitted to what the library reported for models of other
widths: see compute_bytes. The fit is within some percent of the whole, which is what a plan needs.

Vocabulary. The tables that the library makes of it (src/llama-vocab.cpp) have no size in the file either. Measured as
resident memory: 220 bytes a token with Gemma 3's 262,144, twice that with merges (SmolLM2's 49,152).
"""

from __future__ import annotations

from llmcli.base.errors import UsageError
from llmcli.base.records import dataclass
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_types import GGML_TYPES, TYPE_IDS, GgmlType

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_CELLS_PADDING = 256  # llama.cpp rounds the context, and the cells of window layers, up to this
DEFAULT_UBATCH_TOKENS = 256
_F32_BYTES, _F16_BYTES = 4, 2
_BYTES_PER_TOKEN, _BYTES_PER_MERGED_TOKEN = 220, 440


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a run holds in memory, in bytes. The weights are mapped: they come and go with the page cache."""

    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    vocabulary_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes + self.vocabulary_bytes


def memory_need(
    facts: ModelFacts,
    n_ctx: int,
    type_k: str = "f16",
    type_v: str = "f16",
    *,
    n_parallel: int = 1,
    n_ubatch: int = DEFAULT_UBATCH_TOKENS,
    swa_full: bool = False,
    flash_attn: bool = True,
) -> MemoryNeed:
    """What a context of `n_ctx` tokens that `n_parallel` sequences share needs in all."""
    sequences = max(1, n_parallel)
    kv = kv_cache_bytes(facts, n_ctx, type_k, type_v, swa_full=swa_full, n_seq_max=sequences, n_ubatch=n_ubatch)
    compute = compute_bytes(
        facts, n_ctx, n_ubatch=n_ubatch, n_outputs=sequences, swa_full=swa_full, flash_attn=flash_attn
    )
    per_token = _BYTES_PER_MERGED_TOKEN if facts.tokenizer_model == "gpt2" else _BYTES_PER_TOKEN
    return MemoryNeed(weights_bytes(facts), kv, compute, facts.n_vocab * per_token * facts.has_vocabulary)


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
        window_cells = _window_cells(cells, window, n_ubatch)
    total = 0
    for layer, heads in enumerate(facts.n_head_kv):
        in_window = facts.window_layers[layer]
        row = _row_bytes(facts, heads, kind_k, kind_v, in_window=in_window)
        total += row * (window_cells if in_window else cells) * streams
    total += _indexer_row_bytes(facts, kind_k, kind_v) * cells * streams
    return total + facts.recurrent_state_bytes * max(1, n_seq_max)


def compute_bytes(
    facts: ModelFacts,
    n_ctx: int,
    *,
    n_ubatch: int = DEFAULT_UBATCH_TOKENS,
    n_outputs: int = 1,
    swa_full: bool = False,
    flash_attn: bool = True,
) -> int:
    """The buffers for computing `n_ubatch` tokens at a time with logits for `n_outputs` of them.

    For each token of the u-batch, in floats, the widest of

        feed-forward   4 x embedding + 3 x feed-forward width (gate, up, their product; the residual and its norm)
        attention      2 x embedding + 2 x query width + key width + value width
        recurrent      4 x embedding + 5 x inner width

    and the mask, one number for each cell (16 bits with flash attention, else 32 and the scores of every head), twice
    where there are window layers. Or the logits, where they are more. Then the logits that are handed out.
    """
    cells, attends = _padded(n_ctx), any(facts.n_head_kv)
    masks = cells * attends
    if facts.sliding_window is not None:
        masks += cells if swa_full else _window_cells(cells, facts.sliding_window, n_ubatch)
    scores = 0 if flash_attn else cells * attends * facts.n_head
    # Where the feed-forward width is not known, the usual four times the embedding.
    forward = facts.n_ff or (0 if facts.n_inner else 4 * facts.n_embd)
    widest = max(4 * facts.n_embd + 3 * forward, 4 * facts.n_embd + 5 * facts.n_inner, _attention_width(facts) + scores)
    live = n_ubatch * (widest * _F32_BYTES + masks * (_F16_BYTES if flash_attn else _F32_BYTES))
    logits = n_outputs * facts.n_vocab * _F32_BYTES
    return max(live, logits + n_outputs * 2 * facts.n_embd * _F32_BYTES) + logits


def _attention_width(facts: ModelFacts) -> int:
    heads_kv = max(facts.n_head_kv, default=0)
    query, pair = facts.n_head * facts.n_embd_head_k, heads_kv * (facts.n_embd_head_k + facts.n_embd_head_v)
    return 2 * facts.n_embd + 2 * query + pair


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


def _window_cells(cells: int, window: int, n_ubatch: int) -> int:
    """The cells of a window layer: the window of every sequence and one u-batch."""
    return _padded(min(cells, window + n_ubatch))


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
