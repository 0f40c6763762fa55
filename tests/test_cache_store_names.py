from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmcli.base.errors import UsageError
from llmcli.cache_store.keys import Key
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.names import Names
from llmcli.cache_store.writers import Writer

K, P = Key(b"k" * 32), Key(b"p" * 32)


@pytest.fixture
def names(tmp_path: Path) -> Names:
    layout = Layout(tmp_path)
    for folder in layout.folders():
        folder.mkdir()
    return Names(layout, Writer(layout))


def test_save_get_replace_remove(names: Names, tmp_path: Path) -> None:
    saved = names.save("contract 2024 é", K, P, pinned=True)
    assert names.get("contract 2024 é") == saved
    assert (saved.key, saved.parent, saved.pinned) == (K, P, True)
    names.save("other", P, K, pinned=False)
    assert [name.name for name in names.all()] == ["contract 2024 é", "other"]
    assert names.pinned() == {K}
    names.save("contract 2024 é", K, P, pinned=False)
    assert names.pinned() == frozenset()
    assert names.remove("other")
    assert not names.remove("other")
    assert names.get("other") is None
    assert len(list((tmp_path / "v1" / "names").iterdir())) == 1


@pytest.mark.parametrize("bad", ["", "a" * 101, "é" * 51, "a\nb", "\x1b[31m", " a", "a ", "\0"])
def test_bad_names(names: Names, bad: str) -> None:
    with pytest.raises(UsageError, match="cannot be a prefix name"):
        names.save(bad, K, P, pinned=False)
    assert names.get(bad) is None


def test_names_cannot_leave_their_folder(names: Names, tmp_path: Path) -> None:
    names.save("../../../x", K, P, pinned=False)
    assert [file.name for file in (tmp_path / "v1" / "names").iterdir()] == [b"../../../x".hex()]


def test_foreign_and_hostile_files_are_no_names(names: Names, tmp_path: Path) -> None:
    folder = tmp_path / "v1" / "names"
    good = {"name": "a", "key": K.hex(), "parent": P.hex(), "pinned": True, "created_s": 1}
    hostile: list[dict[str, object]] = [
        {"key": "00"},
        {"name": "b"},
        {"name": 3},
        {"created_s": "x"},
        {"parent": None},
        {"key": "zz" * 32},
    ]
    for number, change in enumerate(hostile):
        (folder / ("a" * number + "61")).write_text(json.dumps({**good, **change}))
    (folder / "62").write_text("[" * 4000)
    (folder / "63").write_bytes(b"\xff\0")
    (folder / "64").mkdir()
    assert names.all() == []
    (folder / "61").write_text(json.dumps(good))
    assert [name.name for name in names.all()] == ["a"]
