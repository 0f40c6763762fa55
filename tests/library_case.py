"""What the tests of the model library share: tiny sound files, and a Hugging Face cache as the hub's client keeps it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from llmcli.base.settings import Settings
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
