"""Real paths: what the standard library says, of any tangle of links."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcli.base.real_paths import RealPaths

NAMES = ("a", "b", "c", "d")
TARGETS = st.sampled_from(["a", "b", "c/d", "../b", "../c/a", ".", "..", "gone", "/", "a/../b", "./a", "c/"])


def test_files_in_linked_folders_and_linked_files(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "f00"
    blob.parent.mkdir()
    blob.write_bytes(b"x")
    (tmp_path / "snapshots" / "one").mkdir(parents=True)
    (tmp_path / "snapshots" / "one" / "m.gguf").symlink_to("../../blobs/f00")
    (tmp_path / "here").symlink_to(tmp_path / "snapshots")
    paths = RealPaths()
    for path in (blob, tmp_path / "snapshots/one/m.gguf", tmp_path / "here/one/m.gguf"):
        assert paths.of(str(path)) == os.path.realpath(blob)
    assert paths.of(str(tmp_path / "here/none/of/this")) == os.path.realpath(tmp_path / "snapshots/none/of/this")


def test_a_ring_of_links_and_a_long_chain(tmp_path: Path) -> None:
    (tmp_path / "ring").symlink_to("ring")
    (tmp_path / "link0").symlink_to("end")
    for number in range(20):
        (tmp_path / f"link{number + 1}").symlink_to(f"link{number}")
    for name in ("ring", "link3", "link20"):
        assert RealPaths().of(str(tmp_path / name)) == os.path.realpath(tmp_path / name)


@pytest.mark.parametrize("path", ["", ".", "..", "/", "/..", "some", "some/../thing", "//x", "a/", "a/."])
def test_odd_paths(path: str) -> None:
    assert RealPaths().of(path) == os.path.realpath(path)


@settings(max_examples=60, deadline=None)
@given(
    links=st.lists(TARGETS, min_size=len(NAMES), max_size=len(NAMES)),
    asked=st.lists(st.sampled_from(NAMES), max_size=4),
)
def test_any_tangle(tmp_path_factory: pytest.TempPathFactory, links: Sequence[str], asked: Sequence[str]) -> None:
    root = tmp_path_factory.mktemp("links")
    for name, target in zip(NAMES, links, strict=True):
        (root / name).symlink_to(target)
    paths = RealPaths()
    for depth in range(len(asked) + 1):
        path = os.path.join(root, *asked[:depth])
        assert paths.of(path) == os.path.realpath(path)


def test_folders_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = os.path.realpath

    def counting(path: str) -> str:
        asked.append(path)
        return real(path)

    monkeypatch.setattr(os.path, "realpath", counting)
    paths = RealPaths()
    for number in range(5):
        paths.of(str(tmp_path / f"m{number}"))
    assert asked == [str(tmp_path)]
