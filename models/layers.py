"""Which layer keeps what in memory: attention, window, recurrent state. Read from the metadata of a checked file.

Follows load_hparams, load_arch_hparams and create_memory of llama.cpp (src/llama-model.cpp, src/models/*.cpp) and
the sizes of src/llama-hparams.cpp (n_embd_r, n_embd_s, n_embd_k_gqa).
"""

from __future__ import annotations

from llmcli.base.records import dataclass
from llmcli.models import architectures as arch
from llmcli.models.gguf_keys import Keys

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
MAX_WINDOW = 1 << 28  # window, batch and sequences together have to fit 32 bits
_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a model as its memory sees them.

    count_all      with extra prediction layers; count: without them. The tuples have `count` entries
    cached_heads   KV heads whose keys and values are kept; 0: none (a recurrent layer, or one that reuses another's)
    """

    count_all: int
    count: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    cached_heads: tuple[int, ...]
    key_width: int
    value_width: int
    key_width_window: int
    value_width_window: int
    window: int | None
    window_layers: tuple[bool, ...]
    recurrent: tuple[bool, ...]
    recurrent_state_bytes: int
    mla: bool
    indexer_width: int
    indexer_layers: int


def read_layers(keys: Keys) -> Layers:
    """The layers that the metadata describes. Raises ModelError for what llama.cpp would abort on."""
    name = keys.architecture
    count_all = keys.required(keys.own("block_count"), least=1, most=MAX_LAYERS)
    extra = keys.integer(keys.own("nextn_predict_layers"), most=count_all - 1) or 0
    count = count_all - extra
    heads = keys.per_layer("attention.head_count", count_all, (0,) * count_all)
    kv_heads = keys.per_layer("attention.head_count_kv", count_all, heads)
    width = keys.required(keys.own("embedding_length"), least=1) // heads[0] if heads[0] else 0
    key_width = keys.integer(keys.own("attention.key_length")) if heads[0] else 0
    value_width = keys.integer(keys.own("attention.value_length")) if heads[0] else 0
    key_width = width if key_width is None else key_width
    value_width = width if value_width is None else value_width
    recurrent = _recurrent(keys, kv_heads, count)
    window, window_layers = _window(keys, recurrent)
    mla = all(keys.integer(keys.own(f"attention.{part}_length_mla")) for part in ("key", "value"))
    indexer = keys.integer(keys.own("attention.indexer.key_length")) or 0 if name in arch.INDEXER else 0
    return Layers(
        count_all=count_all,
        count=count,
        heads=heads[:count],
        kv_heads=kv_heads[:count],
        cached_heads=_cached(keys, kv_heads[:count], recurrent),
        key_width=key_width,
        value_width=value_width,
        key_width_window=_or(keys.integer(keys.own("attention.key_length_swa")), key_width),
        value_width_window=_or(keys.integer(keys.own("attention.value_length_swa")), value_width),
        window=window,
        window_layers=window_layers,
        recurrent=recurrent,
        recurrent_state_bytes=sum(recurrent) * _state_values(keys, heads[0]) * _F32_BYTES,
        mla=mla,
        indexer_width=indexer * (3 if name == "glm5-next" else 1),
        indexer_layers=sum(not state for state in recurrent) if indexer else 0,
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _window(keys: Keys, recurrent: tuple[bool, ...]) -> tuple[int | None, tuple[bool, ...]]:
    """The window in positions, and which layers have it. None: no layer has one."""
    name, count = keys.architecture, len(recurrent)
    none = None, (False,) * count
    if name not in arch.WINDOW_PATTERN and name not in arch.WINDOW_LISTED and name != "lfm2":
        return none
    if name == "exaone4" and count != 64:  # of this family only the 32B model has one
        return none
    size = keys.integer(keys.own("attention.sliding_window"), most=MAX_WINDOW)
    if name in arch.WINDOW_OPTIONAL and not size and not (name == "llama4" and size is None):
        return none
    size = arch.WINDOW_FIXED.get(name, arch.WINDOW_DEFAULT.get(name) if size is None else size)
    if not size:
        keys.fail(f"{keys.own('attention.sliding_window')} is {size}, expected a window of at least 1")
    layers = tuple(not state for state in recurrent) if name == "lfm2" else _window_layers(keys, count)
    if not any(layers):
        keys.fail(f"no layer has the window that {keys.own('attention.sliding_window')} gives")
    return size, layers


def _window_layers(keys: Keys, count: int) -> tuple[bool, ...]:
    suffix = "attention.sliding_window_pattern"
    name = keys.architecture
    if name in arch.WINDOW_LISTED or keys.header.value_types.get(keys.own(suffix)) == "arr":
        listed = keys.integers(suffix)
        if not listed or len(listed) > MAX_LAYERS:
            keys.fail(f"{keys.own(suffix)} has {len(listed)} values, expected one for each of {count} layers")
        return tuple(bool(value) for value in (*listed, *(0,) * count)[:count])
    period, dense_first = arch.WINDOW_PATTERN[name]
    period = _or(keys.integer(keys.own(suffix)), period)
    if period == 0:
        return (True,) * count
    return tuple(layer % period != (0 if dense_first else period - 1) for layer in range(count))


def _recurrent(keys: Keys, kv_heads: tuple[int, ...], count: int) -> tuple[bool, ...]:
    """Which layers keep a recurrent state."""
    name = keys.architecture
    if name in arch.RECURRENT or name in arch.RECURRENT_AND_ATTENTION:
        return (True,) * count
    if name in arch.RECURRENT_BY_HEADS:
        flags = [heads == 0 for heads in kv_heads[:count]]
        if name.startswith("nemotron_h"):  # there a layer without attention may be a feed-forward one alone
            widths = keys.per_layer("feed_forward_length", len(kv_heads), (0,) * len(kv_heads))
            flags = [flag and width == 0 for flag, width in zip(flags, widths, strict=False)]
        return tuple(flags)
    if interval := arch.RECURRENT_BY_INTERVAL.get(name):
        if listed := keys.per_layer("attention.recurrent_layers", len(kv_heads), ()):
            return tuple(bool(value) for value in listed[:count])
        interval = _or(keys.integer(keys.own("full_attention_interval"), least=1), interval)
        return tuple((layer + 1) % interval != 0 for layer in range(count))
    return (False,) * count


def _cached(keys: Keys, kv_heads: tuple[int, ...], recurrent: tuple[bool, ...]) -> tuple[int, ...]:
    name = keys.architecture
    count = len(kv_heads)
    if name in arch.RECURRENT:
        return (0,) * count
    own = count
    if name in arch.SHARED_KV_FROM:
        own = arch.SHARED_KV_FROM[name]
    elif name in arch.SHARED_KV_KEY:
        own = count - (keys.integer(keys.own("attention.shared_kv_layers"), most=count) or 0)
    both = name in arch.RECURRENT_AND_ATTENTION
    return tuple(
        0 if (state and not both) or layer >= own else heads
        for layer, (heads, state) in enumerate(zip(kv_heads, recurrent, strict=True))
    )


def _state_values(keys: Keys, heads: int) -> int:
    """Values of the recurrent state of one layer and sequence: the convolution's and the recurrence's."""
    width = keys.required(keys.own("embedding_length"))
    if head := keys.integer(keys.own("wkv.head_size")):
        shift = _or(keys.integer(keys.own("token_shift_count")), 2)
        return shift * width + width * head
    if cache := keys.integer(keys.own("shortconv.l_cache")):
        return width * (cache - 1)
    kernel = keys.integer(keys.own("ssm.conv_kernel")) or 0
    if head := keys.integer(keys.own("kda.head_dim")):
        return 3 * (kernel - 1 if kernel else 3) * heads * head + head * head * heads
    if keys.architecture == "minimax-01":
        head = _or(keys.integer(keys.own("attention.key_length")), width // heads if heads else 0)
        return head * head * heads
    inner = keys.integer(keys.own("ssm.inner_size")) or 0
    state = keys.integer(keys.own("ssm.state_size")) or 0
    group = keys.integer(keys.own("ssm.group_count")) or 0
    return max(kernel - 1, 0) * (inner + 2 * group * state) + state * inner
