"""What the tests of the model library share: tiny files, and a Hugging Face cache as the hub's client keeps it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from llmcli.base.settings import Settings
from llmcli.cache_store.keys import Fingerprint
from llmcli.engine.prefix_report import CacheOptions, store_folder
from tests.cache_store_case import FACTS, open_store, put
from tests.fixtures.cli_process import Completed
from tests.fixtures.gguf_edit import Gguf, Tensor

COMMIT, OLD_COMMIT = "a" * 40, "b" * 40


def tiny(architecture: str = "llama", *, context: int = 512, file_type: int = 0, weights: int = 32) -> Gguf:
    """A sound header with one tensor of F32 behind it; not a model that can be run."""
    model = Gguf().text("general.architecture", architecture).u32(f"{architecture}.context_length", context)
    model.u32("general.file_type", file_type)
    model.tensors.append(Tensor(b"token_embd.weight", [weights], 0, bytes(4 * weights)))
    return model


def write_tiny(path: Path, **options: int) -> Path:
    """A tiny file at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return tiny(**options).write(path)  # type: ignore[arg-type]


def add_to_cache(
    settings: Settings, repo_id: str, name: str, data: bytes, *, commit: str = COMMIT, digest: str | None = None
) -> Path:
    """Put a file into the cache: its bytes under blobs/ by their sha256 (or `digest`), a link in the snapshot."""
    repo = settings.hub_cache_dir / ("models--" + repo_id.replace("/", "--"))
    blob = repo / "blobs" / (digest or hashlib.sha256(data).hexdigest())
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    link = repo / "snapshots" / commit / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    refs = repo / "refs"
    refs.mkdir(exist_ok=True)
    (refs / "main").write_text(COMMIT)
    return link


def files_below(folder: Path) -> list[str]:
    """Every file and link below `folder`, by relative path, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def fill_store(
    settings: Settings, content_id: str, *, blocks: int, type_k: str = "f16", name: str | None = None
) -> int:
    """Store a prefix of so many blocks as if that model had computed it; the bytes it takes."""
    fingerprint = Fingerprint.of({**FACTS, "model": content_id, "type_k": type_k})
    with open_store(store_folder(CacheOptions(), settings)) as store:
        refs = put(store, list(range(256 * blocks)), fingerprint=fingerprint)
        if name is not None:
            store.keeper().name(refs[-1], name, pin=True)
    return sum(os.path.getsize(ref.path) for ref in refs)


def parsed(done: Completed) -> Any:
    """The JSON on the stdout of a command."""
    return json.loads(done.stdout)
