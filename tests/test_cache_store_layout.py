from __future__ import annotations

from pathlib import Path

from llmcli.cache_store.keys import Key
from llmcli.cache_store.layout import BlockName, Layout, parse_block_name

P, K = Key(bytes(range(32))), Key(bytes(range(100, 132)))
NAME = f"{P.hex()}-{K.hex()}.kv"


def test_a_name_is_parent_and_key_and_back(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert layout.block(P, K) == str(tmp_path / "v1" / "blocks" / "00" / NAME)
    assert parse_block_name(NAME) == BlockName(P, K)
    for other in ("x" + NAME, NAME + "\n", NAME.upper(), NAME[:-3], ".tmp-1", "", "../" + NAME):
        assert parse_block_name(other) is None


def test_children_are_found_by_name_alone(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert layout.children(P, max_seen=10, max_found=10) == ([], True)
    folder = Path(layout.shard(P))
    folder.mkdir(parents=True)
    keys = [Key(bytes([n]) * 32) for n in range(5)]
    for key in keys:
        Path(layout.block(P, key)).touch()
    other = Key(P[:1] + b"\xff" * 31)  # another parent in the same folder
    Path(layout.block(other, K)).touch()
    (folder / f"{P.hex()}-junk.kv").touch()
    found, complete = layout.children(P, max_seen=100, max_found=100)
    assert (sorted(found), complete) == (keys, True)
    found, complete = layout.children(P, max_seen=100, max_found=3)
    assert (len(found), complete) == (3, False)
    assert layout.children(P, max_seen=2, max_found=100)[1] is False


def test_all_blocks_and_other_formats(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    Path(layout.shard(P)).mkdir(parents=True)
    Path(layout.block(P, K)).touch()
    (layout.blocks / "stray").touch()
    for name in ("v2", "v10", "vx", "other"):
        (tmp_path / name).mkdir()
    assert list(layout.all_blocks()) == [(BlockName(P, K), layout.block(P, K))]
    assert sorted(folder.name for folder in layout.other_formats()) == ["v10", "v2"]
