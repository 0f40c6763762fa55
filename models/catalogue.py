"""Short names of well-known models, so that `llmcli pull qwen3-4b` needs no repository's name.

Each stands for a reference as a user would type it; [alias] in config.toml adds to them and goes before them. No name
has a quantization: which one is best depends on the machine, and `pull` chooses it there.
"""

from __future__ import annotations

from collections.abc import Mapping

CATALOGUE: Mapping[str, str] = {
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
    "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
    "smollm3-3b": "ggml-org/SmolLM3-3B-GGUF",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
    "qwen2.5-coder-1.5b": "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    "qwen2.5-coder-7b": "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF",
    "qwen3-0.6b": "unsloth/Qwen3-0.6B-GGUF",
    "qwen3-1.7b": "unsloth/Qwen3-1.7B-GGUF",
    "qwen3-4b": "unsloth/Qwen3-4B-Instruct-2507-GGUF",
    "qwen3-8b": "unsloth/Qwen3-8B-GGUF",
    "qwen3-30b": "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF",
    "gemma3-270m": "unsloth/gemma-3-270m-it-GGUF",
    "gemma3-1b": "unsloth/gemma-3-1b-it-GGUF",
    "gemma3-4b": "unsloth/gemma-3-4b-it-GGUF",
    "gemma3-12b": "unsloth/gemma-3-12b-it-GGUF",
    "llama3.2-1b": "bartowski/Llama-3.2-1B-Instruct-GGUF",
    "llama3.2-3b": "bartowski/Llama-3.2-3B-Instruct-GGUF",
    "llama3.1-8b": "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
    "llama3.3-70b": "bartowski/Llama-3.3-70B-Instruct-GGUF",
    "mistral-7b": "bartowski/Mistral-7B-Instruct-v0.3-GGUF",
    "phi4-mini": "unsloth/Phi-4-mini-instruct-GGUF",
    "phi4": "unsloth/phi-4-GGUF",
    "gpt-oss-20b": "ggml-org/gpt-oss-20b-GGUF",
}


def well_known(name: str) -> str | None:
    """The reference behind a short name, whatever its case; None for any other word."""
    return CATALOGUE.get(name.casefold())
