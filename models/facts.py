"""What the other packages need to know of a model: a small record, read from the headers, that fits in a JSON file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import chain
from typing import TYPE_CHECKING, Any

from llmcli.base.errors import ModelError
from llmcli.base.records import dataclass
from llmcli.base.text import printable

if TYPE_CHECKING:
    from llmcli.models.gguf_header import GgufHeader
    from llmcli.models.gguf_keys import Keys
    from llmcli.models.tensor_list import Kind

NO_VOCABULARY = frozenset({"no_vocab", "none"})


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model, without its vocabulary and weights.

    n_layer              layers that answer; extra prediction layers (MTP) are not counted
    n_head               query heads of the first attention layer
    n_head_kv            per layer; 0: this layer keeps nothing in the KV cache
    window_layers        per layer: it sees the last `sliding_window` positions only
    n_embd_head_k, …_v   width of a head; the _swa ones hold for the window layers
    mla                  latent attention: keys are cached, values are not
    indexer_width        values per position and indexer layer beside the KV cache (sparse attention); 0: none
    recurrent_state_bytes  of all layers together, per sequence; 0: no recurrent layers
    longest_token_bytes  of the vocabulary: a text of n bytes has at least n / longest_token_bytes tokens
    n_positions          how many positions the model has embeddings for, where they are learned; a context beyond
                         that kills the process
    n_ff                 feed-forward values of one token in the widest layer, of all experts that it uses; 0: not known
    n_inner              values of one token inside a recurrent layer; 0: no such layer
    quant                the file type ("Q4_K_M"), else the most frequent tensor type
    tensor_bytes         of the weights alone; file_bytes: of all files
    shards               absolute paths, in order; one for a model in one file
    """

    architecture: str
    name: str | None
    license: str | None
    n_ctx_train: int
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: tuple[int, ...]
    n_embd_head_k: int
    n_embd_head_v: int
    n_embd_head_k_swa: int
    n_embd_head_v_swa: int
    sliding_window: int | None
    window_layers: tuple[bool, ...]
    mla: bool
    indexer_width: int
    indexer_layers: int
    recurrent_state_bytes: int
    n_expert: int
    n_expert_used: int
    n_vocab: int
    tokenizer_model: str
    longest_token_bytes: int
    has_chat_template: bool
    n_positions: int | None
    quant: str
    n_params: int
    tensor_bytes: int
    file_bytes: int
    shards: tuple[str, ...]
    n_ff: int = 0
    n_inner: int = 0

    @property
    def bpw(self) -> float:
        """Bits per weight, over all tensors."""
        return self.tensor_bytes * 8 / self.n_params

    @property
    def has_vocabulary(self) -> bool:
        """False for a test file without a tokenizer: asking llama.cpp to tokenize with it kills the process."""
        return self.tokenizer_model not in NO_VOCABULARY

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


_TUPLES = ("n_head_kv", "window_layers", "shards")


def facts_from_json(data: Any) -> ModelFacts:
    """The inverse of `as_json`. Raises ValueError for anything else."""
    if not isinstance(data, dict) or set(data) != {field.name for field in fields(ModelFacts)}:
        raise ValueError("not the fields of a model")
    if not all(isinstance(data[name], (list, tuple)) for name in _TUPLES):
        raise ValueError("not the lists of a model")
    return ModelFacts(**{**data, **{name: tuple(data[name]) for name in _TUPLES}})


def require_vocabulary(facts: ModelFacts) -> None:
    """Raise ModelError for a model that cannot be given text: asking llama.cpp to tokenize with it would abort."""
    if not facts.has_vocabulary:
        raise ModelError(
            f"{printable(facts.shards[0])} has no tokenizer (tokenizer.ggml.model is {facts.tokenizer_model!r}), "
            "so it cannot be given text"
        )


