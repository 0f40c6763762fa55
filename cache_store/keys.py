"""What a block is called: fingerprints, salts and the chain of keys.

    root key  = sha256(format version, "root", fingerprint, salt)
    block key = sha256(format version, "block", fingerprint, salt, parent key, exactness, tokens)

Every field is preceded by its length and every digest by its purpose, so no two different inputs give the same
bytes to hash. A block's parent is the block before it, or the root key of its (fingerprint, salt), so a key names
all tokens from position 0 on. Token ids are little-endian int32, as in the C API of llama.cpp.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import NewType

from llmcli.base.records import dataclass

FORMAT_VERSION = 1
BLOCK_TOKENS = 256
GRID_TOKENS = 64  # restores end at multiples of it, counted from position 0: there a cold prefill may be cut
TOKEN_BYTES = 4

Key = NewType("Key", bytes)
KEY_BYTES = 32
NO_KEY = Key(bytes(KEY_BYTES))

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything besides the tokens that decides what the bytes of a block mean.

    description   JSON-able facts by name. The names `model`, `build`, `type_k`, `type_v` get a miss reason of their
                  own; every other one counts as a setting. The digest is that of the description alone.
    """

    digest: bytes
    description: Mapping[str, Scalar]

    @classmethod
    def of(cls, description: Mapping[str, Scalar]) -> Fingerprint:
        """The fingerprint of these facts; their order does not matter. Raises ValueError for NaN or infinity."""
        text = json.dumps(dict(description), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return cls(_digest(b"fingerprint", text.encode()), dict(description))

    def differences(self, other: Fingerprint) -> tuple[tuple[str, Scalar, Scalar], ...]:
        """(name, value here, value there) of every fact that is not the same; None stands for an absent one."""
        names = sorted({*self.description, *other.description})
        pairs = ((name, self.description.get(name), other.description.get(name)) for name in names)
        return tuple((name, here, there) for name, here, there in pairs if here != there)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A fingerprint and a salt: the two things that keep chains of the same tokens apart."""

    fingerprint: bytes
    salt: bytes

    @classmethod
    def of(cls, fingerprint: Fingerprint, salt: str) -> Namespace:
        """The namespace of `fingerprint` for the tenant `salt`."""
        return cls(fingerprint.digest, salt_digest(salt))

    @property
    def root(self) -> Key:
        """The key that stands for "no tokens yet"."""
        return _root(self.fingerprint, self.salt)

    def key(self, parent: Key, tokens: bytes, *, exact: bool) -> Key:
        """The key of the block that continues `parent` with `tokens` (packed by `pack_tokens`)."""
        digest = _block_start(self.fingerprint, self.salt).copy()
        exactness = b"\1" if exact else b"\0"
        digest.update(b"".join((_field(parent), _field(exactness), len(tokens).to_bytes(4, "little"), tokens)))
        return Key(digest.digest())


def salt_digest(salt: str) -> bytes:
    """The 32 bytes that stand for a salt in keys and files: the text itself is never written."""
    return _digest(b"salt", salt.encode("utf-8", "surrogatepass"))


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian int32. Raises OverflowError where one does not fit."""
    packed = array("i", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """The ids that `pack_tokens` packed."""
    ids = array("i", packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return tuple(ids)


def sortable(packed: bytes) -> bytes:
    """The same ids as big-endian int32: their byte order is then their order as sequences of ids."""
    ids = array("i", packed)
    if sys.byteorder == "little":
        ids.byteswap()
    return ids.tobytes()


def common_tokens(one: bytes, two: bytes) -> int:
    """How many tokens two packed sequences share from their start."""
    size = min(len(one), len(two))
    if one[:size] == two[:size]:
        return size // TOKEN_BYTES
    differs = int.from_bytes(one[:size], "little") ^ int.from_bytes(two[:size], "little")
    lowest_set_bit = (differs & -differs).bit_length() - 1
    return lowest_set_bit // (8 * TOKEN_BYTES)


def _field(value: bytes) -> bytes:
    return len(value).to_bytes(4, "little") + value


def _start(purpose: bytes, *fields: bytes) -> hashlib._Hash:
    parts = (b"llmcli prefix store", FORMAT_VERSION.to_bytes(4, "little"), purpose, *fields)
    return hashlib.sha256(b"".join(map(_field, parts)))


def _digest(purpose: bytes, *fields: bytes) -> bytes:
    return _start(purpose, *fields).digest()


# One namespace is used for hundreds of keys in a row.
@functools.lru_cache(maxsize=64)
def _root(fingerprint: bytes, salt: bytes) -> Key:
    return Key(_digest(b"root", fingerprint, salt))


@functools.lru_cache(maxsize=64)
def _block_start(fingerprint: bytes, salt: bytes) -> hashlib._Hash:
    return _start(b"block", fingerprint, salt)
