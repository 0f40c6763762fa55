"""Which model a path is: its facts and the sha256 of its bytes, worked out once and remembered.

Hashing and checking a model takes seconds, so the result is kept under the cache folder, one small file for each
model, and counts as long as every file of the model is the same by (real path, device, inode, size, time of the last
change of contents and of metadata). Names are never trusted for contents, not even those of the Hugging Face cache,
which are meant to be digests. A memo that is damaged, unwritable or of another version costs time, never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmcli.base.bounded_file import read_bounded
from llmcli.base.errors import ModelError
from llmcli.base.files import CHUNK_BYTES, atomic_write, make_private_dir
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.models.facts import ModelFacts, facts_from_json, require_vocabulary
from llmcli.models.file_identity import FileIdentity, file_identity
from llmcli.models.gguf_source import open_regular, shown
from llmcli.models.reference import shard_of

# To be raised when check.py refuses more than before or ModelFacts changes: memos of the old kind are then no use.
MEMO_VERSION = 2
_MEMO_FOLDER = "models"
_MEMO_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Inspected:
    """A model that was checked and hashed.

    path        the file to hand to llama.cpp: the model, or its first shard
    content_id  sha256 of the file's bytes in hex; of a split model the sha256 of its shards' digests, in order
    """

    path: Path
    facts: ModelFacts
    content_id: str


def inspect_model(
    path: Path,
    settings: Settings,
    *,
    on_hash: Callable[[int, int], None] | None = None,
    need_vocabulary: bool = True,
) -> Inspected:
    """Check and identify the model at `path` (any of its shards), or recall what was found for the same files.

    on_hash   told (bytes done, bytes in all) while the files are hashed; not called where the result is remembered
    Raises ModelError as check_model does, and where a file changes while it is read.
    """
    absolute = Path(os.path.abspath(path))
    memo = _memo_path(absolute, settings)
    found = _recall(memo, absolute)
    if found is None:
        found, files = _inspect(absolute, on_hash)
        _remember(memo, found, files)
    if need_vocabulary:
        require_vocabulary(found.facts)
    return found


def known_content_id(path: Path, settings: Settings) -> str | None:
    """The content id of the model at `path` where it was worked out before and no file has changed since."""
    absolute = Path(os.path.abspath(path))
    found = _recall(_memo_path(absolute, settings), absolute)
    return found.content_id if found else None


def remember_digests(path: Path, settings: Settings, digests: Sequence[str]) -> None:
    """Remember a model whose files (of a split one all parts, in order) were hashed while they were written.

    Then the first run does not hash them again. What is no usable model is not remembered: a run says what is wrong.
    """
    from llmcli.models.check import check_model

    absolute = Path(os.path.abspath(path))
    with contextlib.suppress(ModelError, OSError):
        facts = check_model(absolute, need_vocabulary=False)
        if len(facts.shards) == len(digests):
            found = Inspected(Path(facts.shards[0]), facts, _content_id([bytes.fromhex(d) for d in digests]))
            files = [file_identity(shard) for shard in facts.shards]
            _remember(_memo_path(absolute, settings), found, files, durable=False)


def known_content_ids(path: Path, settings: Settings) -> frozenset[str]:
    """What the content id may be, without reading the file: what was found before, and the name of a blob.

    A blob of the Hugging Face cache is called by its sha256. That is no proof, so it is for looking things up alone.
    """
    blob = Path(os.path.realpath(path)).name
    named = {blob} if re.fullmatch(r"[0-9a-f]{64}", blob) and not shard_of(path.name) else set()
    known = known_content_id(path, settings)
    return frozenset(named | ({known} if known else set()))


def forget(path: Path, settings: Settings) -> None:
    """Drop what is remembered of a model that is about to go."""
    with contextlib.suppress(OSError):
        _memo_path(Path(os.path.abspath(path)), settings).unlink()


def _inspect(path: Path, on_hash: Callable[[int, int], None] | None) -> tuple[Inspected, list[FileIdentity]]:
    """Check, then hash; what is checked and what is hashed must be the same files, so nothing may change meanwhile."""
    from llmcli.models.check import check_model  # not needed, and 20 ms of start-up, where the result is remembered

    try:
        facts = check_model(path, need_vocabulary=False)
        before = [file_identity(shard) for shard in facts.shards]
        digests = list(_digests(facts, before, on_hash))
        if [file_identity(shard) for shard in facts.shards] != before:
            raise _changed(path)
    except OSError as error:
        raise ModelError(f"{shown(path)} cannot be read: {error.strerror}") from None
    return Inspected(Path(facts.shards[0]), facts, _content_id(digests)), before


def _content_id(digests: Sequence[bytes]) -> str:
    return digests[0].hex() if len(digests) == 1 else hashlib.sha256(b"".join(digests)).hexdigest()


def _digests(
    facts: ModelFacts, files: list[FileIdentity], on_hash: Callable[[int, int], None] | None
) -> Iterator[bytes]:
    """The digest of each shard. The sizes of the check bound the work: a file that grows is not followed for ever."""
    done = 0
    if sum(file.size_bytes for file in files) != facts.file_bytes:
        raise _changed(Path(facts.shards[0]))
    for shard, file in zip(facts.shards, files, strict=True):
        digest, end = hashlib.sha256(), done + file.size_bytes
        handle = open_regular(Path(shard))
        try:
            while chunk := os.read(handle, min(CHUNK_BYTES, end - done)):
                digest.update(chunk)
                done += len(chunk)
                if on_hash:
                    on_hash(done, facts.file_bytes)
        finally:
            os.close(handle)
        if done != end:
            raise _changed(Path(shard))
        yield digest.digest()


def _changed(path: Path) -> ModelError:
    return ModelError(f"{shown(path)} changed while it was read", hint="wait until it is complete")


def _memo_path(path: Path, settings: Settings) -> Path:
    """One memo for each file, by whatever link it is reached; a shard counts with the folder its siblings are in."""
    key = str(path) if shard_of(path.name) else os.path.realpath(path)
    return settings.cache_dir / _MEMO_FOLDER / f"{hashlib.sha256(os.fsencode(key)).hexdigest()}.json"


def _recall(memo: Path, path: Path) -> Inspected | None:
    try:
        data = json.loads(read_bounded(memo, _MEMO_MAX_BYTES))
        if data["version"] != MEMO_VERSION:
            return None
        facts, content_id = facts_from_json(data["facts"]), str(data["content_id"])
        if len(facts.shards) == 1:  # the link may be another one than last time
            facts = replace(facts, shards=(str(path),))
        now = [list(file_identity(shard)) for shard in facts.shards]
        if data["files"] != now or len(content_id) != hashlib.sha256().digest_size * 2:
            return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return Inspected(Path(facts.shards[0]), facts, content_id)


def _remember(memo: Path, found: Inspected, files: list[FileIdentity], *, durable: bool = True) -> None:
    with contextlib.suppress(OSError):
        data: dict[str, Any] = {
            "version": MEMO_VERSION,
            "content_id": found.content_id,
            "files": files,
            "facts": found.facts.as_json(),
        }
        make_private_dir(memo.parent)
        atomic_write(memo, json.dumps(data, ensure_ascii=True).encode(), durable=durable)
