"""Are these the bytes of the file, and is the file a model? Knows digests and GGUF headers, nothing of networks."""

from __future__ import annotations

import hashlib
from pathlib import Path

from llmcli.base.errors import ModelError
from llmcli.base.text import printable
from llmcli.models.gguf_header import read_header
from llmcli.models.gguf_source import shown
from llmcli.models.reference import SUFFIX
from llmcli.models.sniff import MAGIC, in_words, what_is

_SHA1_DIGITS = 40


class WrongBytesError(ModelError):
    """What came is not what was stated."""


class Checksum:
    """The digest of a file, fed piece by piece.

    expected  its sha256; or git's own sha1 of it, which a hub states for small files, and which begins with the size
    """

    def __init__(self, expected: str | None, size_bytes: int | None) -> None:
        self._expected = expected
        self._sha256 = hashlib.sha256()
        self._sha1 = None
        if expected and len(expected) == _SHA1_DIGITS and size_bytes is not None:
            self._sha1 = hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)

    @property
    def sha256(self) -> str:
        """Of what was fed so far."""
        return self._sha256.hexdigest()

    def update(self, piece: memoryview) -> None:
        """Feed the next bytes."""
        self._sha256.update(piece)
        if self._sha1:
            self._sha1.update(piece)

    def compare(self, name: str) -> None:
        """Raise WrongBytesError where the whole is not what was expected."""
        kind, got = ("sha1", self._sha1.hexdigest()) if self._sha1 else ("sha256", self.sha256)
        if self._expected is not None and got != self._expected:
            raise WrongBytesError(
                f"{name} came with wrong bytes: {kind} {got}, expected {self._expected}",
                hint="nothing of it was kept: try again, and tell the repository's owner if that does not help",
            )


def file_has(path: Path, expected: str | None, size_bytes: int | None) -> bool:
    """Whether the file is there with these bytes (None: not known).

    Raises ModelError for one that cannot be read: it may be right, and somebody else's, so it is not to be replaced.
    """
    try:
        if size_bytes is not None and path.stat().st_size != size_bytes:
            return False
        checksum = Checksum(expected, size_bytes)
        with open(path, "rb") as source:
            while chunk := source.read(1 << 20):
                checksum.update(memoryview(chunk))
        checksum.compare(path.name)
    except (FileNotFoundError, WrongBytesError):
        return False
    except OSError as error:
        raise ModelError(
            f"{printable(str(path))} is here, and cannot be read: {error.strerror}", hint="change its mode or remove it"
        ) from None
    return True


def refuse_other(start: bytes, name: str) -> None:
    """Raise ModelError where a file called .gguf does not start like one; the first few hundred bytes are enough."""
    if not name.lower().endswith(SUFFIX) or start.startswith(MAGIC):
        return
    found = what_is(start) or f"not a GGUF file: it starts with {in_words(start[:8])}, expected {in_words(MAGIC)}"
    hint = "check the address" if "Git LFS" in found else "a login page of the network, or a wrong address?"
    raise ModelError(f"what came as {printable(name)} is {found}", hint=hint)


def check_header(path: Path, name: str) -> None:
    """Raise ModelError unless the header of a file called .gguf is sound and its tensors lie within the file."""
    if not name.lower().endswith(SUFFIX):
        return
    try:
        read_header(path)
    except ModelError as error:
        said = error.message.replace(shown(path), printable(name))
        raise ModelError(f"what came is no usable model: {said}", hint="it is so on the server") from None
