"""The list of tensors: the quick way through it and the careful one find the same, and refuse the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcli.base.errors import ModelError
from llmcli.models import gguf_tensors
from llmcli.models.gguf_header import read_header
from llmcli.models.tensor_list import TensorList
from tests.fixtures.gguf_edit import Gguf, Tensor
from tests.library_case import tiny

NAMES = st.binary(min_size=0, max_size=70) | st.from_regex(rb"blk\.[0-9]{1,2}\.ffn_up\.weight", fullmatch=True)
SHAPES = st.lists(st.sampled_from([0, 1, 2, 32, 33, 256]), max_size=5)
ENTRIES = st.tuples(NAMES, SHAPES, st.sampled_from([0, 1, 2, 4, 8, 30, 99]))


def found_in(path: Path) -> TensorList | str:
    try:
        return read_header(path).tensors
    except ModelError as error:
        return error.message


@settings(max_examples=150, deadline=None)
@given(entries=st.lists(ENTRIES, max_size=6))
def test_both_ways_agree(tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[bytes, list[int], int]]) -> None:
    path = tmp_path_factory.mktemp("tensors") / "m.gguf"
    model = Gguf().text("general.architecture", "llama")
    model.tensors += [Tensor(name, shape, type_id, b"", offset=0) for name, shape, type_id in entries]
    model.tail = bytes(1 << 12)
    model.write(path)
    quick = found_in(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_tensors, "_read_plain", lambda *_: False)
        assert found_in(path) == quick


def test_a_list_longer_than_one_look(tmp_path: Path) -> None:
    """Thousands of entries, odd ones in between: each is read once, in order."""
    model = tiny()
    model.tensors.clear()
    for number in range(3000):
        odd = number % 500 == 7
        name = f"blk.{number}.größe" if odd else f"blk.{number}.weight"
        model.tensors.append(Tensor(name.encode(), [32, 2] if odd else [64], 0, bytes(256)))
    tensors = read_header(model.write(tmp_path / "m.gguf")).tensors
    assert [tensor.name for tensor in tensors] == [entry.name.decode() for entry in model.tensors]
    assert {(tensor.shape, tensor.elements, tensor.nbytes) for tensor in tensors} == {
        ((64,), 64, 256),
        ((32, 2), 64, 256),
    }
    assert [tensor.offset for tensor in tensors] == [256 * number for number in range(3000)]


@pytest.mark.parametrize("name", [b"t 5", b"t\xc3\xa4", b"t" * 63, b"t" * 64, b"", b"t\0", b" ", b"t5"])
@pytest.mark.parametrize("at", [0, 7, 1999])
def test_one_odd_name_among_many(tmp_path: Path, name: bytes, at: int) -> None:
    model = tiny()
    model.tensors[:] = [Tensor(b"t%d" % number, [32], 0, bytes(128)) for number in range(2000)]
    model.tensors[at] = Tensor(name, [32], 0, bytes(128))
    path = model.write(tmp_path / "m.gguf")
    found = found_in(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_tensors, "_read_plain", lambda *_: False)
        assert found_in(path) == found
    assert isinstance(found, str) == (name in {b"t" * 64, b"", b"t\0", b"t5"})


def test_a_name_that_comes_again_far_behind(tmp_path: Path) -> None:
    model = tiny()
    model.tensors += [Tensor(b"t%d" % number, [32], 0, bytes(128)) for number in range(2000)]
    model.tensors.append(Tensor(b"t5", [32], 0, bytes(128)))
    with pytest.raises(ModelError, match="tensor 't5' is there twice"):
        read_header(model.write(tmp_path / "m.gguf"))
