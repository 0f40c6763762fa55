"""What one token of a model takes: bytes that must be read and operations that must be done.

Formulas and their sources:

    operations   2 per weight that takes part (a multiplication and an addition), and for attention 4 x heads x head
                 width per layer and position before (scores, and the mix of values): Kaplan et al., "Scaling Laws for
                 Neural Language Models", 2020, table 1, where the last part is for one direction and counted there as
                 2 x layers x context x width, once for the scores and once for the values
    bytes        decoding reads every weight that takes part once per token, and the KV cache of the positions before;
                 a batch of u tokens reads the weights once for all of them: Pope et al., "Efficiently Scaling
                 Transformer Inference", 2022, section 2
    roofline     the time is at least the larger of bytes / bandwidth and operations / peak: Williams, Waterman and
                 Patterson, "Roofline: An Insightful Visual Performance Model", 2009

Of the embedding table one row per token is read, unless the output layer is the same table. Of a mixture of experts
those that are used take part; a batch may touch all of them, and reads them then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llmcli.bench.sizes import Sizes
from llmcli.models.estimate import kv_cache_bytes
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_header import read_header
from llmcli.models.tensor_list import GgufTensor

_EMBEDDING, _OUTPUT, _EXPERTS = "token_embd.weight", "output.weight", "_exps."


@dataclass(frozen=True, slots=True)
class Active:
    """The weights that take part in one token: their bytes, and how many of them are multiplied.

    batch_bytes   what a batch reads, in which every expert has some token
    """

    bytes: int
    batch_bytes: int
    weights: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one test, per token that it times."""

    bytes_per_token: float
    ops_per_token: float


def active_weights(facts: ModelFacts) -> Active:
    """Read from the tensors of the file, or of all its shards."""
    tensors = [tensor for shard in facts.shards for tensor in read_header(Path(shard)).tensors]
    return _active(tensors, facts)


def _active(tensors: Iterable[GgufTensor], facts: ModelFacts) -> Active:
    known = {tensor.name: tensor for tensor in tensors}
    share = facts.n_expert_used / facts.n_expert if facts.n_expert else 1.0
    nbytes = batch = weights = 0.0
    for name, tensor in known.items():
        if name == _EMBEDDING and _OUTPUT in known:
            continue  # a row per token is nothing beside the rest
        used = share if _EXPERTS in name else 1.0
        nbytes += used * tensor.nbytes
        batch += tensor.nbytes
        if len(tensor.shape) > 1:  # vectors are added or scaled: an operation each, lost beside the matrices
            weights += used * math.prod(tensor.shape)
    return Active(round(nbytes), round(batch), round(weights))


def cost_of(sizes: Sizes, facts: ModelFacts, active: Active, n_ubatch: int, type_k: str, type_v: str) -> Cost:
    """What the tokens of a test cost on average: a prompt in batches, an answer token by token."""
    prompt_bytes = _prompt_bytes(sizes, facts, active, n_ubatch, type_k, type_v)
    middle = sizes.n_depth + sizes.n_prompt + sizes.n_gen // 2
    answer_bytes = sizes.n_gen * (active.bytes + _kv_bytes(facts, middle, type_k, type_v))
    ops = sizes.n_prompt * _ops(facts, active, sizes.n_depth + sizes.n_prompt // 2)
    ops += sizes.n_gen * _ops(facts, active, middle)
    return Cost((prompt_bytes + answer_bytes) / sizes.timed_tokens, ops / sizes.timed_tokens)


def _prompt_bytes(sizes: Sizes, facts: ModelFacts, active: Active, n_ubatch: int, type_k: str, type_v: str) -> float:
    """Weights and KV cache once per batch."""
    total = 0.0
    for start in range(0, sizes.n_prompt, n_ubatch):
        count = min(n_ubatch, sizes.n_prompt - start)
        weights = active.batch_bytes if count > 1 else active.bytes
        total += weights + _kv_bytes(facts, sizes.n_depth + start + count, type_k, type_v)
    return total


def _kv_bytes(facts: ModelFacts, positions: int, type_k: str, type_v: str) -> int:
    """What attention reads at that depth, as llama.cpp pads it, and the recurrent state."""
    return kv_cache_bytes(facts, max(1, positions), type_k, type_v)


def _ops(facts: ModelFacts, active: Active, positions: int) -> int:
    """Of one token behind so many."""
    attention = 0
    for layer, heads_kv in enumerate(facts.n_head_kv):
        if heads_kv:
            in_window = facts.window_layers[layer] and facts.sliding_window is not None
            seen = min(positions, facts.sliding_window or positions) if in_window else positions
            key, value = facts.n_embd_head_k, facts.n_embd_head_v
            if in_window:
                key, value = facts.n_embd_head_k_swa, facts.n_embd_head_v_swa
            attention += 2 * facts.n_head * (key + value) * seen
    return 2 * active.weights + attention
