"""A described model as one object. The names in it are stable; texts are as they are in the file."""

from __future__ import annotations

from typing import Any

from llmcli.cli.show_view import Estimate
from llmcli.engine.template_lint import TemplateLint
from llmcli.models.described import Described
from llmcli.models.description import Description
from llmcli.models.estimate import kv_bytes_per_token
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_types import GGML_TYPES


def as_json(shown: Described, lint: TemplateLint | None, estimate: Estimate | None, *, tensors: bool) -> dict[str, Any]:
    """Everything that is known, with stable names."""
    about = shown.description
    return {
        "model": {"name": shown.name, "path": None if shown.path is None else str(shown.path)},
        "reference": shown.reference,
        "repo_id": shown.repo_id,
        "commit": shown.commit,
        "files": list(shown.files),
        "title": about.name,
        "type": about.kind,
        "problem": about.problem,
        "architecture": about.architecture,
        "quant": about.quant,
        "bpw": about.bpw,
        "n_params": about.n_params,
        "tensor_bytes": about.tensor_bytes,
        "file_bytes": about.file_bytes,
        "gguf_version": about.gguf_version,
        "licence": dict(about.licence),
        "provenance": dict(about.provenance),
        "base_models": list(about.base_models),
        "layers": _layers_json(about.facts),
        "rope": dict(about.rope),
        "tokenizer": _tokenizer_json(about),
        "chat_template": _template_json(about, lint),
        "sampling": dict(about.sampling),
        "memory": estimate.as_json() if estimate else None,
        "tensor_types": [
            {"type": s.name, "tensors": s.tensors, "n_params": s.n_params, "bytes": s.nbytes, "share": s.share}
            for s in about.types
        ],
        **({"tensors": _tensors_json(about)} if tensors else {}),
    }


def _layers_json(facts: ModelFacts | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {
        "n_ctx_train": facts.n_ctx_train,
        "n_layer": facts.n_layer,
        "n_embd": facts.n_embd,
        "n_ff": facts.n_ff,
        "n_head": facts.n_head,
        "n_head_kv": list(facts.n_head_kv),
        "n_embd_head_k": facts.n_embd_head_k,
        "n_embd_head_v": facts.n_embd_head_v,
        "sliding_window": facts.sliding_window,
        "window_layers": sum(facts.window_layers),
        "mla": facts.mla,
        "n_expert": facts.n_expert,
        "n_expert_used": facts.n_expert_used,
        "recurrent_state_bytes": facts.recurrent_state_bytes,
        "kv_bytes_per_token": kv_bytes_per_token(facts),
    }


def _tokenizer_json(about: Description) -> dict[str, Any]:
    found = about.vocabulary
    return {
        "model": found.model,
        "pre": found.pre,
        "n_tokens": found.n_tokens,
        "n_merges": found.n_merges,
        "adds_bos": found.adds_bos,
        "adds_eos": found.adds_eos,
        "special": [{"role": token.role, "id": token.id, "text": token.text} for token in found.special],
    }


def _template_json(about: Description, lint: TemplateLint | None) -> dict[str, Any] | None:
    if about.chat_template is None or lint is None:
        return None
    names = ("error", "system_role", "needs_alternation", "generation_prompt", "thinking", "thinking_switch")
    more = ("thinking_opened", "tools", "adds_bos", "uses_date")
    return {
        "chars": len(about.chat_template),
        "others": list(about.other_templates),
        **{name: getattr(lint, name) for name in (*names, *more)},
        "warnings": list(lint.warnings),
    }


def _tensors_json(about: Description) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "type": GGML_TYPES[t.type_id].name, "shape": list(t.shape), "bytes": t.nbytes}
        for t in about.tensors
    ]
