"""The numbers of a model: what llama.cpp asserts on or divides by, in loading and in building its graph.

Follows load_hparams in src/llama-model.cpp, the load_arch_hparams and graphs of src/models/*.cpp, and the operations
of ggml that they call. A tensor of the wrong shape is left to the loader, which fails cleanly; so a width that some
tensor must have needs no check here.
"""

from __future__ import annotations

from llmcli.base.text import printable
from llmcli.models import architectures as arch
from llmcli.models.gguf_keys import Keys
from llmcli.models.layers import MAX_LAYERS, Layers, read_layers

MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
MAX_CONTEXT_TOKENS = 1 << 31
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")
_POSITIVE_SUFFIXES = ("rope.freq_base", "rope.freq_base_swa")


def check_sizes(keys: Keys) -> Layers:
    """Refuse sizes that would bring llama.cpp down; the layers of the model."""
    keys.required(keys.own("context_length"), least=1, most=MAX_CONTEXT_TOKENS - 1)
    keys.required(keys.own("embedding_length"), least=1, most=1 << 24)
    layers = read_layers(keys)
    _check_numbers(keys)
    _check_attention(keys, layers)
    _check_latent(keys, layers)
    _check_rope(keys, layers)
    _check_experts(keys, layers)
    _check_divisors(keys, layers)
    _check_shared_cache(keys, layers)
    _check_recurrent(keys, layers)
    if keys.flag(keys.own("attention.causal")) is False:
        keys.fail("it attends to the whole text at once (attention.causal is false), so it cannot write text")
    return layers


def _check_numbers(keys: Keys) -> None:
    """A norm asserts on an epsilon below zero or not a number; other such numbers make every result not a number."""
    for key, kind in keys.header.value_types.items():
        if kind != "f32" or not key.startswith(keys.architecture + "."):
            continue
        value = keys.number(key)
        if key.endswith("epsilon") and value is not None and value < 0:
            keys.fail(f"{printable(key)} is {value}, expected 0 or more")
    for suffix in _POSITIVE_SUFFIXES:
        value = keys.number(keys.own(suffix))
        if value is not None and value <= 0:
            keys.fail(f"{keys.own(suffix)} is {value}, expected more than 0")


def _check_attention(keys: Keys, layers: Layers) -> None:
    # The width of a head is the embedding by the heads of the first layer, and some architectures divide unasked.
    if not layers.heads[0] and keys.architecture not in arch.RECURRENT | {"plamo2"}:
        keys.fail(f"{keys.own('attention.head_count')} is 0, expected at least 1")
    for index, (heads, kv_heads) in enumerate(zip(layers.heads, layers.kv_heads, strict=True)):
        if kv_heads and (heads < kv_heads or heads % kv_heads):
            keys.fail(f"layer {index} has {heads} heads for {kv_heads} KV heads, expected a multiple")
    widths = (
        (layers.key_width, layers.value_width, "attention.key_length", "attention.value_length"),
        (layers.key_width_window, layers.value_width_window, "attention.key_length_swa", "attention.value_length_swa"),
    )
    for key, value, key_suffix, value_suffix in widths:
        if layers.heads[0] and not (key and value):
            keys.fail(f"its heads are {key} (keys) and {value} (values) wide, expected at least 1")
        if key != value and keys.architecture not in arch.HEAD_SIZES_DIFFER:
            keys.fail(f"{keys.own(key_suffix)} is {key} and {keys.own(value_suffix)} is {value}, expected the same")


def _check_latent(keys: Keys, layers: Layers) -> None:
    """Latent attention: what is cached is one latent vector and the rotated part, or else a head for each query."""
    name = keys.architecture
    if name not in arch.LATENT_ATTENTION or name in {"deepseek4", "dots3note"}:
        return
    rotated = keys.integer(keys.own("rope.dimension_count"))
    rotated = layers.key_width if rotated is None else rotated
    width = (keys.integer(keys.own("attention.key_length_mla")) or 0) if layers.mla else layers.key_width
    if rotated >= width:  # the part of a head that is not rotated is asserted to be there
        keys.fail(f"{keys.own('rope.dimension_count')} is {rotated}, which leaves nothing of a head of {width}")
    latent = keys.integer(keys.own("attention.kv_lora_rank")) or 0
    for index, (heads, kv_heads) in enumerate(zip(layers.heads, layers.kv_heads, strict=True)):
        if layers.mla and kv_heads and kv_heads * layers.key_width != latent + rotated:
            keys.fail(
                f"layer {index} caches {kv_heads} keys of {layers.key_width}, expected {latent} + {rotated} values"
            )
        if not layers.mla and kv_heads not in {0, heads}:
            keys.fail(f"layer {index} has {heads} heads and {kv_heads} KV heads, expected as many")


