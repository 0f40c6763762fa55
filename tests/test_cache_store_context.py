from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore
from tests.cache_store_case import (  # noqa: F401
    FINGERPRINT,
    Told,
    no_waiting_for_the_disk,
    open_store,
    put,
)

TOKENS = list(range(300))


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_everything_is_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        with open_store(tmp_path / "s") as store:
            refs = put(store, TOKENS)
            store.keeper().name(refs[0], "n", pin=True)
            store.note(FINGERPRINT, {"a": 1})
            for file in (tmp_path / "s").rglob("*"):
                wanted = 0o700 if file.is_dir() else 0o600
                assert stat.S_IMODE(file.stat().st_mode) == wanted, file
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_an_open_folder_is_closed_but_the_users_own_root_is_left(tmp_path: Path) -> None:
    (tmp_path / "s" / "v1").mkdir(parents=True)
    os.chmod(tmp_path / "s", 0o755)
    os.chmod(tmp_path / "s" / "v1", 0o755)
    open_store(tmp_path / "s").close()
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "s" / "v1").stat().st_mode) == 0o700


def refused_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user without permission; tests may run as root, whom chmod does not stop."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)


def test_a_folder_that_cannot_be_written_still_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(tmp_path / "s") as store:
        put(store, TOKENS)
    before = {file: file.stat() for file in tmp_path.rglob("*")}
    refused_write(monkeypatch)
    told = Told()
    with open_store(tmp_path / "s", notify=told) as store:
        assert store.mode == "readonly"
        found = store.match(FINGERPRINT, TOKENS)
        assert found.matched_tokens == 300
        store.used(found.blocks, hit_tokens=300, miss_tokens=0, saved_s=1, read_bytes=1)
        store.note(FINGERPRINT, {"a": 1})
        assert store.put(FINGERPRINT, None, [1], {"attn": b"x"}).refused == "readonly"
    place = f"the prefix store at {tmp_path / 's'}"
    assert told == [f"{place} cannot be written (no permission to write); nothing is saved"]
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == {
        file: facts.st_mtime_ns for file, facts in before.items()
    }


@pytest.mark.parametrize("kind", ["file", "below a file", "link", "not made", "long name"])
def test_a_place_that_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    root = tmp_path / "s"
    if kind == "file":
        root.write_text("x")
    elif kind == "below a file":
        (tmp_path / "f").write_text("x")
        root = tmp_path / "f" / "s"
    elif kind == "long name":
        root = tmp_path / ("s" * 300)
    elif kind == "link":
        root.mkdir()
        (tmp_path / "elsewhere").mkdir()
        (root / "v1").symlink_to(tmp_path / "elsewhere")
    else:

        def refuse(self: Path, **_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "mkdir", refuse)
    told = Told()
    with PrefixStore.open(root, Policy(), notify=told) as store:
        assert store.mode == "off"
        assert store.match(FINGERPRINT, TOKENS).miss_reason == "off"
        assert store.put(FINGERPRINT, None, [1], {"attn": b"x"}).refused == "off"
        store.note(FINGERPRINT, {"a": 1})
        assert store.notes(FINGERPRINT) == {}
    assert len(told) == 1
    assert told[0].endswith("going on without it")


def test_another_users_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(tmp_path / "s").close()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    told = Told()
    with PrefixStore.open(tmp_path / "s", Policy(), notify=told) as store:
        assert store.mode == "off"
    assert "it belongs to another user" in told[0]


def test_readonly_creates_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", readonly=True) as store:
        assert store.match(FINGERPRINT, TOKENS).miss_reason == "nothing_stored"
        assert store.put(FINGERPRINT, None, [1], {"attn": b"x"}).refused == "readonly"
    (tmp_path / "s").write_text("x")
    with open_store(tmp_path / "s", readonly=True) as store:
        assert store.match(FINGERPRINT, TOKENS).miss_reason == "nothing_stored"
    assert [file.name for file in tmp_path.iterdir()] == ["s"]


def test_opening_twice_in_one_process(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as one, open_store(tmp_path / "s") as two:
        put(one, TOKENS)
        put(two, [1, *TOKENS])
        assert two.match(FINGERPRINT, TOKENS).matched_tokens == 300
        assert one.keeper().stats().blocks == 4
