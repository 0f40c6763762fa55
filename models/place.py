"""Putting a model file where it belongs: is there room, may we write, are the bytes the right ones.

Shared by the two ways a model arrives, the hub client and the package index.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from llmcli.base.errors import LlmcliError, ModelError, ResourceError
from llmcli.base.files import sha256_file
from llmcli.base.text import printable
from llmcli.base.units import exact, format_bytes
from llmcli.models.library import starts_like_gguf
from llmcli.models.sniff import MAGIC, in_words

_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_SLACK_BYTES = 1 << 20  # folders, locks and the names themselves


def require_free(folder: Path, needed_bytes: int, *, move_with: str) -> None:
    """Raise ResourceError where the disk of `folder` (which need not exist yet) has less room than `needed_bytes`.

    `move_with` names the setting that puts the folder elsewhere. A disk that does not tell its free space passes:
    the write itself then fails, and is reported.
    """
    try:
        free = shutil.disk_usage(_existing(folder)).free
    except OSError:
        return
    if free < needed_bytes + _SLACK_BYTES:
        raise ResourceError(
            f"not enough disk space at {printable(str(folder))}: "
            f"{format_bytes(needed_bytes + _SLACK_BYTES)} needed, {format_bytes(free)} free",
            hint=f"make room there, or set {move_with} to a folder on another disk",
        )


def as_disk_error(error: OSError, folder: Path, *, move_with: str) -> LlmcliError | None:
    """The error to report where `error` means a full disk, one that takes no file of this size, or a folder that
    cannot be written; None for any other.
    """
    where = printable(str(error.filename or folder))
    if error.errno in _FULL:
        return ResourceError(
            f"the disk is full at {where}", hint=f"make room there, or set {move_with} to a folder on another disk"
        )
    if error.errno == errno.EFBIG:
        return ResourceError(
            f"the file is too large for the disk at {where}",
            hint=f"FAT holds files up to 4 GiB, and ulimit -f may set a limit; or set {move_with} to another disk",
        )
    if error.errno in _UNWRITABLE:
        return LlmcliError(
            f"cannot write {where}: {error.strerror}", hint=f"set {move_with} to a folder that can be written"
        )
    return None


@contextlib.contextmanager
def disk_errors(folder: Path, *, move_with: str) -> Iterator[None]:
    """What goes wrong with `folder` inside, as an error for the user. Raises ResourceError (full) and LlmcliError."""
    try:
        yield
    except OSError as error:
        if found := as_disk_error(error, folder, move_with=move_with):
            raise found from None
        raise LlmcliError(f"cannot use {printable(str(folder))}: {error.strerror or error}") from None


def verify(path: Path, *, size_bytes: int | None, sha256: str | None) -> None:
    """Raise ModelError unless the file starts like a GGUF and has this size and digest (None: not known)."""
    where, got_bytes = printable(path.name), path.stat().st_size
    if not starts_like_gguf(path):
        with open(path, "rb") as source:
            start = source.read(8)
        words = f"it starts with {in_words(start)}, expected {in_words(MAGIC)}"
        raise ModelError(f"what came as {where} is not a GGUF file: {words}")
    if size_bytes is not None and got_bytes != size_bytes:
        raise ModelError(f"{where} came with {exact(got_bytes)}, expected {exact(size_bytes)}")
    if sha256 is not None and (got := sha256_file(path)) != sha256:
        raise ModelError(f"{where} came with wrong bytes: sha256 {got}, expected {sha256}")


def _existing(folder: Path) -> Path:
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder
