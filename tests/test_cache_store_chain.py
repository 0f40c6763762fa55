from __future__ import annotations

from pathlib import Path

from llmcli.cache_store.chain import climb
from llmcli.cache_store.keys import Key
from llmcli.cache_store.layout import Layout
from tests.cache_store_case import open_store, put

LONG = list(range(1000))


def test_climb_needs_no_index(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    refs = put(store, LONG)
    layout = Layout(tmp_path / "s")
    assert climb(layout, refs[-1].key, refs[-1].parent) == refs
    assert climb(layout, refs[0].key, refs[0].parent) == refs[:1]
    assert climb(layout, refs[0].key, refs[1].parent) is None
    assert climb(layout, Key(b"x" * 32), refs[1].parent) is None
    Path(refs[1].path).unlink()
    assert climb(layout, refs[-1].key, refs[-1].parent) is None
