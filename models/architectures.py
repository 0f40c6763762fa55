"""What the pinned llama.cpp knows about each architecture, as data.

Source: src/llama-arch.cpp (LLM_ARCH_NAMES, llm_arch_is_recurrent, llm_arch_is_hybrid), src/llama-model.cpp
(llama_model_mapping, create_memory) and src/models/*.cpp (load_arch_hparams, the assertions of the graphs) of the
llama.cpp inside llama-cpp-python 0.3.36. To be read again when the pin in pyproject.toml moves.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


KNOWN = _names("""
    clip llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bert modern-bert nomic-bert
    nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe
    qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe qwen4exp phi2 phi3 phimoe plamo plamo2 plamo3 codeshell orion
    internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n gemma4 gemma4-assistant gemma-embedding starcoder2 mamba
    mamba2 maple jamba falcon-h1 xverse command-r cohere2 cohere2moe dbrx olmo olmo2 olmoe muse-glimmer openelm arctic
    deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 chatglm glm4 glm4moe glm-dsa bitnet t5 t5encoder jais jais2
    nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe rwkv6 rwkv6qwen2 rwkv7 arwkv7 granite granitemoe
    granitehybrid graniteswitch granite_swa chameleon wavtokenizer-dec plm bailingmoe bailingmoe2 bailingmoe3 dots1
    dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss
    lfm2 lfm2moe dream smallthinker llada llada-moe seed_oss grovemoe apertus minimax-01 hrm_text minimax-m2 minimax-m3
    cogvlm rnd1 pangu-embedded mistral3 eagle3 dflash mistral4 paddleocr mimo2 step35 spark2_5 llama-embed maincoder
    kimi-linear kimi-k3 glm5-next talkie mellum nanbeige qwen3tts pockettts
""")

# Known by name, and no use for writing text here: what to say of each.
_ENCODER = "an embedding model: it turns text into vectors and cannot write text"
_DIFFUSION = "a diffusion language model, which llmcli cannot run: it writes token by token"
_DRAFT = "a draft model that only works beside the model it was made for"
_SPEECH = "a speech model, not one that writes text"
NOT_FOR_TEXT: dict[str, str] = {
    "clip": "a vision or audio projector (mmproj), the companion of a model, not a model",
    "t5": "an encoder-decoder model, which llmcli cannot run",
    "gptj": "of the GPT-J architecture, which llama.cpp names but does not implement",
    **dict.fromkeys(
        (
            *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
            *("eurobert", "gemma-embedding", "t5encoder", "llama-embed"),
        ),
        _ENCODER,
    ),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    **dict.fromkeys(("eagle3", "dflash", "gemma4-assistant"), _DRAFT),
    **dict.fromkeys(("wavtokenizer-dec", "qwen3tts", "pockettts"), _SPEECH),
}

# Memory. A recurrent model keeps a state of fixed size and no KV cache; a hybrid one has layers of both kinds.
RECURRENT = _names("mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7")
RWKV = _names("rwkv6 rwkv6qwen2 rwkv7 arwkv7")
# Hybrid: which layers are recurrent is told by a KV head count of 0 …
RECURRENT_BY_HEADS = _names(
    "jamba granitehybrid lfm2 lfm2moe plamo2 kimi-linear kimi-k3 glm5-next bailingmoe3 nemotron_h nemotron_h_moe"
)
# … or by an interval: every n-th layer is an attention layer (the default interval, where the file has none) …
RECURRENT_BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
# … or every layer is both.
RECURRENT_AND_ATTENTION = _names("falcon-h1")
HYBRID = RECURRENT_BY_HEADS | RECURRENT_AND_ATTENTION | frozenset(RECURRENT_BY_INTERVAL)
# Recurrent layers of Mamba-2's kind (heads = ssm.time_step_rank), of Mamba-1's, and gated delta nets.
MAMBA2 = _names("mamba2 falcon-h1 granitehybrid nemotron_h nemotron_h_moe plamo2")
MAMBA1 = _names("mamba jamba")
DELTA_NET = _names("qwen3next qwen35 qwen35moe qwen4exp")

# Sliding window: default pattern (n: every n-th layer sees everything, 0: none does) and whether the dense layer
# comes first. Where the file has a pattern of its own, that counts.
WINDOW_PATTERN: dict[str, tuple[int, bool]] = {
    "afmoe": (4, False),
    "cohere2": (4, False),
    "cohere2moe": (4, True),
    "deepseek4": (0, False),
    "exaone4": (4, False),
    "exaone-moe": (4, False),
    "gemma2": (2, False),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "gpt-oss": (2, False),
    "laguna": (4, True),
    "llama4": (4, False),
    "mellum": (4, False),
    "muse-glimmer": (4, False),
    "olmo2": (4, False),
    "plamo3": (8, False),
    "smallthinker": (4, True),
}
# These have no default: the file lists the layers.
WINDOW_LISTED = _names("gemma4 granite_swa maple mimo2 spark2_5 step35 dots3note")
# A window of 0 (or none) means a model without a window here; for the others the window is required.
WINDOW_OPTIONAL = _names("afmoe gemma3 laguna lfm2 llama4 mellum olmo2 plamo3 smallthinker")
# Sizes that llama.cpp sets itself, whatever the file says.
WINDOW_FIXED = {"llama4": 8192, "smallthinker": 4096}
WINDOW_DEFAULT = {"gemma2": 4096, "exaone4": 4096}
# Later layers reuse the KV cache of earlier ones: from this layer on, or as the file says (shared_kv_layers).
SHARED_KV_FROM = {"gemma3n": 20}
SHARED_KV_KEY = _names("gemma4")

# Keys per position beside the KV cache, for sparse attention. With MLA they have no values.
INDEXER = _names("deepseek32 glm-dsa glm5-next hy_v4 dots3note minimax-m3 qwen4exp")

# The graphs of these assert that a rotated part is the whole head.
ROPE_WHOLE_HEAD = _names("""
    apertus arcee arctic baichuan chameleon codeshell cogvlm cohere2moe dbrx deci deepseek dots1 ernie4_5 ernie4_5-moe
    exaone exaone-moe exaone4 falcon granite granite_swa granitemoe graniteswitch grok grovemoe hunyuan-dense
    hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2 llama llama4 maincoder mellum minicpm mistral3 olmo olmo2 olmoe orion
    paddleocr pangu-embedded plamo qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe seed_oss smallthinker
    smollm3 starcoder2 talkie xverse