def _check_rope(keys: Keys, layers: Layers) -> None:
    scaling = keys.text(keys.own("rope.scaling.type"))
    if scaling is not None and scaling not in _ROPE_SCALING:
        keys.fail(f"{keys.own('rope.scaling.type')} is {printable(scaling[:64])!r}, expected one of {_ROPE_SCALING}")
    _check_sections(keys, layers)
    if not layers.heads[0]:
        return
    whole_head = keys.architecture in arch.ROPE_WHOLE_HEAD
    rotated = keys.integer(keys.own("rope.dimension_count"))
    rotated = layers.key_width if rotated is None else rotated
    in_window = keys.integer(keys.own("rope.dimension_count_swa"))
    cases = ((rotated, layers.key_width), (rotated if in_window is None else in_window, layers.key_width_window))
    least = 0 if keys.architecture in arch.NO_ROPE else 2
    for number, (dimensions, width) in enumerate(cases):
        exact = whole_head and number == 0
        # Step 3.5 rotates half of what the file says.
        odd = dimensions % (4 if keys.architecture == "step35" and number == 0 else 2)
        if odd or not least <= dimensions <= width or (exact and dimensions != width):
            suffix = "rope.dimension_count_swa" if number else "rope.dimension_count"
            expected = str(width) if exact else f"an even number from {least} to {width}"
            keys.fail(f"{keys.own(suffix)} is {dimensions}, expected {expected} (the width of a head)")


def _check_sections(keys: Keys, layers: Layers) -> None:
    suffix = "rope.dimension_sections"
    required = keys.architecture in arch.ROPE_SECTIONS_REQUIRED
    if keys.own(suffix) not in keys.header.metadata:
        if required:
            keys.fail(f"{keys.own(suffix)} is missing")
        return
    sections = keys.per_layer(suffix, 4, ())
    if sum(sections) > max(layers.key_width, layers.key_width_window):
        keys.fail(f"{keys.own(suffix)} is {list(sections)}, expected sections within a head")
    if required and not any(sections[:3]):
        keys.fail(f"{keys.own(suffix)} is {list(sections)}, expected a section that is not empty")


def _check_experts(keys: Keys, layers: Layers) -> None:
    name = keys.architecture
    experts = keys.integer(keys.own("expert_count"), most=MAX_EXPERTS) or 0
    if name in {"hunyuan_vl", "hunyuan-dense"} and experts <= 1:
        return  # these ignore it
    used = keys.per_layer("expert_used_count", layers.count_all, (0,))
    groups = keys.integer(keys.own("expert_group_count")) or 0
    if not experts:
        if max(used) or groups or name in arch.EXPERTS_REQUIRED:
            keys.fail(f"{keys.own('expert_count')} is {experts}, but experts are used ({max(used)}, {groups} groups)")
        return
    if not 0 < max(used) <= experts or (not min(used) and name not in arch.EXPERTS_IN_SOME_LAYERS):
        keys.fail(f"{keys.own('expert_used_count')} is {min(used)} to {max(used)}, expected 1 to {experts}")
    if name in arch.EXPERTS_IN_SOME_LAYERS:
        widths = keys.per_layer("feed_forward_length", layers.count_all, (0,) * layers.count_all)
        if any(width and not count for width, count in zip(widths, used, strict=True)):
            keys.fail(f"{keys.own('expert_used_count')} is 0 in a layer with experts")
    gating = keys.integer(keys.own("expert_gating_func"))
    if gating is not None and not 0 < gating <= 4:
        keys.fail(f"{keys.own('expert_gating_func')} is {gating}, expected 1 to 4")
    if groups > 1:
        used_groups = keys.integer(keys.own("expert_group_used_count")) or 0
        if experts % groups or not 0 < used_groups < groups:
            keys.fail(
                f"its {experts} experts are in {groups} groups of which {used_groups} are used; that does not fit"
            )
        per_group = experts // groups
        if max(used) > used_groups * per_group or per_group < 2:
            keys.fail(f"{max(used)} experts are used of {used_groups} groups of {per_group}, which have not that many")
    elif groups >= experts:
        keys.fail(f"{keys.own('expert_group_count')} is {groups}, expected fewer than the {experts} experts")


