"""What is known about each fingerprint: its description, and notes that were learnt while using it.

The description lets a miss be explained ("stored with another KV type"); it is checked against the digest in the
file's name. Notes are plain numbers and words by name: measured rates, the result of a self-test. They decide what is
believed, so they carry a checksum over themselves and their fingerprint: notes that were damaged, or swapped with those
of another one, are none. Both are small files, readable in a few microseconds without the index, and outlive it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import xxhash

from llmcli.cache_store.block_file import read_small, remove, replace_file
from llmcli.cache_store.keys import Fingerprint, Scalar
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.writers import Writer

_MAX_FILE_BYTES = 64 << 10
MAX_KNOWN = 256  # more descriptions than this are not looked at when a miss is explained


class Fingerprints:
    """The fingerprints of one store."""

    def __init__(self, layout: Layout, writer: Writer) -> None:
        self._layout = layout
        self._writer = writer
        self._written: set[bytes] = set()

    def remember(self, fingerprint: Fingerprint) -> None:
        """Write the description unless it is there. Raises OSError."""
        if fingerprint.digest in self._written:
            return
        path = self._path(fingerprint.digest, ".json")
        if _read_scalars(path) != dict(fingerprint.description):
            self._replace(path, fingerprint.description)
        self._written.add(fingerprint.digest)

    def get(self, digest: bytes) -> Fingerprint | None:
        """The fingerprint with this digest; None where its description is missing or not its own."""
        with contextlib.suppress(ValueError):
            found = Fingerprint.of(_read_scalars(self._path(digest, ".json")))
            return found if found.digest == digest else None
        return None

    def all(self) -> list[Fingerprint]:
        """Known fingerprints, at most MAX_KNOWN."""
        with contextlib.suppress(OSError):
            stems = sorted(n.removesuffix(".json") for n in os.listdir(self._layout.fingerprints) if len(n) == 69)
            found = (self.get(bytes.fromhex(stem)) for stem in stems[:MAX_KNOWN] if _is_hex(stem))
            return [fingerprint for fingerprint in found if fingerprint]
        return []

    def notes(self, digest: bytes) -> Mapping[str, Scalar]:
        """What was learnt under this fingerprint; empty where nothing was or it cannot be read."""
        found = _read_object(self._path(digest, ".notes"))
        notes = _scalars(found.get("notes"))
        return notes if found.get("checksum") == _checksum(digest, notes) else {}

    def note(self, digest: bytes, learnt: Mapping[str, Scalar]) -> None:
        """Add to the notes; the last writer wins. Raises OSError."""
        known = self.notes(digest)
        notes = {**known, **learnt}
        if notes != known:
            self._replace(self._path(digest, ".notes"), {"notes": notes, "checksum": _checksum(digest, notes)})

    def forget(self, digest: bytes) -> None:
        """Remove description and notes."""
        self._written.discard(digest)
        for suffix in (".json", ".notes"):
            remove(self._path(digest, suffix))

    def _path(self, digest: bytes, suffix: str) -> Path:
        return self._layout.fingerprints / (digest.hex() + suffix)

    def _replace(self, path: Path, fields: Mapping[str, object]) -> None:
        replace_file(path, self._writer.temp_path(path.parent), _to_json(fields))


def _is_hex(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _to_json(fields: Mapping[str, object]) -> bytes:
    return json.dumps(dict(fields), sort_keys=True, allow_nan=False).encode()


def _checksum(digest: bytes, notes: Mapping[str, Scalar]) -> str:
    return xxhash.xxh3_128_hexdigest(digest + _to_json(notes))


def _read_scalars(path: Path) -> dict[str, Scalar]:
    """The scalars in a JSON object; empty where the file is missing, too large or something else."""
    return _scalars(_read_object(path))


def _scalars(fields: object) -> dict[str, Scalar]:
    return {k: v for k, v in fields.items() if _is_scalar(v)} if isinstance(fields, dict) else {}


def _read_object(path: Path) -> dict[str, object]:
    try:
        fields = json.loads(read_small(path, _MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _is_scalar(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int | bool)
