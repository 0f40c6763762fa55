"""The models that are on this machine: our own folder, the user's folders, the Hugging Face cache. Never the network.

Only names, sizes and the first four bytes are looked at; whether a file can be run is for `check`. The cache is read
as other tools leave it, models--OWNER--NAME/{refs/main, snapshots/REVISION/…, blobs/…}, and never changed here.
One bad entry (unreadable, dangling, vanished, not a GGUF, not a file at all) never breaks a scan: it is left out.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from llmcli.base.bounded_file import read_bounded
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.models.reference import SUFFIX, is_half_name, is_model_name, model_name, quant_of, select, shard_of

MAGIC = b"GGUF"
REPO_PREFIX = "models--"
MAX_DEPTH = 6  # of folders in folders
_MAX_ENTRIES = 100_000  # of one scan; a mistyped folder such as `/` must not take minutes
REF_BYTES = 4096
_REVISION = re.compile(r"[0-9a-fA-F]{7,64}\Z")

Source = Literal["own", "folder", "hub"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file below some folder that is named like a model; `relative` is its path below that folder, with `/`."""

    path: Path
    relative: str


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model below some folder.

    path        its file; of a split model the first shard that is there
    relative    the path below that folder, with `/`
    size_bytes  of all shards that are there
    """

    path: Path
    relative: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine.

    name        the file name without ending and shard number
    reference   what to type to get exactly this one
    """

    path: Path
    name: str
    reference: str
    size_bytes: int
    source: Source


def own_folder(settings: Settings) -> Path:
    """Where models that did not come through the hub are kept."""
    return settings.data_dir / "models"


def starts_like_gguf(path: Path) -> bool:
    """True for a regular file whose first four bytes are GGUF's; False for anything else, also what cannot be read."""
    try:
        # The type first: opening a named pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as source:
            return source.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def list_models(settings: Settings) -> tuple[LocalModel, ...]:
    """Every model on this machine, one entry for each file however many names it has, sorted by name."""
    found: dict[str, LocalModel] = {}
    for model in (*_in_folders(settings), *_in_hub_cache(settings)):
        found.setdefault(os.path.realpath(model.path), model)
    return tuple(sorted(found.values(), key=lambda m: (m.name.casefold(), m.reference)))


def places(settings: Settings) -> tuple[tuple[Source, Path], ...]:
    """The folders that are looked through besides the Hugging Face cache: ours, then the user's."""
    return (("own", own_folder(settings)), *(("folder", folder) for folder in settings.folders))


def cached_repos(settings: Settings) -> tuple[Path, ...]:
    """The folders of all repositories in the Hugging Face cache."""
    names = (name for name in _names(settings.hub_cache_dir) if name.startswith(REPO_PREFIX))
    return tuple(settings.hub_cache_dir / name for name in names)


def half_files(repo_folder: Path) -> tuple[Path, ...]:
    """What downloads that did not finish have left among the blobs of a cached repository."""
    blobs = repo_folder / "blobs"
    return tuple(blobs / name for name in _names(blobs) if is_half_name(name))


def models_below(folder: Path) -> tuple[ModelFile, ...]:
    """The models in `folder` and the folders in it, sorted; a split model is one entry."""
    whole: list[ModelFile] = []
    split: dict[tuple[str, str, int], list[tuple[int, ModelFile]]] = {}
    for candidate in candidates_below(folder):
        if not is_model_name(candidate.path.name) or not starts_like_gguf(candidate.path):
            continue
        file = _sized(candidate)
        if file is None:
            continue
        place, _, base = file.relative.rpartition("/")
        if shard := shard_of(base):
            split.setdefault((place, shard.stem, shard.count), []).append((shard.number, file))
        else:
            whole.append(file)
    for shards in split.values():
        first = min(shards, key=lambda pair: pair[0])[1]
        whole.append(ModelFile(first.path, first.relative, sum(file.size_bytes for _, file in shards)))
    return tuple(sorted(whole, key=lambda m: m.relative))


