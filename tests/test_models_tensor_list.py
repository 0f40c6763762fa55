"""The tensors of a file: columns that look like a sequence of entries, made once and only when asked for."""

from __future__ import annotations

import pytest

from llmcli.models import tensor_list
from llmcli.models.tensor_list import GgufTensor, Kind, TensorList

KINDS: list[Kind] = [((32, 2), 0, 256), ((64,), 8, 68)]
WHOLE = [GgufTensor("a.weight", (32, 2), 0, 0, 256), GgufTensor("gr\udcf6sse", (64,), 8, 256, 68)]


def some() -> TensorList:
    return TensorList([b"a.weight", b"gr\xf6sse"], KINDS, [0, 256])


def test_a_sequence_of_entries() -> None:
    found = some()
    assert list(found) == WHOLE
    assert [tensor.elements for tensor in found] == [64, 64]
    assert (len(found), found[0], found[-1], found[1:]) == (2, WHOLE[0], WHOLE[1], tuple(WHOLE[1:]))
    assert WHOLE[1] in found
    assert not TensorList([], [], [])
    with pytest.raises(IndexError):
        found[2]


def test_equal_lists_are_equal() -> None:
    assert some() == some()
    assert hash(some()) == hash(some())
    assert some() != TensorList([b"a.weight", b"gr\xf6sse"], KINDS, [0, 288])
    assert some() != WHOLE


def test_entries_are_made_once_and_not_for_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    found = some()
    made: list[str] = []

    def counting(name: str, *_: object) -> str:
        made.append(name)
        return name

    monkeypatch.setattr(tensor_list, "GgufTensor", counting)
    assert (found.kinds, found.offsets, len(found), made) == (KINDS, [0, 256], 2, [])
    assert found[0] is found[0]
    assert made == ["a.weight", "gr\udcf6sse"]
