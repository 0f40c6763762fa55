"""A model described from its headers, for people: what it is made of, where it comes from, what its maker recommends.

Tolerant where check.py is strict: a file that cannot be run can still be described. Every text in the result comes from
the file, and is a stranger's: whoever prints it makes it harmless.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmcli.base.errors import ModelError
from llmcli.base.records import dataclass
from llmcli.models.facts import ModelFacts, count_kinds, quant_of_tensors
from llmcli.models.gguf_header import GgufHeader
from llmcli.models.gguf_keys import Keys
from llmcli.models.gguf_types import GGML_TYPES
from llmcli.models.gguf_values import GgufArray
from llmcli.models.tensor_list import GgufTensor

MAX_LIST_ITEMS = 64
_SAMPLING = "general.sampling."
_TOKENIZER = "tokenizer.ggml."
_ROPE = "rope."
# Facts about where a model comes from, in the order in which they are shown: key -> name.
_PROVENANCE = {
    "general.organization": "organization",
    "general.author": "author",
    "general.version": "version",
    "general.basename": "basename",
    "general.finetune": "finetune",
    "general.size_label": "size_label",
    "general.url": "url",
    "general.repo_url": "repo_url",
    "general.source.url": "source_url",
    "general.source.repo_url": "source_repo_url",
    "general.source.huggingface.repository": "source_repo",
    "general.quantized_by": "quantized_by",
    "general.description": "description",
    "general.tags": "tags",
    "general.languages": "languages",
    "general.datasets": "datasets",
    "quantize.imatrix.file": "imatrix_file",
    "quantize.imatrix.dataset": "imatrix_dataset",
    "quantize.imatrix.entries_count": "imatrix_entries",
    "quantize.imatrix.chunks_count": "imatrix_chunks",
}
_LICENCE = {"general.license": "id", "general.license.name": "name", "general.license.link": "link"}
_TOKEN_IDS = ("bos", "eos", "eot", "eom", "unknown", "separator", "seperator", "padding", "mask", "cls")


@dataclass(frozen=True, slots=True)
class TypeShare:
    """How much of a model one tensor type makes up; `share` is of the bytes, from 0 to 1."""

    name: str
    tensors: int
    n_params: int
    nbytes: int
    share: float


@dataclass(frozen=True, slots=True)
class Token:
    """A token with a role of its own, such as `bos`. `text` is None where the vocabulary has no such id."""

    role: str
    id: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokenizer. adds_bos, adds_eos: what the file asks for, None where it does not say."""

    model: str | None
    pre: str | None
    n_tokens: int
    n_merges: int
    special: tuple[Token, ...]
    adds_bos: bool | None
    adds_eos: bool | None


@dataclass(frozen=True, slots=True)
class Description:
    """A model as its headers describe it.

    problem   why it cannot be run here, None where it can; `facts` are None then
    rope      the settings of the rotary positions, by the name behind `rope.`
    sampling  what its maker recommends, by the name behind `general.sampling.`
    """

    architecture: str | None
    name: str | None
    kind: str | None
    quant: str | None
    n_params: int
    tensor_bytes: int
    file_bytes: int
    n_files: int
    gguf_version: int
    licence: Mapping[str, str]
    provenance: Mapping[str, Any]
    base_models: tuple[str, ...]
    rope: Mapping[str, Any]
    sampling: Mapping[str, Any]
    vocabulary: Vocabulary
    chat_template: str | None
    other_templates: tuple[str, ...]
    types: tuple[TypeShare, ...]
    tensors: tuple[GgufTensor, ...]
    facts: ModelFacts | None
    problem: str | None

    @property
    def bpw(self) -> float | None:
        """Bits per weight, over all tensors."""
        return self.tensor_bytes * 8 / self.n_params if self.n_params else None


def describe(headers: Sequence[GgufHeader], facts: ModelFacts | None, problem: str | None) -> Description:
    """The description of a model from the headers of its files, in order."""
    first = headers[0]
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    texts = _Texts(first)
    architecture = texts.text("general.architecture")
    return Description(
        architecture=architecture,
        name=texts.text("general.name"),
        kind=texts.text("general.type"),
        quant=_quant(headers),
        n_params=sum(tensor.elements for tensor in tensors),
        tensor_bytes=sum(tensor.nbytes for tensor in tensors),
        file_bytes=sum(header.file_bytes for header in headers),
        n_files=len(headers),
        gguf_version=first.version,
        licence=texts.named(_LICENCE),
        provenance=texts.named(_PROVENANCE),
        base_models=_base_models(texts),
        rope=texts.below(f"{architecture}.{_ROPE}"),
        sampling=texts.below(_SAMPLING),
        vocabulary=_vocabulary(texts),
        chat_template=texts.text("tokenizer.chat_template"),
        other_templates=tuple(
            key.removeprefix("tokenizer.chat_template.")
            for key in first.metadata
            if key.startswith("tokenizer.chat_template.")
        ),
        types=_shares(tensors),
        tensors=tensors,
        facts=facts,
        problem=problem,
    )


