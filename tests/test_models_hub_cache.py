"""The layout of the shared cache, and what is taken out of it again."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.base.files import file_lock
from llmcli.base.settings import load
from llmcli.models import checksum
from llmcli.models.hub_cache import (
    drop,
    free_bytes,
    link,
    make_folders,
    place,
    remove_outdated_parts,
    slot_of,
    write_ref,
)
from llmcli.models.hub_fetch import fetch_file
from llmcli.models.hub_listing import RemoteFile
from llmcli.models.progress import silent
from tests.fixtures.hub_stub import COMMIT, HubStub
from tests.pull_case import REPO, cache, gguf, hub, online

__all__ = ["hub", "online"]

DIGEST = "d" * 64


def test_a_part_becomes_a_model_in_one_step(tmp_path: Path) -> None:
    slot = slot_of(tmp_path, "o/r", COMMIT, "Q8_0/m.gguf", DIGEST)
    make_folders(slot)
    assert (slot.present, slot.half_bytes) == (None, 0)
    slot.part.write_bytes(b"GGUF")
    assert (slot.present, slot.half_bytes) == (None, 4)
    place(slot)
    assert slot.pointer == tmp_path / "models--o--r" / "snapshots" / COMMIT / "Q8_0" / "m.gguf"
    assert os.readlink(slot.pointer) == f"../../../blobs/{DIGEST}"
    assert slot.present == slot.blob
    assert sorted(p.name for p in slot.pointer.parent.iterdir()) == ["m.gguf"]
    link(slot)
    drop(slot)
    assert slot.present is None
    assert not os.path.lexists(slot.pointer)
    drop(slot)


def test_a_link_to_an_older_blob_is_replaced(tmp_path: Path) -> None:
    old = slot_of(tmp_path, "o/r", COMMIT, "m.gguf", "0" * 64)
    new = slot_of(tmp_path, "o/r", COMMIT, "m.gguf", DIGEST)
    for slot, data in ((old, b"old"), (new, b"new")):
        make_folders(slot)
        slot.part.write_bytes(data)
        place(slot)
    assert new.pointer.read_bytes() == b"new"
    assert old.blob.read_bytes() == b"old"


def test_many_parts_linked_at_once_each_get_their_own_bytes(tmp_path: Path) -> None:
    slots = [slot_of(tmp_path, "o/r", COMMIT, f"m-{n}.gguf", f"{n:064x}") for n in range(200)]
    for slot in slots:
        make_folders(slot)
        slot.part.write_bytes(slot.blob.name.encode())

    def place_some(at: int) -> None:
        for slot in slots[at::8]:
            place(slot)

    threads = [threading.Thread(target=place_some, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(slot.pointer.read_bytes() == slot.blob.name.encode() for slot in slots)
    assert len(list(slots[0].pointer.parent.iterdir())) == 200


@pytest.mark.parametrize(
    ("revision", "path"), [("main", "main"), ("refs/pr/1", "refs/pr/1"), (COMMIT, None), ("../../x", None), ("", None)]
)
def test_refs(tmp_path: Path, revision: str, path: str | None) -> None:
    write_ref(tmp_path, "o/r", revision, COMMIT)
    write_ref(tmp_path, "o/r", revision, COMMIT)
    found = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert found == ([tmp_path / "models--o--r" / "refs" / path] if path else [])
    assert all(p.read_text() == COMMIT for p in found)


def test_a_ref_that_cannot_be_written_is_left(tmp_path: Path) -> None:
    (tmp_path / "models--o--r").mkdir()
    (tmp_path / "models--o--r" / "refs").write_text("no folder")
    write_ref(tmp_path, "o/r", "main", COMMIT)
    assert (tmp_path / "models--o--r" / "refs").read_text() == "no folder"


def test_only_our_own_outdated_parts_go(tmp_path: Path) -> None:
    current, outdated, held, theirs = DIGEST, "0" * 64, "1" * 64, "2" * 64 + ".ab12cd34"
    folder = tmp_path / "models--o--r" / "blobs"
    folder.mkdir(parents=True)
    for name in (current, outdated, held, theirs):
        (folder / f"{name}.incomplete").write_bytes(b"x")
    (folder / outdated).write_bytes(b"a whole blob")
    lock = tmp_path / ".locks" / "models--o--r" / f"{held}.lock"
    lock.parent.mkdir(parents=True)
    with file_lock(lock):
        remove_outdated_parts(tmp_path, "o/r", [current])
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        [outdated, *(f"{name}.incomplete" for name in (current, held, theirs))]
    )
    remove_outdated_parts(tmp_path, "none/there", [])


def test_free_space_of_a_folder_to_come(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") is not None


def test_nothing_is_written_where_all_is_here(hub: HubStub) -> None:
    data = gguf()
    file = RemoteFile("Tiny-Q4_K_M.gguf", len(data), hub.add(REPO, "Tiny-Q4_K_M.gguf", data))
    assert fetch_file(REPO, COMMIT, file, load(), progress=silent, notify=pytest.fail).received
    shutil.rmtree(cache() / ".locks")
    before = sorted(cache().rglob("*"))
    assert not fetch_file(REPO, COMMIT, file, load(), progress=silent, notify=pytest.fail).received
    assert sorted(cache().rglob("*")) == before


def test_bytes_that_cannot_be_read_are_not_replaced(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    data = gguf()
    file = RemoteFile("Tiny-Q4_K_M.gguf", len(data), hub.add(REPO, "Tiny-Q4_K_M.gguf", data))
    path = fetch_file(REPO, COMMIT, file, load(), progress=silent, notify=pytest.fail).path

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checksum, "open", refuse, raising=False)
    with pytest.raises(ModelError, match=r"is here, and cannot be read: Permission denied$"):
        fetch_file(REPO, COMMIT, file, load(), progress=silent, notify=pytest.fail)
    assert path.read_bytes() == data


def test_the_hubs_own_tools_are_waited_for(hub: HubStub) -> None:
    from huggingface_hub.utils._fixes import WeakFileLock

    data = gguf()
    digest = hub.add(REPO, "Tiny-Q4_K_M.gguf", data)
    slot = slot_of(cache(), REPO, COMMIT, "Tiny-Q4_K_M.gguf", digest)
    make_folders(slot)
    notes: list[str] = []

    def fetch() -> None:
        file = RemoteFile("Tiny-Q4_K_M.gguf", len(data), digest)
        fetch_file(REPO, COMMIT, file, load(), progress=silent, notify=notes.append)

    thread = threading.Thread(target=fetch)
    with WeakFileLock(slot.lock):
        thread.start()
        while not notes:
            time.sleep(0.01)
        assert hub.requests == []
        slot.blob.write_bytes(data)  # as another tool leaves it
    thread.join(10)
    assert notes == ["waiting for another process that fetches Tiny-Q4_K_M.gguf"]
    assert hub.requests == []
    assert slot.pointer.read_bytes() == data
