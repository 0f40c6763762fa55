"""Is a model still what it was: its header and tensors, and the sha256 of its bytes against whatever states one.

Without the network. What states a digest: the name of a blob in the Hugging Face cache, which is the hub's own sha256
of it (or, for what is kept in git itself, git's sha1); the default model's, which llmcli knows; and what was found
when the same unchanged file was first used here, which shows bytes that went bad on the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from llmcli.base.errors import ModelError
from llmcli.base.files import CHUNK_BYTES
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.models.checksum import Checksum, WrongBytesError
from llmcli.models.default_model import BUILT_IN
from llmcli.models.identity import known_content_id
from llmcli.models.library import REPO_PREFIX, own_folder

_BLOB = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One file of a model.

    expected   the digest that is stated for it, None where nothing states one; stated_by says who does
    matches    None where there is nothing to compare with
    """

    path: Path
    size_bytes: int
    sha256: str
    expected: str | None
    stated_by: str | None
    matches: bool | None


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on a model.

    problem      what is wrong with the header, the vocabulary or the extents of the tensors
    as_before    whether the bytes are those of the first use here; None where it was not used, or changed since
    """

    path: Path
    files: tuple[FileCheck, ...]
    n_tensors: int
    problem: str | None
    as_before: bool | None

    @property
    def is_sound(self) -> bool:
        """Nothing speaks against it."""
        return self.problem is None and self.as_before is not False and all(f.matches is not False for f in self.files)

    @property
    def is_proven(self) -> bool:
        """Every byte was compared with a digest."""
        return self.is_sound and (self.as_before is True or all(file.matches for file in self.files))


def verify_model(path: Path, settings: Settings, *, on_bytes: Callable[[int, int], None]) -> Verification:
    """Check the model at `path`, any of its parts. `on_bytes` is told (bytes hashed, bytes in all).

    Raises ModelError where there is no header to be read, or a file cannot be.
    """
    from llmcli.models.check import check_headers
    from llmcli.models.gguf_header import read_header
    from llmcli.models.shards import read_shards

    headers = read_shards(read_header(path))
    problem: str | None = None
    try:
        check_headers(headers, need_vocabulary=False)
    except ModelError as error:
        problem = error.message
    known = known_content_id(path, settings)
    files = tuple(_checked([header.path for header in headers], settings, on_bytes))
    as_before = None if known is None else known == _content_id(files)
    return Verification(path, files, sum(len(header.tensors) for header in headers), problem, as_before)


def _checked(paths: Sequence[Path], settings: Settings, on_bytes: Callable[[int, int], None]) -> Iterator[FileCheck]:
    done, total = 0, sum(os.stat(path).st_size for path in paths)
    for path in paths:
        size, (expected, stated_by) = os.stat(path).st_size, _stated(path, settings)
        checksum = Checksum(expected, size)
        try:
            with open(path, "rb") as source:
                while chunk := source.read(CHUNK_BYTES):
                    checksum.update(memoryview(chunk))
                    done += len(chunk)
                    on_bytes(done, total)
        except OSError as error:
            raise ModelError(f"{printable(str(path))} cannot be read: {error.strerror}") from None
        yield FileCheck(path, size, checksum.sha256, expected, stated_by, _matches(checksum, expected, path))


def _matches(checksum: Checksum, expected: str | None, path: Path) -> bool | None:
    if expected is None:
        return None
    try:
        checksum.compare(path.name)
    except WrongBytesError:
        return False
    return True


def _stated(path: Path, settings: Settings) -> tuple[str | None, str | None]:
    """(digest, who states it)."""
    blob = Path(os.path.realpath(path))
    if blob.parent.name == "blobs" and blob.parent.parent.name.startswith(REPO_PREFIX) and _BLOB.match(blob.name):
        return blob.name, "the hub"
    for model in BUILT_IN.values():
        if path.name == model.file and blob == Path(os.path.realpath(own_folder(settings) / model.file)):
            return model.sha256, "llmcli"
    return None, None


def _content_id(files: Sequence[FileCheck]) -> str:
    """As identity.py makes it."""
    if len(files) == 1:
        return files[0].sha256
    return hashlib.sha256(b"".join(bytes.fromhex(file.sha256) for file in files)).hexdigest()