class _Texts:
    """Look-ups that never fail: what has the wrong type is not there. Texts become valid Unicode."""

    def __init__(self, header: GgufHeader) -> None:
        self.metadata = header.metadata

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return _unicode(value) if isinstance(value, str) and value else None

    def flag(self, key: str) -> bool | None:
        value = self.metadata.get(key)
        return value if isinstance(value, bool) else None

    def whole(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def array(self, key: str) -> GgufArray | None:
        value = self.metadata.get(key)
        return value if isinstance(value, GgufArray) else None

    def named(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {name: plain(self.metadata[key]) for key, name in names.items() if key in self.metadata}

    def below(self, prefix: str) -> dict[str, Any]:
        return {
            _unicode(key.removeprefix(prefix)): plain(value)
            for key, value in self.metadata.items()
            if key.startswith(prefix)
        }


def plain(value: Any) -> Any:
    """A value of the metadata as JSON has it: text, number, flag, or a list of them, cut where it is long.

    JSON has no infinity, and no number that is none: these become text.
    """
    if isinstance(value, GgufArray):
        some = value.first(MAX_LIST_ITEMS)
        if some.item_type == "str":
            items: list[Any] = [_unicode(item.decode("utf-8", "replace")) for item in some.strings()]
        else:
            items = [plain(item) for item in some.values()]
        return items + ["…"] * (value.count > MAX_LIST_ITEMS)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return _unicode(value) if isinstance(value, str) else value


def _unicode(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _quant(headers: Sequence[GgufHeader]) -> str | None:
    kinds = count_kinds(headers)
    try:
        return quant_of_tensors(Keys(headers[0]), kinds) if kinds else None
    except ModelError:
        return None


def _shares(tensors: Iterable[GgufTensor]) -> tuple[TypeShare, ...]:
    """By type, the one with the most bytes first."""
    sums: dict[int, tuple[int, int, int]] = {}
    for tensor in tensors:
        count, params, nbytes = sums.get(tensor.type_id, (0, 0, 0))
        sums[tensor.type_id] = count + 1, params + tensor.elements, nbytes + tensor.nbytes
    total = sum(nbytes for _, _, nbytes in sums.values())
    shares = (TypeShare(GGML_TYPES[kind].name, *found, found[2] / total) for kind, found in sums.items())
    return tuple(sorted(shares, key=lambda share: (-share.nbytes, share.name)))


def _base_models(texts: _Texts) -> tuple[str, ...]:
    count = min(texts.whole("general.base_model.count") or 0, MAX_LIST_ITEMS)
    found = []
    for number in range(count):
        below = f"general.base_model.{number}."
        name = texts.text(below + "repo_url") or texts.text(below + "name")
        found += [name] if name else []
    return tuple(found)


def _vocabulary(texts: _Texts) -> Vocabulary:
    tokens, merges = texts.array(_TOKENIZER + "tokens"), texts.array(_TOKENIZER + "merges")
    return Vocabulary(
        model=texts.text(_TOKENIZER + "model"),
        pre=texts.text(_TOKENIZER + "pre"),
        n_tokens=tokens.count if tokens else 0,
        n_merges=merges.count if merges else 0,
        special=tuple(_special(texts, tokens)),
        adds_bos=texts.flag(_TOKENIZER + "add_bos_token"),
        adds_eos=texts.flag(_TOKENIZER + "add_eos_token"),
    )


def _special(texts: _Texts, tokens: GgufArray | None) -> Iterable[Token]:
    ids = {role: texts.whole(f"{_TOKENIZER}{role}_token_id") for role in _TOKEN_IDS}
    words = (
        tokens.strings() if tokens and tokens.item_type == "str" and any(i is not None for i in ids.values()) else []
    )
    for role, token in ids.items():
        if token is not None:
            inside = 0 <= token < len(words)
            yield Token(role, token, _unicode(words[token].decode("utf-8", "replace")) if inside else None)
