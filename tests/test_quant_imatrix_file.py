"""Importance matrices on disk: llama-imatrix's own files, the older form, and files that are not what they say."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.base.errors import ModelError
from llmcli.quant.imatrix import Entry, Imatrix
from llmcli.quant.imatrix_file import dump, read_imatrix, write_imatrix
from tests.fixtures.gguf_edit import U32, Gguf, Tensor, load

DATA = Path(__file__).parent / "data"
EXPERTS = DATA / "experts.imatrix.gguf"


def sample(**more: Any) -> Imatrix:
    entries = {
        "b.weight": Entry(np.array([1, 2, 3, 4, 5, 6], np.float32), np.array([7, 0], np.int64)),
        "a.weight": Entry(np.array([0.5, 1e-8, 3e8], np.float32), np.array([512], np.int64)),
    }
    return Imatrix(entries, **{"datasets": ("wörds.txt", "b"), "n_chunks": 3, "chunk_tokens": 512, **more})


def same(a: Imatrix, b: Imatrix) -> bool:
    return (a.datasets, a.n_chunks, a.chunk_tokens, dict(a.notes)) == (
        b.datasets,
        b.n_chunks,
        b.chunk_tokens,
        dict(b.notes),
    ) and {name: (e.sums.tobytes(), e.counts.tobytes()) for name, e in a.entries.items()} == {
        name: (e.sums.tobytes(), e.counts.tobytes()) for name, e in b.entries.items()
    }


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_a_file_of_llama_imatrix_is_read_and_written_byte_for_byte(name: str) -> None:
    path = DATA / f"{name}.imatrix.gguf"
    found = read_imatrix(path)
    assert (found.datasets, found.n_chunks, found.chunk_tokens) == (("text.txt",), 5, 128)
    assert dump(found) == path.read_bytes()


def test_experts_have_a_row_and_a_count_each() -> None:
    entry = read_imatrix(EXPERTS).entries["blk.0.ffn_up_exps.weight"]
    assert (len(entry.sums), len(entry.counts), int(entry.counts.sum())) == (4 * 64, 4, 2 * 640)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for matrix in (sample(), sample(datasets=()), sample(notes={"model": "abc", "done": 5})):
        write_imatrix(path, matrix)
        assert same(read_imatrix(path), matrix)
    assert oct(path.stat().st_mode)[-3:] == "644"
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_the_gguf_package_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_imatrix(path, sample(notes={"done": 5}))
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["wörds.txt", "b"]
    assert reader.fields["llmcli.imatrix.done"].contents() == 5
    shapes = {tensor.name: [int(n) for n in tensor.shape] for tensor in reader.tensors}
    assert shapes == {
        "a.weight.in_sum2": [3],
        "a.weight.counts": [1],
        "b.weight.in_sum2": [3, 2],
        "b.weight.counts": [1, 2],
    }


def old_form(entries: list[tuple[bytes, int, list[float]]], tail: bytes = b"") -> bytes:
    out = struct.pack("<i", len(entries))
    for name, calls, values in entries:
        out += struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(values))
        out += struct.pack(f"<{len(values)}f", *values)
    return out + tail


def test_the_older_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.dat"
    path.write_bytes(old_form([(b"a.weight", 3, [3.0, 6.0])], struct.pack("<ii", 3, 5) + b"a.txt"))
    found = read_imatrix(path)
    assert (found.datasets, found.n_chunks, found.chunk_tokens) == (("a.txt",), 3, 0)
    assert found.entries["a.weight"].means().tolist() == [1.0, 2.0]
    path.write_bytes(old_form([(b"a.weight", 3, [3.0, 6.0])]))
    assert read_imatrix(path).datasets == ()
    path.write_bytes(old_form([(b"a.weight", 3, [3.0])], struct.pack("<i", 4)))
    assert read_imatrix(path).n_chunks == 4


def refused(tmp_path: Path, data: bytes | Gguf) -> str:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data if isinstance(data, bytes) else data.dump())
    with pytest.raises(ModelError) as caught:
        read_imatrix(path)
    assert "\n" not in caught.value.message
    return caught.value.message.replace(str(path), "FILE")


def edited() -> Gguf:
    return load(EXPERTS)


def replaced(which: str, **changes: Any) -> Gguf:
    model = edited()
    (tensor,) = [t for t in model.tensors if t.name == which.encode()]
    for key, value in changes.items():
        setattr(tensor, key, value)
    return model


NAN, INF = struct.pack("<f", float("nan")), struct.pack("<f", float("inf"))
COUNTS = "blk.0.attn_k.weight.counts"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "FILE is an empty file, expected an importance matrix"),
        (b"\0\0", "cut off"),
        (b"hello, this is a text and no matrix", "FILE is no importance matrix"),
        (old_form([(b"a", 3, [])]), "entry 0 has 0 values"),
        (old_form([(b"a", -3, [1.0])]), "entry 0 has 1 values of -3 chunks"),
        (old_form([(b"a", 3, [1.0])])[:-2], "cut off"),
        (old_form([(b"a", 3, [float("nan")])]), "a holds a value that is no finite number"),
        (struct.pack("<ii", 1, 1 << 30), "the name of entry 0 is 1073741824 bytes long"),
        (struct.pack("<iicii", 1, 1, b"a", 1, 1 << 28), "cut off"),
    ],
    ids=range(9),
)
def test_files_that_are_no_matrix(tmp_path: Path, data: bytes, why: str) -> None:
    assert why in refused(tmp_path, data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (replaced(COUNTS, data=NAN), f"{COUNTS} holds a value that is no finite number"),
        (replaced(COUNTS, data=struct.pack("<f", -1)), "negative sum of squares or count"),
        (replaced("blk.0.attn_k.weight.in_sum2", data=INF * 64), "holds a value that is no finite number"),
        (replaced("blk.0.attn_k.weight.in_sum2", data=struct.pack("<f", -0.5) * 64), "negative sum"),
        (replaced(COUNTS, name=b"blk.0.attn_k.weight.count"), "only one of the two, sums and counts"),
        (replaced(COUNTS, type_id=26), f"{COUNTS} does not hold 32-bit floats"),
        (
            replaced(COUNTS, shape=[1, 3], data=struct.pack("<3f", 1, 1, 1)),
            "has 64 values, which 3 counts do not divide",
        ),
        (edited().text("general.type", "model"), "FILE is a GGUF file, but no importance matrix"),
        (edited().drop("imatrix.chunk_size"), "imatrix.chunk_size is missing or no u32"),
        (edited().text("imatrix.chunk_count", "6"), "imatrix.chunk_count is missing or no u32"),
    ],
    ids=range(10),
)
def test_matrices_that_are_not_sound(tmp_path: Path, data: Gguf, why: str) -> None:
    assert why in refused(tmp_path, data)


def test_a_model_is_no_matrix(scripted_model: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match="is a GGUF file, but no importance matrix"):
        read_imatrix(scripted_model(["Hello"]))


def test_a_matrix_without_entries(tmp_path: Path) -> None:
    empty = Gguf().text("general.type", "imatrix").set("imatrix.chunk_count", U32, 1).set("imatrix.chunk_size", U32, 1)
    assert "without any data" in refused(tmp_path, empty)
    empty.tensors.append(Tensor(b"odd", [1], 0, bytes(4)))
    assert "without any data" in refused(tmp_path, empty)


def test_folders_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder"):
        read_imatrix(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        read_imatrix(tmp_path / "none.gguf")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_an_error_or_a_sound_matrix(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(EXPERTS.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw[:cut])
    try:
        found = read_imatrix(path)
    except ModelError:
        return
    for entry in found.entries.values():
        assert np.isfinite(entry.means()).all()
        assert len(entry.sums) % len(entry.counts) == 0