def cached_repo(settings: Settings, repo_id: str) -> Path | None:
    """The cache folder of a repository, None where there is none. Case decides only between two that both fit."""
    wanted = REPO_PREFIX + repo_id.replace("/", "--")
    exact = settings.hub_cache_dir / wanted
    if os.path.isdir(exact):
        return exact
    names = sorted(n for n in _names(settings.hub_cache_dir) if n.casefold() == wanted.casefold())
    return settings.hub_cache_dir / names[0] if names else None


def repo_id_of(repo_folder: Path) -> str:
    """`owner/name` of a folder of the cache."""
    return repo_folder.name.removeprefix(REPO_PREFIX).replace("--", "/", 1)


def snapshots(repo_folder: Path) -> tuple[Path, ...]:
    """The snapshot folders of a repository: the one `main` points at, then the others, newest first."""
    root = repo_folder / "snapshots"
    folders = [root / name for name in _names(root) if _REVISION.match(name) and os.path.isdir(root / name)]
    main = _main_revision(repo_folder)
    return tuple(sorted(folders, key=lambda f: (f.name != main, -_modified_ns(f), f.name)))


def repo_models(repo_folder: Path) -> tuple[ModelFile, ...]:
    """The models of a cached repository; a file that several snapshots have is taken from the first of them."""
    found: dict[str, ModelFile] = {}
    for folder in snapshots(repo_folder):
        for file in models_below(folder):
            found.setdefault(file.relative, file)
    return tuple(found.values())


def _in_folders(settings: Settings) -> Iterator[LocalModel]:
    for source, folder in places(settings):
        for file in models_below(folder):
            yield LocalModel(file.path, model_name(file.path.name), str(file.path), file.size_bytes, source)


def _in_hub_cache(settings: Settings) -> Iterator[LocalModel]:
    for folder in cached_repos(settings):
        files = repo_models(folder)
        for file in files:
            reference = shortest_reference(repo_id_of(folder), file.relative, [f.relative for f in files])
            yield LocalModel(file.path, model_name(file.path.name), reference, file.size_bytes, "hub")


def shortest_reference(repo_id: str, relative: str, all_relative: list[str]) -> str:
    """What to type to get one of the files of a repository."""
    quant = quant_of(relative.rpartition("/")[2])
    if quant and select(quant, all_relative, repo_id.rpartition("/")[2]) == [relative]:
        return f"{repo_id}:{quant}"
    return f"{repo_id}:{relative}"


def candidates_below(folder: Path) -> Iterator[Candidate]:
    """What is named like a model or like half of one, below `folder`, breadth first; nothing is opened.

    Links to folders are followed, each folder is entered once.
    """
    queue, entered, left = [(str(folder), "", 0)], set[tuple[int, int]](), _MAX_ENTRIES
    while queue:
        place, prefix, depth = queue.pop(0)
        try:
            status = os.stat(place)
            entries = [] if (status.st_dev, status.st_ino) in entered else sorted(os.scandir(place), key=_entry_name)
        except OSError:
            continue
        entered.add((status.st_dev, status.st_ino))
        for entry in entries:
            left -= 1
            if left < 0:
                return
            if not entry.name.startswith(".") and depth < MAX_DEPTH and _is_dir(entry):
                queue.append((entry.path, f"{prefix}{entry.name}/", depth + 1))
            elif is_model_name(entry.name) or _is_half_model(entry.name):
                yield Candidate(Path(entry.path), prefix + entry.name)


def _is_half_model(file_name: str) -> bool:
    return is_half_name(file_name) and SUFFIX in file_name.lower()


def _sized(candidate: Candidate) -> ModelFile | None:
    try:
        return ModelFile(candidate.path, candidate.relative, candidate.path.stat().st_size)
    except OSError:  # gone since it was listed
        return None


def _entry_name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _main_revision(repo_folder: Path) -> str | None:
    try:
        return read_bounded(repo_folder / "refs" / "main", REF_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return None


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
