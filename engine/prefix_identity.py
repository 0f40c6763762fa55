"""What a stored KV state belongs to: everything that decides its bytes, apart from the tokens.

Not in it, because the bytes do not depend on them (measured): threads, the context's size (unless RoPE does), the batch
size, offloaded layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmcli.base.files import sha256_file
from llmcli.base.settings import Settings
from llmcli.cache_store.keys import Fingerprint, Scalar
from llmcli.engine.context import Rope
from llmcli.engine.kv_description import digest
from llmcli.engine.kv_layout import Structure
from llmcli.engine.lora import Lora
from llmcli.engine.model import Model
from llmcli.engine.plan import RunPlan
from llmcli.models.estimate import DEFAULT_UBATCH_TOKENS


def base_facts(
    *,
    content_id: str,
    build: str,
    model: Model,
    plan: RunPlan,
    rope: Rope,
    loras: Sequence[Lora],
    settings: Settings,
) -> dict[str, Scalar]:
    """The facts by name, without the structure of the state, which has to be found out."""
    return {
        "model": content_id,
        "build": build,
        "type_k": plan.type_k,
        "type_v": plan.type_v,
        "flash_attn": plan.flash_attn,
        "rope": repr(rope) if rope != Rope() else None,
        "rope_long": _rope_is_long(model, plan.n_ctx),
        "loras": ", ".join(f"{sha256_file(lora.path)} x {lora.scale!r}" for lora in loras) or None,
        "swa_full": plan.swa_full,
        # Cuts decide bits. Those at multiples of the grid do not, where the self-test of a fingerprint passes; whether
        # it does is not known here.
        "n_ubatch": None if plan.n_ubatch == DEFAULT_UBATCH_TOKENS else plan.n_ubatch,
        "environment": settings.native_environment or None,
    }


def probe_fingerprint(facts: dict[str, Scalar]) -> Fingerprint:
    """Under which the structure of the state is noted, since it is not known before a state has been seen."""
    return Fingerprint.of({**facts, "purpose": "structure"})


def fingerprint(facts: dict[str, Scalar], structure: Structure) -> Fingerprint:
    """Under which blocks are stored."""
    return Fingerprint.of({**facts, "structure": digest(structure)})


def _rope_is_long(model: Model, n_ctx: int) -> bool | None:
    """Whether RoPE uses its factors for long contexts: the one case in which the context's size decides the bytes.

    llama.cpp chooses them by n_ctx > original context length (llama_model::get_rope_factors). None where the model
    has no such length.
    """
    architecture = model.metadata("general.architecture") or ""
    trained = model.metadata(f"{architecture}.rope.scaling.original_context_length")
    return n_ctx > int(trained) if trained and trained.isdigit() else None
