"""A described model put into words. All its texts are a stranger's: every one is made printable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.cli.table import table_lines
from llmcli.engine.template_lint import TemplateLint
from llmcli.models.described import Described
from llmcli.models.description import Description
from llmcli.models.estimate import MemoryNeed, kv_bytes_per_token
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_types import GGML_TYPES

_LABEL_WIDTH = 18
_TEXT_WIDTH = 200  # of one value; a description can be a book


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the model would take with a context of `n_ctx`; available_bytes is None where the machine does not tell."""

    n_ctx: int
    n_parallel: int
    type_k: str
    type_v: str
    need: MemoryNeed
    available_bytes: int | None

    @property
    def fits(self) -> bool | None:
        """Whether that much memory is free now."""
        return None if self.available_bytes is None else self.need.total_bytes <= self.available_bytes

    def as_json(self) -> dict[str, Any]:
        """The object."""
        return {
            "n_ctx": self.n_ctx,
            "n_parallel": self.n_parallel,
            "type_k": self.type_k,
            "type_v": self.type_v,
            "weights_bytes": self.need.weights_bytes,
            "kv_bytes": self.need.kv_bytes,
            "compute_bytes": self.need.compute_bytes,
            "vocabulary_bytes": self.need.vocabulary_bytes,
            "total_bytes": self.need.total_bytes,
            "available_bytes": self.available_bytes,
            "fits": self.fits,
        }


def tensor_lines(about: Description) -> list[str]:
    """The tensors in the order of the file."""
    rows = [("TENSOR", "TYPE", "SHAPE", "BYTES")]
    for tensor in about.tensors:
        shape = " x ".join(str(size) for size in tensor.shape)
        rows.append((printable(tensor.name), GGML_TYPES[tensor.type_id].name, shape, f"{tensor.nbytes:,}"))
    return table_lines(rows, right=(3,))


def lines(
    shown: Described,
    lint: TemplateLint | None,
    estimate: Estimate | None,
    slow: str | None = None,
    note: str | None = None,
) -> list[str]:
    """The page for people; `slow` is what there is to say of tensor types that are slow here, `note` of the context."""
    about = shown.description
    sections = (
        ("", _head(shown)),
        ("Layers", _layers(about.facts) if about.facts else ()),
        ("RoPE", _pairs(about.rope)),
        ("Tokenizer", _tokenizer(about)),
        ("Chat template", _template(about, lint)),
        ("Recommended sampling", _pairs(about.sampling)),
        ("Licence", _pairs(about.licence)),
        ("Provenance", _provenance(about)),
        ("Memory", (*_memory(estimate), *([("note", note)] if note else [])) if estimate else ()),
        ("Tensor types", (*_types(about), *([("speed", slow)] if slow else []))),
    )
    found: list[str] = []
    for title, rows in sections:
        if body := [_line(label, value) for label, value in rows]:
            found += [*([""] if found else []), *([title] if title else []), *body]
    return found


def _line(label: str, value: str) -> str:
    shown = printable(value)
    shown = shown if len(shown) <= _TEXT_WIDTH else shown[: _TEXT_WIDTH - 1] + "…"
    return f"  {printable(label):<{_LABEL_WIDTH}}  {shown}"


def _head(shown: Described) -> Iterator[tuple[str, str]]:
    about = shown.description
    yield "model", shown.name
    if about.name and about.name != shown.name:
        yield "title", about.name
    if about.problem:
        yield "not usable", about.problem
    if shown.path:
        yield "file", str(shown.path)
    else:
        yield "on the hub", f"{shown.repo_id}, commit {(shown.commit or '')[:12]}, {shown.files[0]}"
    if about.n_files > 1:
        yield "parts", f"{about.n_files}"
    yield "architecture", about.architecture or "-"
    yield "parameters", f"{about.n_params:,}"
    if about.quant:
        yield "quantization", f"{about.quant}, {about.bpw or 0:.2f} bits per weight"
    yield "size", format_bytes(about.file_bytes)


