"""What a GGUF file is: a language model that this build knows, or one of its companions, or something else."""

from __future__ import annotations

from llmcli.base.errors import ModelError
from llmcli.base.text import printable
from llmcli.models import architectures as arch
from llmcli.models.gguf_header import GgufHeader
from llmcli.models.gguf_keys import Keys
from llmcli.models.gguf_source import shown

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


class NotAModelError(ModelError):
    """A sound GGUF file that cannot write text here: a companion of a model, or an architecture that is not known."""


def check_kind(header: GgufHeader) -> str:
    """The architecture of a language model. Raises NotAModelError for anything else, ModelError where it has none."""
    check_companion(header)
    return _check_architecture(header)


def check_companion(header: GgufHeader) -> None:
    """Raise NotAModelError for the companion of a model. They have no architecture, or one of their own."""
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
        raise NotAModelError(f"{shown(header.path)} is a control vector, not a model")
    if what := _TYPES.get(kind):
        raise NotAModelError(f"{shown(header.path)} is {what}", hint=_HINTS.get(kind))


def _check_architecture(header: GgufHeader) -> str:
    name = Keys(header).text("general.architecture")
    if not name:
        Keys(header).fail("general.architecture is missing")
    if name not in arch.KNOWN:
        raise NotAModelError(
            f"{shown(header.path)} has the architecture {printable(name[:64])!r}, which this build of llama.cpp "
            "does not know",
            hint="a newer llmcli may; `llmcli doctor` shows the build",
        )
    if what := arch.NOT_FOR_TEXT.get(name):
        raise NotAModelError(f"{shown(header.path)} is {what} (architecture {name!r})")
    return name
