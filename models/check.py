"""Decides whether a file may be handed to llama.cpp, and says in one line why not.

llama.cpp checks much of a model itself and fails cleanly, but on some values it aborts, divides by zero or loops: then
the process is gone. Everything of that kind that the metadata and the tensor list can cause is refused here, before
the library sees the file: what the file is (kind.py), its parts (shards.py), its vocabulary (check_vocab.py), its
sizes (check_sizes.py), its tensors (check_tensors.py). What the library refuses by itself is left to it, except where
a better message is worth a line. Order: cheap and telling things first.

The contents of the tensors are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmcli.models.check_sizes import check_sizes
from llmcli.models.check_tensors import check_tensors
from llmcli.models.check_vocab import check_vocabulary
from llmcli.models.facts import ModelFacts, facts_from, require_vocabulary
from llmcli.models.gguf_header import GgufHeader, read_header
from llmcli.models.gguf_keys import Keys
from llmcli.models.kind import check_kind
from llmcli.models.shards import read_shards


def check_model(path: Path, *, need_vocabulary: bool = True) -> ModelFacts:
    """The facts of a model that llama.cpp can be given, from its file or from any of its shards.

    need_vocabulary  refuse a model without a tokenizer (a test file); only a caller that feeds token ids may say False
    Raises ModelError: what is wrong, what was expected, and where there is one the next thing to type.
    """
    return check_headers(read_shards(read_header(path)), need_vocabulary=need_vocabulary)


def check_headers(headers: Sequence[GgufHeader], *, need_vocabulary: bool = True) -> ModelFacts:
    """The same for headers that were read already, in order, from wherever."""
    first = headers[0]
    keys = Keys(first, check_kind(first))
    if not any(header.tensors for header in headers):
        keys.fail("it has no tensors, only a vocabulary or metadata", hint="pull the model itself")
    layers = check_sizes(keys)
    longest_token_bytes = check_vocabulary(keys)
    check_tensors(keys, headers, layers)
    facts = facts_from(headers, longest_token_bytes=longest_token_bytes)
    if need_vocabulary:
        require_vocabulary(facts)
    return facts
