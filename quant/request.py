"""What the user asks for, as values that have been checked, and what llama.cpp is told for it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmcli.base.errors import UsageError
from llmcli.base.text import printable
from llmcli.engine.quantizer import NativeSettings
from llmcli.models.gguf_types import TYPE_IDS
from llmcli.quant.rules import TensorRule
from llmcli.quant.types import TargetType

_FIELD_BYTES = 127  # llama_model_kv_override: 128 with the final NUL
_U32_MAX = 0xFFFFFFFF
_FLOAT32_MAX = 3.4028234e38
_Q8_0 = 7
_FILE_TYPE_KEY = "general.file_type"
Value = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Override:
    """A metadata key and its new value."""

    key: str
    value: Value


@dataclass(frozen=True, slots=True)
class QuantizeRequest:
    """Everything but the files and the type. Names as in `llmcli quantize --help`.

    imatrix            the file of the importance matrix
    include, exclude   pieces of tensor names: the matrix counts for these alone, or for all but these
    no_fallback        refuse where the shape of a tensor forces another type
    """

    threads: int
    imatrix: Path | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    output_tensor_type: str | None = None
    token_embedding_type: str | None = None
    rules: tuple[TensorRule, ...] = ()
    overrides: tuple[Override, ...] = ()
    prune_layers: tuple[int, ...] = ()
    allow_requantize: bool = False
    leave_output_tensor: bool = False
    pure: bool = False
    keep_split: bool = False
    no_fallback: bool = False
    max_buffer_bytes: int | None = None


def parse_override(text: str) -> Override:
    """`KEY=TYPE:VALUE` with int, float, bool or str. Raises UsageError for what llama.cpp would change in silence."""
    key, equals, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    if not (equals and colon and key) or kind not in _PARSERS:
        raise UsageError(
            f"{printable(text)!r} is not of the form KEY=TYPE:VALUE with int, float, bool or str",
            hint="for example tokenizer.ggml.add_bos_token=bool:false",
        )
    if len(key.encode()) > _FIELD_BYTES or "\0" in text:
        raise UsageError(f"the key of {printable(text[:60])!r} is longer than {_FIELD_BYTES} bytes or holds a NUL")
    parsed = _PARSERS[kind](value)
    if isinstance(parsed, str) and len(parsed.encode()) > _FIELD_BYTES:
        raise UsageError(f"the text for {printable(key)} is longer than {_FIELD_BYTES} bytes, which llama.cpp cuts")
    if parsed is None:
        raise UsageError(f"{printable(value)!r} is no value for {printable(key)}", hint=_EXPECTED[kind])
    return Override(key, parsed)


def _integer(text: str) -> int | None:
    """llama.cpp writes the magnitude of the number as u32."""
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) and int(text) <= _U32_MAX else None


def _real(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= _FLOAT32_MAX else None


def _flag(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text)


def _text(text: str) -> str:
    return text


_PARSERS = {"int": _integer, "float": _real, "bool": _flag, "str": _text}
_EXPECTED = {
    "int": "a whole number from 0 to 4294967295",
    "float": "a finite number",
    "bool": "true or false",
}


def parse_layers(text: str) -> tuple[int, ...]:
    """`3,4,10-12` in order, each once. Raises UsageError for anything else."""
    found: set[int] = set()
    for word in text.split(","):
        numbers = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", word, re.ASCII)
        if not numbers or (numbers[2] and int(numbers[2]) < int(numbers[1])):
            raise UsageError(f"{printable(text)!r} is no list of layers", hint="for example 3,4,10-12")
        found.update(range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1))
    return tuple(sorted(found))


def check_layers(layers: Sequence[int], count: int) -> None:
    """Raise UsageError where a layer is not there, or none would be left."""
    if wrong := [layer for layer in layers if layer >= count]:
        raise UsageError(f"--prune-layers: there is no layer {wrong[0]}", hint=f"the layers are 0 to {count - 1}")
    if len(layers) >= count:
        raise UsageError("--prune-layers would leave no layer")


def native_settings(
    request: QuantizeRequest, target: TargetType, provenance: Sequence[Override] = (), *, dry_run: bool
) -> NativeSettings:
    """What llama.cpp is told for one type.

    llama.cpp ignores the rules where the type is a float one. There it is told of Q8_0 with a last rule that makes a
    float of everything else, and of the file type that results.
    """
    rules = [(rule.pattern, rule.type_id) for rule in request.rules]
    overrides = [*request.overrides, *provenance]
    file_type = target.file_type
    if rules and not target.quantizes:
        file_type = _Q8_0
        rules.append((".*", TYPE_IDS[target.tensor_type]))
        overrides.insert(0, Override(_FILE_TYPE_KEY, target.file_type))
    return NativeSettings(
        file_type=file_type,
        threads=request.threads,
        output_tensor_type=_type_id(request.output_tensor_type),
        token_embedding_type=_type_id(request.token_embedding_type),
        tensor_types=tuple(rules),
        overrides=tuple((override.key, override.value) for override in overrides),
        prune_layers=request.prune_layers,
        allow_requantize=request.allow_requantize,
        leave_output_tensor=request.leave_output_tensor,
        only_copy=target.copies,
        pure=request.pure,
        keep_split=request.keep_split,
        dry_run=dry_run,
        max_buffer_bytes=request.max_buffer_bytes,
    )


def _type_id(name: str | None) -> int | None:
    return None if name is None else TYPE_IDS[name]
