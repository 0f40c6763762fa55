"""Where a file of the hub lies in the Hugging Face cache, laid out so that every other tool finds it.

models--OWNER--NAME/blobs/DIGEST               the bytes, by what they are
models--OWNER--NAME/blobs/DIGEST.incomplete    half of them; nothing takes that for a model
models--OWNER--NAME/snapshots/COMMIT/FILE      a link to the blob; where links are not to be had, the file itself
models--OWNER--NAME/refs/REVISION              the commit that a branch or tag meant when it was asked for
.locks/models--OWNER--NAME/DIGEST.lock         held by whoever fetches it, the hub's own tools included

What is not a file of the hub is not known here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from llmcli.base.bounded_file import read_bounded
from llmcli.base.errors import ResourceError
from llmcli.base.files import atomic_write, file_lock
from llmcli.base.records import dataclass
from llmcli.models.hub_listing import is_safe_name
from llmcli.models.library import REF_BYTES, REPO_PREFIX

PART_SUFFIX = ".incomplete"


@dataclass(frozen=True, slots=True)
class Slot:
    """The places of one file."""

    blob: Path
    part: Path
    pointer: Path
    lock: Path

    @property
    def present(self) -> Path | None:
        """Where its bytes are, if they are; whether they are the right ones is not looked at."""
        return next((path for path in (self.blob, self.pointer) if os.path.isfile(path)), None)

    @property
    def half_bytes(self) -> int:
        """How much of it an earlier try left."""
        try:
            return self.part.stat().st_size
        except OSError:
            return 0


def repo_folder(cache: Path, repo_id: str) -> Path:
    """The folder of a repository."""
    return cache / (REPO_PREFIX + repo_id.replace("/", "--"))


def slot_of(cache: Path, repo_id: str, commit: str, name: str, digest: str) -> Slot:
    """The places of a file. `name`, `commit` and `digest` must have been checked: they become paths."""
    folder = repo_folder(cache, repo_id)
    blob = folder / "blobs" / digest
    return Slot(
        blob=blob,
        part=blob.with_name(digest + PART_SUFFIX),
        pointer=folder.joinpath("snapshots", commit, *name.split("/")),
        lock=cache / ".locks" / folder.name / f"{digest}.lock",
    )


def make_folders(slot: Slot) -> None:
    """The folders to write into."""
    for path in (slot.blob, slot.lock):
        path.parent.mkdir(parents=True, exist_ok=True)


def place(slot: Slot) -> None:
    """Give the whole, checked part its name: first the bytes, then the link that makes them a model."""
    os.replace(slot.part, slot.blob)
    link(slot)


def link(slot: Slot) -> None:
    """Make the file of the snapshot the blob, replacing what is there in one step."""
    if not slot.blob.is_file() or is_linked(slot):
        return
    slot.pointer.parent.mkdir(parents=True, exist_ok=True)
    # A name for each file: parts of one model are linked side by side, and each under the lock of its own bytes.
    temp = slot.pointer.with_name(f".{slot.pointer.name}.link")
    with contextlib.suppress(FileNotFoundError):
        temp.unlink()
    try:
        os.symlink(os.path.relpath(slot.blob, slot.pointer.parent), temp)
    except OSError:  # Windows without the right to, or a file system without links
        os.replace(slot.blob, slot.pointer)
        return
    os.replace(temp, slot.pointer)


def is_linked(slot: Slot) -> bool:
    """Whether the file of the snapshot is the blob, and the blob is there."""
    return os.path.isfile(slot.blob) and os.path.realpath(slot.pointer) == os.path.realpath(slot.blob)


def drop(slot: Slot) -> None:
    """Take out a file that has wrong bytes: first the name, then what it points at."""
    for path in (slot.pointer, slot.blob):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def write_ref(cache: Path, repo_id: str, revision: str, commit: str) -> None:
    """Note what a branch or tag means now. A commit needs no note, and an odd name gets none.

    Where it cannot be written the model is found all the same: it is no reason to fail when all is here.
    """
    if revision == commit or not is_safe_name(revision):
        return
    path = repo_folder(cache, repo_id).joinpath("refs", *revision.split("/"))
    with contextlib.suppress(OSError):
        if read_bounded(path, REF_BYTES) == commit.encode():
            return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Waiting for the disk here would be waiting for the model that was just written.
        atomic_write(path, commit.encode(), mode=0o644, durable=False)


def remove_outdated_parts(cache: Path, repo_id: str, current: Iterable[str]) -> None:
    """Remove half files of ours whose digest the repository no longer has, unless somebody is at one just now."""
    folder, keep = repo_folder(cache, repo_id), set(current)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder / "blobs"):
            digest = name.removesuffix(PART_SUFFIX)
            # The hub's own tools put a random part between the two: those files are theirs.
            if name.endswith(PART_SUFFIX) and digest not in keep and "." not in digest:
                lock = cache / ".locks" / folder.name / f"{digest}.lock"
                lock.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(ResourceError), file_lock(lock, timeout_s=0):
                    (folder / "blobs" / name).unlink()


def free_bytes(folder: Path) -> int | None:
    """Free space on the disk of `folder`, which need not exist yet; None where the disk does not tell."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
