"""A hub's list of files is hostile until shown otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from llmcli.models.hub_listing import RemoteFile, is_digest, is_safe_name, parse_repository

COMMIT, SHA = "a" * 40, "b" * 64


def listing(*rows: Any, **more: Any) -> dict[str, Any]:
    return {"id": "Own/Repo", "sha": COMMIT, "siblings": list(rows), **more}


def row(name: Any, plain_size: Any = 5, **lfs: Any) -> dict[str, Any]:
    return {"rfilename": name, "size": plain_size, "blobId": "c" * 40, "lfs": lfs or None}


@pytest.mark.parametrize("name", ["a.gguf", "UD-Q4_K_XL/a-00001-of-00002.gguf", "süß.gguf", "a b.gguf", ".a/b.gguf"])
def test_names_that_pass(name: str) -> None:
    assert is_safe_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("../evil.gguf", "a/../../b.gguf", "/tmp/x.gguf", "a//b.gguf", "a/./b.gguf", "", ".", "..", "a/", "C:x.gguf"),
        *("..\\x.gguf", "a\x1b[31m.gguf", "a\nb.gguf", "a\0b", "a\u202eb.gguf", "\udcff.gguf", "a/ /b", "x" * 250),
        *("a/" * 600 + "b", "...", "nul?.gguf"),
    ],
)  # fmt: skip
def test_names_that_do_not(name: str) -> None:
    assert not is_safe_name(name)


def test_what_is_taken() -> None:
    found = parse_repository(
        listing(row("a.gguf", 7, sha256=SHA, size=9), row("README.md"), gguf={"total": 1000}), "own/repo"
    )
    assert found.repo_id == "Own/Repo"
    assert found.commit == COMMIT
    assert found.n_params == 1000
    assert found.files == (RemoteFile("a.gguf", 9, SHA), RemoteFile("README.md", 5, "c" * 40))
    assert found.refused == ()


def test_what_is_left_out() -> None:
    rows = (
        *(row("../../evil.gguf"), row("x\x1b.gguf"), row(5), "x", None),
        *(row("a.gguf", -1), row("b.gguf", "9"), row("c.gguf", True), row("d.gguf", 1 << 60), row("e.gguf", None)),
        *(row("f.gguf", 1, sha256="../../x"), row("f.gguf", 2, sha256=SHA)),
    )
    found = parse_repository(listing(*rows, gguf={"total": "many"}, id="Other/Repo"), "Own/Repo")
    assert parse_repository(listing(row("g.gguf", size=7)), "o/r").files == (RemoteFile("g.gguf", 7, None),)
    assert found.refused == ("../../evil.gguf", "x\\x1b.gguf")
    assert found.files == (RemoteFile("f.gguf", 1, None),)  # the first of a name; a digest that is none is no path
    assert found.repo_id == "Own/Repo"
    assert found.n_params is None


@pytest.mark.parametrize(
    "data",
    [None, [], "x", {}, listing() | {"siblings": {}}, listing() | {"sha": "../../etc"}, listing() | {"sha": None}],
)
def test_what_is_no_listing(data: Any) -> None:
    with pytest.raises(ValueError, match=r"no (list of files|commit)"):
        parse_repository(data, "o/r")


def test_a_listing_without_end() -> None:
    with pytest.raises(ValueError, match="more than 50000 files"):
        parse_repository(listing(*[{}] * 50_001), "o/r")


@pytest.mark.parametrize(("text", "expected"), [(SHA, True), (COMMIT, True), (SHA.upper(), False), (SHA + "\n", False)])
def test_digests(text: str, expected: bool) -> None:
    assert is_digest(text) is expected
