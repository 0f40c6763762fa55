"""The header reader: what it reads, and how it refuses what is not a whole, sound GGUF file."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.base.errors import ModelError
from llmcli.models.gguf_header import read_header
from llmcli.models.gguf_values import GgufArray
from tests.fixtures.gguf_edit import ARRAY, BOOL, F32, I32, STRING, U8, U16, U32, U64, Array, Gguf, Tensor, load

SMALL = Gguf().text("general.architecture", "llama").u32("llama.block_count", 1)


def small() -> Gguf:
    model = Gguf().text("general.architecture", "llama").u32("llama.block_count", 1)
    model.tensors.append(Tensor(b"a.weight", [32, 2], 0, bytes(256)))
    model.tensors.append(Tensor(b"b.weight", [32], 8, bytes(34)))
    return model


def refused(tmp_path: Path, data: bytes | Gguf) -> str:
    path = tmp_path / "model.gguf"
    path.write_bytes(data if isinstance(data, bytes) else data.dump())
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message.replace(str(path), "FILE")


def test_reads_what_the_gguf_package_writes(scripted_model: Callable[..., Path]) -> None:
    path = scripted_model(["Hello", " world"])
    header, reader = read_header(path), gguf.GGUFReader(path)
    assert (header.version, header.byte_order, header.alignment) == (3, "little", 32)
    assert header.file_bytes == path.stat().st_size
    assert header.data_offset == reader.data_offset
    for ours, theirs in zip(header.tensors, reader.tensors, strict=True):
        assert (ours.name, ours.shape) == (theirs.name, tuple(int(n) for n in theirs.shape))
        assert (ours.type_id, ours.nbytes) == (int(theirs.tensor_type), theirs.n_bytes)
        assert header.data_offset + ours.offset == theirs.data_offset
        assert ours.elements == theirs.n_elements
    for key, value in header.metadata.items():
        theirs = reader.fields[key].contents()
        if not isinstance(value, GgufArray):
            assert value == pytest.approx(theirs) if isinstance(value, float) else value == theirs
        elif value.item_type == "str":
            assert [item.decode() for item in value.strings()] == theirs
        else:
            assert list(value.values()) == pytest.approx(theirs)


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_type(tmp_path: Path, version: int) -> None:
    values: dict[int, Any] = {
        U8: 255,
        1: -1,
        U16: 65535,
        3: -2,
        U32: 1 << 31,
        I32: -5,
        BOOL: True,
        U64: 1 << 60,
        11: -6,
    }
    model = small()
    model.version = version
    for kind, value in values.items():
        model.set(f"k{kind}", kind, value)
    model.set("f32", F32, 0.5).set("f64", 12, 0.1).text("text", b"a\xffb\n").set("none", ARRAY, Array(STRING, []))
    model.set("array", ARRAY, Array(I32, [-1, 7])).set("strings", ARRAY, Array(STRING, [b"", b"x\0y"]))
    header = read_header(model.write(tmp_path / "model.gguf"))
    assert header.version == version
    for kind, value in values.items():
        assert header.metadata[f"k{kind}"] == value
    assert (header.metadata["f32"], header.metadata["f64"]) == (0.5, 0.1)
    assert header.metadata["text"] == "a\udcffb\n"
    assert header.metadata["array"].values() == (-1, 7)
    assert header.metadata["strings"].strings() == [b"", b"x\0y"]
    assert header.metadata["none"].strings() == []
    assert header.value_types["array"] == "arr" and header.value_types["k4"] == "u32"
    assert [(tensor.name, tensor.shape, tensor.nbytes) for tensor in header.tensors] == [
        ("a.weight", (32, 2), 256),
        ("b.weight", (32,), 34),
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "FILE is an empty file, expected a GGUF file"),
        (b"<html>", 'FILE is an HTML page; expected a GGUF file, which starts with "GGUF"'),
        (b"\x01\x02\x00\xffx", r"FILE is something else: it starts with the bytes 01 02 00 ff; expected a GGUF file"),
        (b"GGU", "FILE is a text file; expected a GGUF file"),
        (b"GGUF", "FILE is cut off: at offset 4, the version needs 4 bytes, and the file has 0 left"),
        (b"GGUF\x03\0\0\0\x01", "at offset 8, the number of tensors needs 8 bytes, and the file has 1 left"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "FILE is a GGUF file of version 1 (2023)"),
        (struct.pack("<4sIQQ", b"GGUF", 4, 0, 0), "at offset 4, the version is 4, expected 2 or 3"),
        (struct.pack("<4sIQQ", b"GGUF", 0, 0, 0), "at offset 4, the version is 0, expected 2 or 3"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "FILE is a big-endian GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 40, 0), "at offset 8, 1099511627776 tensors are declared"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 63), "at offset 16, 9223372036854775808 keys are declared"),
    ],
)
def test_what_is_no_gguf_file(tmp_path: Path, data: bytes, expected: str) -> None:
    assert expected in refused(tmp_path, data)


def _keys(*entries: bytes) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, len(entries)) + b"".join(entries)


def _entry(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (_keys(struct.pack("<Q", 1 << 40)), "at offset 24, key 0 is 1099511627776 bytes long, expected at most"),
        (_keys(struct.pack("<Q", 1000)), "at offset 32, key 0 needs 1000 bytes, and the file has 0 left"),
        (_keys(_entry(b"", U32, b"\0" * 4)), "at offset 24, key 0 is '', expected a name"),
        (_keys(_entry(b"a\0b", U32, b"\0" * 4)), r"at offset 24, key 0 is 'a\\x00b', expected a name"),
        (_keys(*[_entry(b"a", U8, b"\0")] * 2), "at offset 38, key 'a' is there twice"),
        (_keys(_entry(b"a", 13, b"\0" * 4)), "at offset 33, 'a' has type 13, expected 0 to 12"),
        (_keys(_entry(b"a", STRING, struct.pack("<Q", 1 << 62))), "the value of 'a' is 4611686018427387904 bytes long"),
        (_keys(_entry(b"a", ARRAY, struct.pack("<IQ", 13, 1))), "the array 'a' holds elements of type 13"),
        (_keys(_entry(b"a", ARRAY, struct.pack("<IQ", ARRAY, 1))), "the array 'a' holds arrays"),
        (_keys(_entry(b"a", ARRAY, struct.pack("<IQ", U8, 1 << 30))), "has 1073741824 elements, expected at most"),
        (_keys(_entry(b"a", ARRAY, struct.pack("<IQ", STRING, 1 << 30))), "has 1073741824 elements, expected at most"),
        (_keys(_entry(b"a", ARRAY, struct.pack("<IQ", U64, 1 << 20))), "needs 8388608 bytes, and the file has 0 left"),
        (
            _keys(_entry(b"a", ARRAY, struct.pack("<IQ", STRING, 1 << 20))),
            "needs 8388608 bytes, and the file has 0 left",
        ),
        (
            _keys(_entry(b"a", ARRAY, struct.pack("<IQQ", STRING, 1, 1 << 60))),
            "at offset 49, string 0 of the array 'a' is 1152921504606846976 bytes long",
        ),
        (
            _keys(_entry(b"a", ARRAY, struct.pack("<IQQ", STRING, 1, 9) + b"x")),
            "at offset 57, string 0 of the array 'a' needs 9 bytes, and the file has 1 left",
        ),
        (_keys(_entry(b"\x1b[31m", 13, b"")), r"'\\x1b[31m' has type 13"),
    ],
)
def test_metadata_that_lies(tmp_path: Path, data: bytes, expected: str) -> None:
    assert expected in refused(tmp_path, data)


def _changed(change: Callable[[Gguf], object]) -> Gguf:
    model = small()
    change(model)
    return model


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: setattr(m.tensors[0], "name", b""), "the name of tensor 0 is ''"),
        (lambda m: setattr(m.tensors[0], "name", b"a\0b"), "the name of tensor 0 is"),
        (lambda m: setattr(m.tensors[0], "name", b"x" * 64), "tensor 0 is 64 bytes long, expected at most 63"),
        (lambda m: setattr(m.tensors[1], "name", b"a.weight"), "tensor 'a.weight' is there twice"),
        (lambda m: setattr(m.tensors[0], "shape", [32, 2, 1, 1, 1]), "has 5 dimensions, expected at most 4"),
        (lambda m: setattr(m.tensors[0], "shape", [32, 0]), "has shape [32, 0], expected sizes from 1"),
        (lambda m: setattr(m.tensors[0], "shape", [1 << 42, 1 << 42]), "and a product below 2^63"),
        (lambda m: setattr(m.tensors[0], "shape", [(1 << 64) - 32, 2]), "expected sizes from 1"),
        (lambda m: setattr(m.tensors[0], "type_id", 4), "has type 4 (Q4_2, which llama.cpp has removed)"),
        (lambda m: setattr(m.tensors[0], "type_id", 43), "has the unknown type 43"),
        (lambda m: setattr(m.tensors[0], "type_id", -1), "has the unknown type 4294967295"),
        (lambda m: setattr(m.tensors[1], "shape", [33]), "has rows of 33, expected a multiple of 32 (Q8_0)"),
        (lambda m: setattr(m.tensors[1], "offset", 0), "'b.weight' is at offset 0 of the data, expected 256"),
        (
            lambda m: setattr(m.tensors[0], "offset", 1 << 62),
            "is at offset 4611686018427387904 of the data, expected 0",
        ),
        (lambda m: m.u32("general.alignment", 0), "general.alignment is 0, expected a power of two"),
        (lambda m: m.u32("general.alignment", 24), "general.alignment is 24, expected a power of two"),
        (lambda m: m.u32("general.alignment", 1 << 30), "general.alignment is 1073741824, expected a power of two"),
        (lambda m: m.set("general.alignment", I32, 32), "general.alignment has type i32, expected u32"),
        (lambda m: setattr(m, "tensor_count", 3), "the name of tensor 2"),
    ],
)
def test_tensors_that_lie(tmp_path: Path, change: Callable[[Gguf], object], expected: str) -> None:
    assert expected in refused(tmp_path, _changed(change))


def test_a_cut_off_file_says_how_much_is_missing(tmp_path: Path) -> None:
    whole = small().dump()
    data_end = len(whole) - 30  # the padding behind the last tensor may be missing
    path = tmp_path / "model.gguf"
    path.write_bytes(whole[:data_end])
    assert read_header(path).file_bytes == data_end
    path.write_bytes(whole[: data_end - 1])
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert f"has {data_end - 1} bytes, expected {data_end} bytes; 1 byte is missing" in caught.value.message
    assert caught.value.hint == "the download did not finish: pull it again"


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    whole = small().dump()
    path = tmp_path / "model.gguf"
    for size in range(len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            read_header(path)


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_files_glued_together(tmp_path: Path, padding: int) -> None:
    first = small()
    data = first.dump()[: -30 if padding == 1 else None] + small().dump()
    if padding == 2:
        data = SMALL.dump() + SMALL.dump()
    assert "FILE is several GGUF files glued together: the first ends at offset" in refused(tmp_path, data)


def test_bytes_behind_the_data_are_left_alone(tmp_path: Path) -> None:
    model = small()
    model.tail = b"\0" * 100
    assert len(read_header(model.write(tmp_path / "model.gguf")).tensors) == 2


def test_a_header_larger_than_one_read(tmp_path: Path) -> None:
    model = small()
    model.set("numbers", ARRAY, Array(U32, list(range(300_000))))
    model.set("strings", ARRAY, Array(STRING, [b"%d" % number for number in range(200_000)]))
    header = read_header(model.write(tmp_path / "model.gguf"))
    assert header.metadata["numbers"].values() == tuple(range(300_000))
    assert header.metadata["strings"].strings()[-1] == b"199999"
    assert header.tensors[0].name == "a.weight"


def test_the_limits_keep_the_time_short(tmp_path: Path) -> None:
    # As many strings as the limit allows, all of them empty: the slowest header of its size.
    path = tmp_path / "model.gguf"
    count = 1 << 20
    body = _entry(b"a", ARRAY, struct.pack("<IQ", STRING, count) + bytes(8 * count))
    path.write_bytes(_keys(body, _entry(b"b", ARRAY, struct.pack("<IQ", STRING, count + 1) + bytes(8 * count + 8))))
    begun = time.perf_counter()
    with pytest.raises(ModelError, match="there are more than 2097152 strings, the limit"):
        read_header(path)
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo])
def test_only_plain_files_are_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "model.gguf"
    make(path)
    begun = time.perf_counter()
    with pytest.raises(ModelError, match=r"is (a folder|a pipe), expected a GGUF file"):
        read_header(path)
    assert time.perf_counter() - begun < 1


def test_devices_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="/dev/zero is a device"):
        read_header(Path("/dev/zero"))
    with pytest.raises(ModelError, match="does not exist"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="cannot be read"):
        read_header(Path("a\0b"))
    file = tmp_path / "file"
    file.write_bytes(b"x")
    with pytest.raises(ModelError, match="cannot be read"):
        read_header(file / "model.gguf")


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as root, for whom nothing is denied.
    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    path = small().write(tmp_path / "model.gguf")
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        read_header(path)


def test_hostile_names_are_shown_harmless(tmp_path: Path) -> None:
    path = tmp_path / "\x1b]0;x\x07.gguf"
    path.write_bytes(b"")
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert caught.value.message.isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(data=st.data())
def test_random_damage_is_refused_or_read(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(small().dump())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    message = ""
    try:
        read_header(path)
    except ModelError as error:
        message = error.message
    assert message.isprintable()


def test_edit_helper_round_trip(scripted_model: Callable[..., Path]) -> None:
    path = scripted_model(["Hello"])
    assert load(path).dump() == path.read_bytes()


def test_real_headers_are_read_quickly(gemma3_path: Path, smollm2_path: Path) -> None:
    read_header(gemma3_path)
    for path, tokens, tensors in ((gemma3_path, 262_144, 236), (smollm2_path, 49_152, 272)):
        times = []
        for _ in range(3):
            begun = time.process_time()
            header = read_header(path)
            times.append(time.process_time() - begun)
        assert min(times) < 0.5
        assert header.metadata["tokenizer.ggml.tokens"].count == tokens
        assert len(header.tensors) == tensors
