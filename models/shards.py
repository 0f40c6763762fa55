"""The parts of a model that was split over several files.

llama.cpp opens the first part and finds the others by name, `<prefix>-00001-of-00003.gguf`, in the same folder
(llama_split_path). So any part that the user names stands for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmcli.base.errors import ModelError
from llmcli.models.gguf_header import GgufHeader, read_header
from llmcli.models.gguf_keys import Keys
from llmcli.models.gguf_source import CutOffError, shown
from llmcli.models.reference import shard_of

MAX_SHARDS = 999


def read_shards(header: GgufHeader, *, read: Callable[[Path], GgufHeader] = read_header) -> tuple[GgufHeader, ...]:
    """The headers of all parts, in order, given that of any of them. Raises ModelError for a missing or wrong part."""
    count = _u16(header, "split.count") or 1
    if count == 1:
        return (header,)
    named = shard_of(header.path.name)
    if not named or named.count != count:
        raise ModelError(
            f"{shown(header.path)} is one of {count} parts of a model, but not named like one",
            hint=f"give the parts their names back: NAME-00001-of-{count:05}.gguf and so on, in one folder",
        )
    if count > MAX_SHARDS:
        raise ModelError(f"{shown(header.path)} is one of {count} parts, expected at most {MAX_SHARDS}")
    paths = [header.path.with_name(named.sibling(number)) for number in range(1, count + 1)]
    missing = [path for path in paths if not path.exists()]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CutOffError(
            f"{shown(missing[0])}{others} is missing: the model has {count} parts, and all must be in one folder",
            hint="pull the model again, or copy the missing part there",
        )
    headers = tuple(header if path == header.path else read(path) for path in paths)
    _check_parts(headers)
    return headers


def _check_parts(headers: tuple[GgufHeader, ...]) -> None:
    seen: set[str] = set()
    for index, part in enumerate(headers):
        # The library reads split.no of a part without looking at its type first, and aborts on another one.
        number = _u16(part, "split.no")
        if number != index:
            Keys(part).fail(f"split.no is {number}, expected {index}: the parts have been mixed up")
        for tensor in part.tensors:
            if tensor.name in seen:
                Keys(part).fail(f"tensor {tensor.name!r} is in an earlier part too")
            seen.add(tensor.name)
    expected = Keys(headers[0]).integer("split.tensors.count")
    if expected != len(seen):
        Keys(headers[0]).fail(f"split.tensors.count is {expected}, but the parts have {len(seen)} tensors")


def _u16(header: GgufHeader, key: str) -> int | None:
    value = Keys(header).integer(key, most=0xFFFF)
    if value is not None and header.value_types[key] != "u16":
        Keys(header).fail(f"{key} is {header.value_types[key]}, expected u16")
    return value