def _check_divisors(keys: Keys, layers: Layers) -> None:
    name = keys.architecture
    for suffix in arch.AT_LEAST_ONE.get(name, ()):
        keys.integer(keys.own(suffix), least=1)
    if name == "nanbeige":
        loops = keys.integer(keys.own("num_loops")) or 1
        if loops * layers.count > MAX_LAYERS:
            keys.fail(f"{layers.count} layers in {loops} loops are more than {MAX_LAYERS}")
    if name == "hrm_text":
        stack, high, low = (
            keys.required(keys.own(f"hrm.{part}")) for part in ("layers_per_stack", "h_cycles", "l_cycles")
        )
        if layers.count != stack * high * (low + 1):
            keys.fail(f"it has {layers.count} layers, expected {stack} * {high} * ({low} + 1)")


def _check_shared_cache(keys: Keys, layers: Layers) -> None:
    """A layer without a cache of its own uses that of the last two that have one, and it must be of its kind."""
    name = keys.architecture
    if name not in arch.SHARED_KV_FROM and name not in arch.SHARED_KV_KEY:
        return
    shared = keys.integer(keys.own("attention.shared_kv_layers")) or 0
    own = arch.SHARED_KV_FROM.get(name, layers.count - shared)
    if own < 2:
        keys.fail(f"{own} of its layers have a KV cache, expected at least 2")
    for layer in range(own, layers.count):
        in_window = layers.window_layers[layer]
        if layers.window_layers[own - (2 if in_window else 1)] != in_window:
            keys.fail(f"layer {layer} shares the KV cache of a layer with another window")


def _check_recurrent(keys: Keys, layers: Layers) -> None:
    name = keys.architecture
    width = keys.required(keys.own("embedding_length"))
    if name in arch.RWKV:
        head = keys.required(keys.own("wkv.head_size"), least=1)
        # The CPU's loop over a head goes in whole vectors, up to 64 values, and writes beyond a shorter one.
        if head % 64:
            keys.fail(f"{keys.own('wkv.head_size')} is {head}, expected a multiple of 64")
        shift = keys.integer(keys.own("token_shift_count"))
        expected = 1 if name in {"rwkv6qwen2", "arwkv7"} else 2
        if width % head or (2 if shift is None else shift) != expected:
            keys.fail(f"its state of {width} in heads of {head} with {shift} shifts does not fit llama.cpp's graph")
        kv_heads = layers.kv_heads[0]
        if kv_heads and (width // head) % kv_heads:
            keys.fail(f"{width // head} heads are no multiple of {kv_heads} KV heads")
        return
    if name not in arch.MAMBA1 | arch.MAMBA2 | arch.DELTA_NET:
        return
    inner, state, rank, kernel = (
        keys.required(keys.own(f"ssm.{part}"), least=1)
        for part in ("inner_size", "state_size", "time_step_rank", "conv_kernel")
    )
    groups = keys.integer(keys.own("ssm.group_count")) or 0
    if name in arch.EXPANSION_OF_TWO and inner != 2 * width:
        keys.fail(f"{keys.own('ssm.inner_size')} is {inner}, expected {2 * width}")
    if name in arch.MAMBA2 and (inner % rank or (name != "plamo2" and (not groups or inner % groups or rank % groups))):
        keys.fail(f"its recurrent state of {inner} in {rank} heads and {groups} groups does not divide evenly")
    if name in arch.DELTA_NET and (not groups or rank % groups or inner != state * rank):
        keys.fail(
            f"its linear attention of {inner} in {rank} heads of {state}, {groups} groups, does not divide evenly"
        )
    if kernel < 2 and name in arch.MAMBA1 | arch.MAMBA2:
        keys.fail(f"{keys.own('ssm.conv_kernel')} is {kernel}, expected at least 2")
