"""Importance matrices on disk: the GGUF form that llama.cpp writes and reads, and its older one, which is only read.

Interchangeable both ways: a file written here has the bytes of one that llama-imatrix writes for the same numbers. What
is read is not trusted: every count is compared with what is left of the file, and every number must be finite.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from llmcli.base.errors import ModelError
from llmcli.base.files import atomic_write
from llmcli.base.text import printable
from llmcli.models.gguf_header import GgufHeader, read_header
from llmcli.models.gguf_source import Source, shown
from llmcli.models.gguf_types import TYPE_IDS
from llmcli.models.gguf_values import ARRAY, STRING, GgufArray
from llmcli.models.sniff import MAGIC
from llmcli.models.tensor_list import GgufTensor
from llmcli.quant.imatrix import Entry, Floats, Imatrix

_SUMS, _COUNTS = ".in_sum2", ".counts"
_TYPE, _DATASETS = "general.type", "imatrix.datasets"
_N_CHUNKS, _CHUNK_TOKENS = "imatrix.chunk_count", "imatrix.chunk_size"
_NOTE = "llmcli.imatrix."
_U32, _I32 = struct.Struct("<I"), struct.Struct("<i")
_UINT32, _ALIGNMENT_BYTES = 4, 32
_MAX_VALUES, _MAX_NAME_BYTES, _MAX_OLD_ENTRIES = 1 << 28, 1 << 10, 1 << 16
_FILE_MODE = 0o644
_ADVICE = "make one with llmcli imatrix"


def read_imatrix(path: Path) -> Imatrix:
    """Read the file. Raises ModelError naming what is wrong with it."""
    with Source(path) as source:
        if not source.file_bytes:
            raise ModelError(f"{shown(path)} is an empty file, expected an importance matrix", hint=_ADVICE)
        if source.read_at(0, len(MAGIC)) != MAGIC:
            return _read_old(source)
    header = read_header(path)
    if header.metadata.get(_TYPE) != "imatrix":
        raise ModelError(f"{shown(path)} is a GGUF file, but no importance matrix", hint=_ADVICE)
    with Source(path) as source:
        entries = dict(_entries(header, source))
    if not entries:
        raise ModelError(f"{shown(path)} is an importance matrix without any data", hint=_ADVICE)
    return Imatrix(
        entries=entries,
        datasets=_datasets(header),
        n_chunks=_whole(header, _N_CHUNKS),
        chunk_tokens=_whole(header, _CHUNK_TOKENS),
        notes={
            key[len(_NOTE) :]: value
            for key, value in header.metadata.items()
            if key.startswith(_NOTE) and isinstance(value, (str, int))
        },
    )


def _whole(header: GgufHeader, key: str) -> int:
    """A number that llama.cpp requires. Raises ModelError where it is not there."""
    value = header.metadata.get(key)
    if header.value_types.get(key) != "u32" or not isinstance(value, int):
        raise ModelError(f"{shown(header.path)} is no whole importance matrix: {key} is missing or no u32")
    return value


def _datasets(header: GgufHeader) -> tuple[str, ...]:
    found = header.metadata.get(_DATASETS)
    if not isinstance(found, GgufArray) or found.item_type != "str":
        return ()
    return tuple(name.decode("utf-8", "replace") for name in found.strings())


def _entries(header: GgufHeader, source: Source) -> Iterator[tuple[str, Entry]]:
    sums = {t.name.removesuffix(_SUMS): t for t in header.tensors if t.name.endswith(_SUMS)}
    counts = {t.name.removesuffix(_COUNTS): t for t in header.tensors if t.name.endswith(_COUNTS)}
    for lonely in sorted(sums.keys() ^ counts.keys()):
        raise ModelError(
            f"{shown(header.path)}: {printable(lonely)} has only one of the two, sums and counts, that belong together"
        )
    for weight, tensor in sums.items():
        yield weight, _entry(header, source, tensor, counts[weight])


def _entry(header: GgufHeader, source: Source, sums: GgufTensor, counts: GgufTensor) -> Entry:
    totals, numbers = _floats(header, source, sums), _floats(header, source, counts)
    if len(totals) % len(numbers):
        raise ModelError(
            f"{shown(header.path)}: {printable(sums.name)} has {len(totals)} values, "
            f"which {len(numbers)} counts do not divide"
        )
    if (totals < 0).any() or (numbers < 0).any():
        raise ModelError(f"{shown(header.path)}: {printable(sums.name)} has a negative sum of squares or count")
    return Entry(totals, np.rint(numbers).astype(np.int64))


def _floats(header: GgufHeader, source: Source, tensor: GgufTensor) -> Floats:
    if tensor.type_id != TYPE_IDS["F32"]:
        raise ModelError(f"{shown(header.path)}: {printable(tensor.name)} does not hold 32-bit floats")
    data = source.read_at(header.data_offset + tensor.offset, tensor.nbytes)
    return _finite(header.path, tensor.name, data, tensor.elements)


def _finite(path: Path, name: str, data: bytes | bytearray, count: int) -> Floats:
    if len(data) != 4 * count:
        raise ModelError(f"{shown(path)} is cut off in {printable(name)}")
    values = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise ModelError(f"{shown(path)}: {printable(name)} holds a value that is no finite number")
    return values


# ---- the older form --------------------------------------------------------------------------------------------------


def _read_old(source: Source) -> Imatrix:
    """The .dat files of llama.cpp before the GGUF form: means times the number of chunks."""
    n_entries = source.number(_I32, "the number of entries")
    if not 0 < n_entries <= _MAX_OLD_ENTRIES:
        raise ModelError(f"{shown(source.path)} is no importance matrix", hint=_ADVICE)
    entries: dict[str, Entry] = {}
    for index in range(n_entries):
        name = _old_text(source, f"the name of entry {index}").decode("utf-8", "replace")
        n_calls = source.number(_I32, f"the number of chunks of entry {index}")
        n_values = source.number(_I32, f"the number of values of entry {index}")
        if n_calls < 0 or not 0 < n_values <= _MAX_VALUES:
            source.fail(f"entry {index} has {n_values} values of {n_calls} chunks", source.position)
        source.need(4 * n_values, f"the values of entry {index}")
        data = source.data[source.position : source.position + 4 * n_values]
        source.position += 4 * n_values
        entries[name] = Entry(_finite(source.path, name, data, n_values), np.array([n_calls], np.int64))
    if source.position + _I32.size > source.file_bytes:
        return Imatrix(entries)
    n_chunks = source.number(_I32, "the number of chunks")
    at_end = source.position == source.file_bytes
    dataset = b"" if at_end else _old_text(source, "the name of the text")
    datasets = (dataset.decode("utf-8", "replace"),) if dataset else ()
    return Imatrix(entries, datasets, n_chunks=max(n_chunks, 0))


def _old_text(source: Source, what: str) -> bytes:
    size = source.number(_I32, f"the length of {what}")
    if not 0 <= size <= _MAX_NAME_BYTES:
        source.fail(f"{what} is {size} bytes long, expected at most {_MAX_NAME_BYTES}", source.position - 4)
    source.need(size, what)
    source.position += size
    return bytes(source.data[source.position - size : source.position])


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_imatrix(path: Path, imatrix: Imatrix) -> None:
    """Put the matrix at `path` in one step. Raises OSError; an old file then stands as it was."""
    atomic_write(path, dump(imatrix), mode=_FILE_MODE)


def dump(imatrix: Imatrix) -> bytes:
    """The bytes of the GGUF file: weights by name, sums before counts."""
    tensors: list[tuple[str, tuple[int, ...], bytes]] = []
    for name in sorted(imatrix.entries):
        entry = imatrix.entries[name]
        n_counts = len(entry.counts)
        tensors += [
            (name + _SUMS, _shape(len(entry.sums) // n_counts, n_counts), entry.sums.astype("<f4").tobytes()),
            (name + _COUNTS, _shape(1, n_counts), entry.counts.astype("<f4").tobytes()),
        ]
    keys = [
        _key(_TYPE, STRING, _text("imatrix")),
        _key(_DATASETS, ARRAY, _U32.pack(STRING) + _u64(len(imatrix.datasets)) + _texts(imatrix.datasets)),
        _key(_N_CHUNKS, _UINT32, _U32.pack(imatrix.n_chunks)),
        _key(_CHUNK_TOKENS, _UINT32, _U32.pack(imatrix.chunk_tokens)),
        *_noted(imatrix.notes),
    ]
    header = MAGIC + _U32.pack(3) + _u64(len(tensors)) + _u64(len(keys)) + b"".join(keys)
    return _padded(header + _tensor_list(tensors)) + b"".join(_padded(data) for _, _, data in tensors)


def _shape(rows: int, columns: int) -> tuple[int, ...]:
    """As ggml writes it: a last dimension of 1 is left out."""
    return (rows, columns) if columns > 1 else (rows,)


def _noted(notes: Mapping[str, str | int]) -> Iterator[bytes]:
    for name, value in notes.items():
        if isinstance(value, int):
            yield _key(_NOTE + name, _UINT32, _U32.pack(value))
        else:
            yield _key(_NOTE + name, STRING, _text(value))


def _tensor_list(tensors: Sequence[tuple[str, tuple[int, ...], bytes]]) -> bytes:
    out, offset = bytearray(), 0
    for name, shape, data in tensors:
        out += _text(name) + _U32.pack(len(shape)) + b"".join(map(_u64, shape))
        out += _U32.pack(TYPE_IDS["F32"]) + _u64(offset)
        offset += len(_padded(data))
    return bytes(out)


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + _U32.pack(kind) + value


def _texts(values: Sequence[str]) -> bytes:
    return b"".join(map(_text, values))


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogateescape")
    return _u64(len(data)) + data


def _u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT_BYTES)