def facts_from(headers: Sequence[GgufHeader], *, longest_token_bytes: int) -> ModelFacts:
    """The facts of a model from its header, or from those of its shards in order; they have passed check.py."""
    # Imported here: where the facts are remembered, nothing of the reader is needed, and start-up is short.
    from llmcli.models.gguf_keys import Keys
    from llmcli.models.layers import read_layers

    first = headers[0]
    keys = Keys(first, str(first.metadata["general.architecture"]))
    tensors = {tensor.name: tensor for header in headers for tensor in header.tensors}
    layers = read_layers(keys)
    positions = tensors.get("position_embd.weight")
    experts_used = max(keys.per_layer("expert_used_count", layers.count_all, (0,)))
    return ModelFacts(
        architecture=keys.architecture,
        name=_text_or_none(first, "general.name"),
        license=_text_or_none(first, "general.license"),
        n_ctx_train=keys.required(keys.own("context_length")),
        n_layer=layers.count,
        n_embd=keys.required(keys.own("embedding_length")),
        n_head=next((heads for heads in layers.heads if heads), 0),
        n_head_kv=layers.cached_heads,
        n_embd_head_k=layers.key_width,
        n_embd_head_v=layers.value_width,
        n_embd_head_k_swa=layers.key_width_window,
        n_embd_head_v_swa=layers.value_width_window,
        sliding_window=layers.window,
        window_layers=layers.window_layers,
        mla=layers.mla,
        indexer_width=layers.indexer_width,
        indexer_layers=layers.indexer_layers,
        recurrent_state_bytes=layers.recurrent_state_bytes,
        n_expert=keys.integer(keys.own("expert_count")) or 0,
        n_expert_used=experts_used,
        n_vocab=tensors["token_embd.weight"].shape[1],
        tokenizer_model=keys.text("tokenizer.ggml.model") or "none",
        longest_token_bytes=longest_token_bytes,
        has_chat_template=_text_or_none(first, "tokenizer.chat_template") is not None,
        n_positions=positions.shape[1] if positions and len(positions.shape) > 1 else None,
        quant=quant_of_tensors(keys, count_kinds(headers)),
        n_params=sum(tensor.elements for tensor in tensors.values()),
        tensor_bytes=sum(tensor.nbytes for tensor in tensors.values()),
        file_bytes=sum(header.file_bytes for header in headers),
        shards=tuple(str(header.path.absolute()) for header in headers),
        n_ff=_forward_width(keys, layers.count_all, experts_used),
        n_inner=_inner_width(keys),
    )


def _forward_width(keys: Keys, n_layer: int, experts_used: int) -> int:
    dense = max(keys.per_layer("feed_forward_length", n_layer, (0,)))
    expert = keys.integer(keys.own("expert_feed_forward_length")) or (dense if experts_used else 0)
    shared = keys.integer(keys.own("expert_shared_feed_forward_length")) or 0
    return max(dense, expert * experts_used + shared)


def _inner_width(keys: Keys) -> int:
    from llmcli.models.architectures import RWKV

    # RWKV has no width of its own there; what its layers hold at a time was measured to be three times the embedding.
    wide = 3 * keys.required(keys.own("embedding_length")) if keys.architecture in RWKV else 0
    return keys.integer(keys.own("ssm.inner_size")) or wide


def _text_or_none(header: GgufHeader, key: str) -> str | None:
    """A string as valid Unicode, whatever bytes the file has: the facts go into JSON that others read."""
    value = header.metadata.get(key)
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(value, str) else None


def count_kinds(headers: Sequence[GgufHeader]) -> Counter[Kind]:
    """How many tensors of each shape and type a model has, of which there are few: in the order in which they come."""
    return Counter(chain.from_iterable(header.tensors.kinds for header in headers))


def quant_of_tensors(keys: Keys, kinds: Mapping[Kind, int]) -> str:
    """The file type, else the most frequent tensor type; given how many tensors there are of each kind.

    A file type of 0 is also what writers leave unset, so it counts only where it fits the tensors.
    """
    from llmcli.models.gguf_types import FILE_TYPES, GGML_TYPES

    counts = Counter[int]()
    for (_, type_id, _), count in kinds.items():
        counts[type_id] += count
    ((most, _),) = counts.most_common(1)
    most_frequent = GGML_TYPES[most].name
    file_type = keys.integer("general.file_type")
    if file_type is None or file_type not in FILE_TYPES or (file_type == 0 and most_frequent != "F32"):
        return most_frequent
    return FILE_TYPES[file_type]
