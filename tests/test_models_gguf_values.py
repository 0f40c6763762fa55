"""Arrays of the metadata, as the bytes that the file has."""

from __future__ import annotations

import struct

import pytest

from llmcli.models.gguf_values import READERS, TYPE_NAMES, GgufArray


def test_numbers() -> None:
    assert GgufArray("i16", 3, struct.pack("<3h", -1, 0, 7)).values() == (-1, 0, 7)
    assert GgufArray("f64", 1, struct.pack("<d", 0.1)).values() == (0.1,)
    assert GgufArray("bool", 2, b"\0\1").values() == (False, True)
    assert GgufArray("u64", 0, b"").values() == ()


def test_strings() -> None:
    data = struct.pack("<Q", 2) + b"ab" + struct.pack("<Q", 0) + struct.pack("<Q", 1) + b"\xff"
    assert GgufArray("str", 3, data).strings() == [b"ab", b"", b"\xff"]


def test_every_type_has_a_name_and_a_size() -> None:
    assert sorted(TYPE_NAMES) == list(range(13))
    sizes = {TYPE_NAMES[number]: reader.size for number, reader in READERS.items()}
    assert sizes == {"u8": 1, "i8": 1, "u16": 2, "i16": 2, "u32": 4, "i32": 4, "f32": 4, "bool": 1} | {
        "u64": 8,
        "i64": 8,
        "f64": 8,
    }


def test_arrays_are_asked_for_what_they_hold() -> None:
    with pytest.raises(TypeError, match="array of u8 holds no strings"):
        GgufArray("u8", 1, b"a").strings()
    with pytest.raises(TypeError, match="array of str holds no numbers"):
        GgufArray("str", 0, b"").values()


@pytest.mark.parametrize("most", [0, 1, 2, 3, 9])
def test_the_first_elements(most: int) -> None:
    numbers = GgufArray("u16", 3, struct.pack("<3H", 7, 8, 9))
    assert numbers.first(most).values() == (7, 8, 9)[:most]
    words = GgufArray("str", 3, b"".join(struct.pack("<Q", len(word)) + word for word in (b"a", b"", b"ccc")))
    assert words.first(most).strings() == [b"a", b"", b"ccc"][:most]
    assert GgufArray("u8", 0, b"").first(most).values() == ()
