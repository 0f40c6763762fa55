"""Reads the header of a GGUF file: the metadata and the list of tensors, never the weights.

The file is hostile until shown otherwise. Every count is compared with a limit and with what is left of the file
before anything is allocated, and every failure names the file, the offset, what was expected and what was found.
Format: docs/gguf.md of ggml; the same checks as ggml/src/gguf.cpp and more. What the numbers mean for a model is not
known here (see check.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmcli.base.errors import ModelError
from llmcli.base.records import dataclass
from llmcli.base.units import exact
from llmcli.models.gguf_leap import leap_strings
from llmcli.models.gguf_source import MAX_STRINGS, U32, U64, CutOffError, Source, quoted, shown
from llmcli.models.gguf_tensors import read_tensors
from llmcli.models.gguf_values import ARRAY, READERS, STRING, TYPE_NAMES, GgufArray
from llmcli.models.sniff import MAGIC, in_words, what_is
from llmcli.models.tensor_list import TensorList

# Limits. The largest real headers (a quarter of a million tokens with their merges, some thousand tensors) reach a
# tenth of them; a file that keeps to all of them is read in about a second.
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 16
MAX_STRING_BYTES = 16 << 20
MAX_ARRAY_ITEMS = 1 << 24
MAX_ALIGNMENT_BYTES = 1 << 20
DEFAULT_ALIGNMENT_BYTES = 32


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says about itself.

    metadata     key -> bool, int, float, str or GgufArray
    value_types  key -> the name of the value's type; "arr" for an array
    alignment    of the tensor data, in bytes
    data_offset  where the tensor data starts, in bytes from the start of the file
    """

    path: Path
    version: int
    byte_order: str
    metadata: Mapping[str, Any]
    value_types: Mapping[str, str]
    tensors: TensorList
    alignment: int
    data_offset: int
    file_bytes: int


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of `path`.

    Raises ModelError (what is wrong and where) for anything that is not a whole, little-endian GGUF of version 2 or 3.
    """
    with Source(path) as source:
        return read_header_from(source)


def skim_header(path: Path, *, buffer: bytearray | None = None) -> GgufHeader:
    """The same for a list of models: the vocabulary is leapt over, which makes it ten to twenty times as fast.

    Its long arrays have the right count and no contents, and damage inside them is not seen. Where the leap leads
    astray, or anything else is odd, the header is read in full.
    """
    with Source(path, buffer=buffer, leaps=True) as source:
        try:
            return read_header_from(source)
        except ModelError:
            pass
    return read_header(path)


def read_header_from(source: Source) -> GgufHeader:
    """The header in a source that is already open."""
    version, tensor_count, key_count = _read_preamble(source)
    if not tensor_count:
        source.leaps = False  # nothing behind the last key would tell where a leap went astray
    metadata, value_types = _read_metadata(source, key_count)
    alignment = _alignment(source, metadata, value_types)
    tensors = read_tensors(source, tensor_count)
    data_offset = _padded(source.position, alignment) if tensors else source.position
    _check_extents(source, tensors, data_offset, alignment)
    return GgufHeader(
        path=source.path,
        version=version,
        byte_order="little",
        metadata=metadata,
        value_types=value_types,
        tensors=tensors,
        alignment=alignment,
        data_offset=data_offset,
        file_bytes=source.file_bytes,
    )


def _read_preamble(source: Source) -> tuple[int, int, int]:
    """Magic, version, number of tensors, number of keys."""
    if source.file_bytes == 0:
        raise ModelError(f"{shown(source.path)} is an empty file, expected a GGUF file", hint="pull it again")
    start = source.read_at(0, 1024)
    if start[:4] != MAGIC:
        found = what_is(start) or f"something else: it starts with {in_words(start[:4])}"
        raise ModelError(f"{shown(source.path)} is {found}; expected a GGUF file, which starts with {in_words(MAGIC)}")
    source.position = 4
    version = source.number(U32, "the version")
    if version and not version & 0xFFFF:
        raise ModelError(f"{shown(source.path)} is a big-endian GGUF file; llama.cpp here reads little-endian ones")
    if version == 1:
        raise ModelError(
            f"{shown(source.path)} is a GGUF file of version 1 (2023), which llama.cpp no longer reads",
            hint="pull a newer conversion of this model",
        )
    if version not in {2, 3}:
        source.fail(f"the version is {version}, expected 2 or 3", 4)
    tensor_count = source.number(U64, "the number of tensors")
    if tensor_count > MAX_TENSORS:
        source.fail(f"{tensor_count} tensors are declared, expected at most {MAX_TENSORS}", 8)
    key_count = source.number(U64, "the number of keys")
    if key_count > MAX_KEYS:
        source.fail(f"{key_count} keys are declared, expected at most {MAX_KEYS}", 16)
    return version, tensor_count, key_count


def _read_metadata(source: Source, count: int) -> tuple[dict[str, Any], dict[str, str]]:
    metadata: dict[str, Any] = {}
    value_types: dict[str, str] = {}
    for index in range(count):
        start = source.position
        raw = source.text(MAX_STRING_BYTES, f"key {index}")
        key = raw.decode("utf-8", "surrogateescape")
        # llama.cpp looks keys up as C strings: what follows a NUL would hide a second value under the same name.
        if not raw or b"\0" in raw:
            source.fail(f"key {index} is {quoted(key)}, expected a name", start)
        if key in metadata:
            source.fail(f"key {quoted(key)} is there twice", start)
        kind = source.number(U32, "the type of", key)
        metadata[key] = _read_value(source, kind, key)
        value_types[key] = TYPE_NAMES[kind]
    return metadata, value_types


def _read_value(source: Source, kind: int, key: str) -> Any:
    if reader := READERS.get(kind):
        return source.number(reader, "the value of", key)
    if kind == STRING:
        return source.text(MAX_STRING_BYTES, "the value of", key).decode("utf-8", "surrogateescape")
    if kind == ARRAY:
        return _read_array(source, key)
    return source.fail(f"{quoted(key)} has type {kind}, expected 0 to 12", source.position - 4)


def _read_array(source: Source, key: str) -> GgufArray:
    start = source.position
    kind = source.number(U32, "the element type of", key)
    count = source.number(U64, "the length of", key)
    what = f"the array {quoted(key)}"
    if kind == ARRAY:
        source.fail(f"{what} holds arrays, which llama.cpp does not read; expected numbers or strings", start)
    if kind not in TYPE_NAMES:
        source.fail(f"{what} holds elements of type {kind}, expected 0 to 12", start)
    if count > MAX_ARRAY_ITEMS:
        source.fail(f"{what} has {count} elements, expected at most {MAX_ARRAY_ITEMS}", start + 4)
    first = source.position
    if kind == STRING:
        _skip_strings(source, count, what)
    else:
        source.pass_over(count * READERS[kind].size, what)
    return GgufArray(TYPE_NAMES[kind], count, source.cut(first))


def _skip_strings(source: Source, count: int, what: str) -> None:
    """Step over `count` strings. The one loop that runs once per token of a vocabulary: no calls in it."""
    source.strings_left -= count
    if source.strings_left < 0:
        source.fail(f"with {what} there are more than {MAX_STRINGS} strings, the limit", source.position)
    if count * 8 > source.file_bytes - source.position:
        source.fail_short(what, source.position, count * 8)
    if source.leaps and leap_strings(source, count):
        return
    position, data, unpack = source.position, source.data, U64.unpack_from
    end = source.filled
    for index in range(count):
        if position + 8 > end:
            source.need(8, f"string {index} of {what}", at=position)
            end = source.filled
        (size,) = unpack(data, position)
        if size > MAX_STRING_BYTES:
            source.fail(f"string {index} of {what} is {size} bytes long, expected at most {MAX_STRING_BYTES}", position)
        position += 8 + size
        if position > end:
            source.need(size, f"string {index} of {what}", at=position - size)
            end = source.filled
    source.position = position


def _alignment(source: Source, metadata: Mapping[str, Any], value_types: Mapping[str, str]) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT_BYTES
    value = metadata[key]
    if value_types[key] != "u32":
        source.fail(f"{key} has type {value_types[key]}, expected u32", source.position)
    if not 0 < value <= MAX_ALIGNMENT_BYTES or value & (value - 1):
        source.fail(f"{key} is {value}, expected a power of two up to {MAX_ALIGNMENT_BYTES}", source.position)
    return int(value)


def _check_extents(source: Source, tensors: TensorList, data_offset: int, alignment: int) -> None:
    """The tensors lie one behind the other, each padded, and all of them inside the file."""
    expected = end = 0
    for index, offset in enumerate(tensors.offsets):
        if offset != expected:
            name = quoted(tensors[index].name)
            source.fail(f"tensor {name} is at offset {offset} of the data, expected {expected}", data_offset)
        end = offset + tensors.kinds[index][2]
        expected = -(-end // alignment) * alignment
    missing = data_offset + end - source.file_bytes
    if missing > 0:
        raise CutOffError(
            f"{shown(source.path)} is cut off: it has {exact(source.file_bytes)}, expected {exact(data_offset + end)}; "
            f"{exact(missing)} {'is' if missing == 1 else 'are'} missing",
            hint="the download did not finish: pull it again",
        )
    ends = {data_offset + end, data_offset + expected, _padded(data_offset + end, alignment)}
    if MAGIC in {source.read_at(at, 4) for at in ends if at < source.file_bytes}:
        raise ModelError(
            f"{shown(source.path)} is several GGUF files glued together: the first ends at offset {data_offset + end}",
            hint="keep the parts as separate files and name one of them, or join them with `llama-gguf-split --merge`",
        )


def _padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
