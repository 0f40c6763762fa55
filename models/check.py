"""Decides whether a file may be handed to llama.cpp, and says in one line why not.

llama.cpp checks much of a model itself and fails cleanly, but on some values it aborts, divides by zero or loops: then
the process is gone. Everything of that kind that the metadata and the tensor list can cause is refused here, before
the library sees the file: what the file is (this module), its parts (shards.py), its vocabulary (check_vocab.py), its
sizes (check_sizes.py), its tensors (check_tensors.py). What the library refuses by itself is left to it, except where
a better message is worth a line. Order: cheap and telling things first.

The contents of the tensors are not looked at.
"""

from __future__ import annotations

from pathlib import Path

from llmcli.base.errors import ModelError
from llmcli.base.text import printable
from llmcli.models import architectures as arch
from llmcli.models.check_sizes import check_sizes
from llmcli.models.check_tensors import check_tensors
from llmcli.models.check_vocab import check_vocabulary
from llmcli.models.facts import ModelFacts, facts_from, require_vocabulary
from llmcli.models.gguf_header import GgufHeader, read_header
from llmcli.models.gguf_keys import Keys
from llmcli.models.gguf_source import shown
from llmcli.models.shards import read_shards

# general.type (docs/gguf.md): what the file is, where it is not a model.
_TYPES = {
    "mmproj": "a vision or audio projector (mmproj), the companion of a model, not a model",
    "imatrix": "an importance matrix, not a model",
    "adapter": "a LoRA adapter, not a model",
    "vocab": "a vocabulary without a model",
    "dataset": "a data set, not a model",
}
_HINTS = {
    "mmproj": "name the model file beside it; the projector is of no use alone",
    "imatrix": "use it with `llmcli quantize --imatrix`",
    "adapter": "name the base model, and this file with --lora",
}


def check_model(path: Path, *, need_vocabulary: bool = True) -> ModelFacts:
    """The facts of a model that llama.cpp can be given, from its file or from any of its shards.

    need_vocabulary  refuse a model without a tokenizer (a test file); only a caller that feeds token ids may say False
    Raises ModelError: what is wrong, what was expected, and where there is one the next thing to type.
    """
    headers = read_shards(read_header(path))
    first = headers[0]
    _check_kind(first)
    keys = Keys(first, _check_architecture(first))
    if not any(header.tensors for header in headers):
        keys.fail("it has no tensors, only a vocabulary or metadata", hint="pull the model itself")
    layers = check_sizes(keys)
    longest_token_bytes = check_vocabulary(keys)
    check_tensors(keys, headers, layers)
    facts = facts_from(headers, longest_token_bytes=longest_token_bytes)
    if need_vocabulary:
        require_vocabulary(facts)
    return facts


def _check_kind(header: GgufHeader) -> None:
    """Companions of a model come before anything else: they have no architecture, or one of their own."""
    keys = Keys(header)
    kind = (keys.text("general.type") or "").lower()
    name = keys.text("general.architecture") or ""
    if "imatrix.chunk_count" in header.metadata:
        kind = "imatrix"
    elif "adapter.type" in header.metadata:
        kind = "adapter"
    elif name == "clip":
        kind = "mmproj"
    elif name == "controlvector":
        raise ModelError(f"{shown(header.path)} is a control vector, not a model")
    if what := _TYPES.get(kind):
        raise ModelError(f"{shown(header.path)} is {what}", hint=_HINTS.get(kind))


def _check_architecture(header: GgufHeader) -> str:
    name = Keys(header).text("general.architecture")
    if not name:
        Keys(header).fail("general.architecture is missing")
    if name not in arch.KNOWN:
        raise ModelError(
            f"{shown(header.path)} has the architecture {printable(name[:64])!r}, which this build of llama.cpp "
            "does not know",
            hint="a newer llmcli may; `llmcli doctor` shows the build",
        )
    if what := arch.NOT_FOR_TEXT.get(name):
        raise ModelError(f"{shown(header.path)} is {what} (architecture {name!r})")
    return name
