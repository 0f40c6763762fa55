"""What a repository of the hub says it holds, taken with care: every name, size and digest in it is a stranger's.

Pure text, no network. Digests and the commit become names in the cache, so they have to look like what they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.models.reference import parse_hub

MAX_ENTRIES = 50_000
_MAX_PART_BYTES = 240  # of one folder or file name; the file systems' limit is 255
_MAX_NAME_BYTES = 1024
_MAX_FILE_BYTES = 1 << 50
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}\Z"), re.compile(r"[0-9a-f]{40}\Z")
_FORBIDDEN = set('\\:*?"<>|')  # a path on Windows, and never part of a real model's name


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    digest   the sha256 of its bytes; of a small file that is kept in git itself, git's own sha1; None: not stated.
             It is also the name of its bytes in the Hugging Face cache.
    """

    name: str
    size_bytes: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at a commit.

    repo_id   as the hub writes it, whatever case was typed
    refused   names that lead out of the repository's folder or drive a terminal, escaped; they are not in `files`
    n_params  the weights of its (first) model, where the hub knows
    """

    repo_id: str
    commit: str
    files: tuple[RemoteFile, ...]
    refused: tuple[str, ...]
    n_params: int | None


def is_safe_name(name: str) -> bool:
    """Whether the name of a file in a repository can be joined to a folder: it stays inside, and can be printed."""
    parts = name.split("/")
    if len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES or printable(name) != name or _FORBIDDEN & set(name):
        return False
    return all(part.strip(" .") and len(part.encode()) <= _MAX_PART_BYTES for part in parts)


def is_digest(text: str) -> bool:
    """A sha256 or a sha1 in lower case hex."""
    return bool(_SHA256.match(text) or _SHA1.match(text))


def parse_repository(data: Any, asked: str) -> Repository:
    """The answer to /api/models/REPO?blobs=true. Raises ValueError where it is no such answer."""
    if not isinstance(data, Mapping) or not isinstance(data.get("siblings"), list):
        raise ValueError("no list of files")
    commit = data.get("sha")
    if not isinstance(commit, str) or not _SHA1.match(commit):
        raise ValueError("no commit")
    if len(data["siblings"]) > MAX_ENTRIES:
        raise ValueError(f"more than {MAX_ENTRIES} files")
    rows = [row for row in data["siblings"] if isinstance(row, Mapping) and isinstance(row.get("rfilename"), str)]
    safe = [row for row in rows if is_safe_name(row["rfilename"])]
    refused = tuple(printable(row["rfilename"]) for row in rows if not is_safe_name(row["rfilename"]))
    return Repository(_canonical(data.get("id"), asked), commit, tuple(_files(safe)), refused, _params(data))


def _files(rows: list[Mapping[str, Any]]) -> list[RemoteFile]:
    """One entry for each name, the first; a row without a usable size is no file that can be fetched."""
    found: dict[str, RemoteFile] = {}
    for row in rows:
        lfs = row["lfs"] if isinstance(row.get("lfs"), Mapping) else {}
        size = lfs.get("size", row.get("size"))
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_FILE_BYTES:
            continue
        # Of a file in LFS git itself knows the pointer only, which is another file.
        digest = lfs.get("sha256") or lfs.get("oid") if lfs else row.get("blobId")
        digest = digest if isinstance(digest, str) and is_digest(digest) else None
        found.setdefault(row["rfilename"], RemoteFile(row["rfilename"], size, digest))
    return list(found.values())


def _canonical(stated: Any, asked: str) -> str:
    """The hub's own spelling of the name. A repository that moved keeps the name it was asked for by."""
    same = isinstance(stated, str) and stated.casefold() == asked.casefold()
    return stated if same and parse_hub(stated) else asked


def _params(data: Mapping[str, Any]) -> int | None:
    about = data.get("gguf")
    total = about.get("total") if isinstance(about, Mapping) else None
    return total if isinstance(total, int) and 0 < total < 1 << 50 else None