""")
# No rotary positions (llama_model_rope_type): the number of rotated dimensions may be 0, which elsewhere is a loop.
NO_ROPE = _names("""
    gpt2 mpt refact bloom jais mamba mamba2 jamba rwkv6 rwkv6qwen2 rwkv7 arwkv7 nemotron_h nemotron_h_moe kimi-linear
    kimi-k3 glm5-next
""")
# Keys and values of different width are meant in these alone.
LATENT_ATTENTION = _names("""
    deepseek2 deepseek32 deepseek4 dots3note glm-dsa glm5-next hy_v4 kimi-k3 kimi-linear bailingmoe3 minicpm3
    mistral4 plm
""")
HEAD_SIZES_DIFFER = LATENT_ATTENTION | {"mimo2"}
EXPERTS_REQUIRED = _names("""
    bailingmoe2 grovemoe smallthinker lfm2moe glm4moe qwen2moe qwen3moe qwen3next qwen3vlmoe qwen35moe qwen4exp mellum
""")
# Experts in some layers only; the list of experts used per layer has zeros for the others.
EXPERTS_IN_SOME_LAYERS = _names("nemotron_h nemotron_h_moe")
# Rotary positions in several dimensions: their sections must not all be zero.
ROPE_SECTIONS_REQUIRED = _names("qwen2vl paddleocr qwen3vl qwen3vlmoe qwen35 qwen35moe qwen4exp")
# Mamba layers with a fixed expansion factor of 2.
EXPANSION_OF_TWO = _names("jamba granitehybrid")

# The loader takes the feed-forward weights of these as optional, the graph does not.
FEED_FORWARD_EVERYWHERE = _names("hy_v3 step35 grok")

# Keys that llama.cpp divides by or asserts on: the least value, where the key is there. Architecture -> suffixes.
AT_LEAST_ONE: dict[str, tuple[str, ...]] = {
    "minimax-01": ("full_attention_interval",),
    "qwen3next": ("full_attention_interval",),
    "qwen35": ("full_attention_interval",),
    "qwen35moe": ("full_attention_interval",),
    "qwen4exp": ("full_attention_interval",),
    "ernie4_5-moe": ("interleave_moe_layer_step",),
    "grovemoe": ("experts_per_group",),
    "hrm_text": ("hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles"),
    "nanbeige": ("num_loops",),
    "minimax-m3": ("attention.indexer.block_size",),
    "deepseek4": ("attention.output_group_count",),
}