def _layers(facts: ModelFacts) -> Iterator[tuple[str, str]]:
    yield "context", format_count(facts.n_ctx_train, "token")
    yield "layers", f"{facts.n_layer}"
    yield "embedding", f"{facts.n_embd:,}" + (f", feed-forward {facts.n_ff:,}" if facts.n_ff else "")
    if facts.n_head:
        yield "heads", f"{facts.n_head}, {_kv_heads(facts)} for keys and values, of {facts.n_embd_head_k} each"
    if facts.mla:
        yield "attention", "latent (MLA): keys alone are kept"
    if facts.sliding_window:
        yield "window", f"{facts.sliding_window:,} tokens in {sum(facts.window_layers)} of the layers"
    if facts.recurrent_state_bytes:
        yield "recurrent state", f"{format_bytes(facts.recurrent_state_bytes)} for each sequence"
    if facts.n_expert:
        yield "experts", f"{facts.n_expert}, {facts.n_expert_used} used for each token"
    yield "KV cache", f"{format_bytes(kv_bytes_per_token(facts))} for each token (f16)"


def _kv_heads(facts: ModelFacts) -> str:
    kinds = sorted({heads for heads in facts.n_head_kv if heads})
    return " or ".join(map(str, kinds)) or "none"


def _tokenizer(about: Description) -> Iterator[tuple[str, str]]:
    found = about.vocabulary
    if not found.model:
        return
    yield "kind", found.model + (f", {found.pre}" if found.pre else "")
    yield "tokens", f"{found.n_tokens:,}" + (f", {found.n_merges:,} merges" if found.n_merges else "")
    for token in found.special:
        yield token.role, f"{token.id} {token.text!r}" if token.text is not None else f"{token.id} (no such token)"
    added = [name for name, flag in (("BOS", found.adds_bos), ("EOS", found.adds_eos)) if flag]
    if found.adds_bos is not None or found.adds_eos is not None:
        yield "adds by itself", " and ".join(added) or "nothing"


def _template(about: Description, lint: TemplateLint | None) -> Iterator[tuple[str, str]]:
    if about.chat_template is None and about.problem:  # what cannot be run has no use for one
        return
    if about.chat_template is None or lint is None:
        yield "none", "a base model? llmcli run --raw completes text, --chat-template names another"
        return
    yield "length", format_count(len(about.chat_template), "character")
    if about.other_templates:
        yield "others", ", ".join(about.other_templates)
    if lint.error is None:
        yield "system role", "yes" if lint.system_role else "no"
        yield "alternation", "required" if lint.needs_alternation else "not required"
        yield "thinking", _thinking(lint)
        yield "tools", "yes" if lint.tools else "no"
        yield "BOS", "in the template" if lint.adds_bos else "not in the template"
    for warning in lint.warnings:
        yield "warning", warning


def _thinking(lint: TemplateLint) -> str:
    if not lint.thinking:
        return "no"
    switch = f", switched by {lint.thinking_switch}" if lint.thinking_switch else ""
    return "yes" + switch + (", a prompt opens it" if lint.thinking_opened else "")


def _provenance(about: Description) -> Iterator[tuple[str, str]]:
    yield from _pairs(about.provenance)
    if about.base_models:
        yield "base models", ", ".join(about.base_models)


def _memory(estimate: Estimate) -> Iterator[tuple[str, str]]:
    need, parallel = estimate.need, f", {estimate.n_parallel} sequences" if estimate.n_parallel > 1 else ""
    yield (
        "for",
        f"a context of {format_count(estimate.n_ctx, 'token')}{parallel}, KV {estimate.type_k}/{estimate.type_v}",
    )
    yield "weights", format_bytes(need.weights_bytes)
    yield "KV cache", format_bytes(need.kv_bytes)
    yield "computing", format_bytes(need.compute_bytes + need.vocabulary_bytes)
    if estimate.available_bytes is None:
        yield "in all", format_bytes(need.total_bytes)
    else:
        verdict = "fits" if estimate.fits else "does not fit"
        yield (
            "in all",
            f"{format_bytes(need.total_bytes)}: {verdict}, {format_bytes(estimate.available_bytes)} are free",
        )


def _types(about: Description) -> Iterator[tuple[str, str]]:
    for share in about.types:
        count = format_count(share.tensors, "tensor")
        yield share.name, f"{share.share:6.1%}  {format_bytes(share.nbytes):>9}  {count}, {share.n_params:,} weights"


def _pairs(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, list):
            yield name, ", ".join(map(_text, value))
        else:
            yield name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    return str(value)
