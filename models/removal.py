"""Removing models from this machine: a plan first, which is a value and names every byte, then carrying it out.

What may go: files in the Hugging Face cache, in our folder and in the user's folders; a file elsewhere only where the
user named its very path, and the plan says so. In the cache a model is a link in every snapshot that has it, and the
bytes they point at; bytes that another link still needs stay. A link outside the cache goes alone: what it points at
is not ours. Names go before bytes, so that nothing is left that looks like a model and is none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from llmcli.base.errors import LlmcliError, ModelError
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.models import library
from llmcli.models.reference import SUFFIX, is_half_name, looks_like_path, shard_of
from llmcli.models.resolve import resolve_here, without_aliases

# What the hub's tools keep beside snapshots and blobs; of no use without them.
_NOTES = ("refs", ".no_exist")


@dataclass(frozen=True, slots=True)
class DoomedFile:
    """A file or link that goes, and the bytes that this frees: a link frees nothing."""

    path: Path
    nbytes: int
    is_link: bool


@dataclass(frozen=True, slots=True)
class KeptFile:
    """Bytes that stay although a name of theirs goes, and why."""

    path: Path
    nbytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """What will go, in this order, and what stays.

    models    the file by which each model is known (of a split one the first part that is there)
    outside   those of the files that lie in no folder of ours
    repos     folders of the cache to tidy up afterwards
    """

    models: tuple[Path, ...]
    files: tuple[DoomedFile, ...]
    kept: tuple[KeptFile, ...]
    outside: tuple[Path, ...]
    repos: tuple[Path, ...]

    @property
    def nbytes(self) -> int:
        """The bytes that are freed."""
        return sum(file.nbytes for file in self.files)


def plan_removal(references: Sequence[str], settings: Settings) -> RemovalPlan:
    """The plan for these models. Raises ModelError for one that is not here, or may not be removed by that name."""
    models, names, outside, repos = list[Path](), dict[str, Path](), list[Path](), dict[Path, None]()
    for reference in references:
        path, by_path = _located(reference, settings)
        _require_model_file(path)
        parts = _parts(path)
        models.append(parts[0])
        for part in parts:
            repo = _repo_of(part, settings)
            if repo is not None:
                repos[repo] = None
                names.update((str(name), name) for name in _names_in(repo, part))
            else:
                names[str(part)] = part
                if not _is_ours(part, settings):
                    _require_named(part, reference, by_path=by_path)
                    outside.append(part)
    doomed = [_doomed(name) for name in names.values()]
    blobs, kept = _blobs(repos, names)
    files, linked = _without_linked([*doomed, *(blob for blob in blobs if str(blob.path) not in names)])
    return RemovalPlan(tuple(models), tuple(files), (*kept, *linked), tuple(outside), tuple(repos))


def carry_out(plan: RemovalPlan) -> tuple[int, int]:
    """Remove what the plan says: (files, bytes) that went. Raises LlmcliError where one cannot be removed."""
    count = nbytes = 0
    for file in plan.files:
        try:
            os.unlink(file.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise LlmcliError(
                f"cannot remove {printable(str(file.path))}: {error.strerror}; {count} of {len(plan.files)} are gone"
            ) from None
        count, nbytes = count + 1, nbytes + file.nbytes
    for repo in plan.repos:
        _tidy(repo)
    return count, nbytes


def _located(reference: str, settings: Settings) -> tuple[Path, bool]:
    """The file that the user means, sound or not, and whether that was said by its path."""
    meant = without_aliases(reference, settings)
    path = Path(os.path.abspath(os.path.expanduser(meant.replace("\0", ""))))
    if os.path.lexists(path) and not os.path.isdir(path):
        return path, True
    return resolve_here(reference, settings).path, looks_like_path(meant)


def _require_model_file(path: Path) -> None:
    name = path.name.lower()
    is_file = os.path.islink(path) or os.path.isfile(path)
    is_named = name.endswith(SUFFIX) or (is_half_name(name) and SUFFIX in name)
    if is_file and (is_named or library.starts_like_gguf(path)):
        return
    raise ModelError(f"{printable(str(path))} is no model file: refused", hint="rm removes models")


def _require_named(part: Path, reference: str, *, by_path: bool) -> None:
    if not by_path:
        raise ModelError(
            f"{printable(reference)} is {printable(str(part))}, outside the folders of llmcli: refused",
            hint="name it by that path",
        )


def _parts(path: Path) -> list[Path]:
    """The file, or all parts of its model that are there; links to nothing too."""
    shard = shard_of(path.name)
    if shard is None or shard.count > 999:
        return [path]
    siblings = (path.with_name(shard.sibling(number)) for number in range(1, shard.count + 1))
    return [sibling for sibling in siblings if os.path.lexists(sibling)] or [path]


def place_of(path: Path) -> Path:
    """Where a name really is: its folder with links followed, itself not."""
    return Path(os.path.realpath(path.parent), path.name)


def _repo_of(path: Path, settings: Settings) -> Path | None:
    """The folder of the cached repository that a file belongs to, None for a file elsewhere."""
    cache = Path(os.path.realpath(settings.hub_cache_dir))
    place = place_of(path)
    if not place.is_relative_to(cache):
        return None
    first = place.relative_to(cache).parts[0]
    return cache / first if first.startswith(library.REPO_PREFIX) else None


def _is_ours(path: Path, settings: Settings) -> bool:
    folders = (os.path.realpath(folder) for _, folder in library.places(settings))
    return any(place_of(path).is_relative_to(folder) for folder in folders)


def _names_in(repo: Path, part: Path) -> Iterator[Path]:
    """Every name of a file in a repository: the same file name in other snapshots; of a blob all links to it."""
    inner = place_of(part).relative_to(repo).parts
    if inner[0] == "snapshots" and len(inner) > 2:
        relative = Path(*inner[2:])
        for revision in _listed(repo / "snapshots"):
            if os.path.lexists(name := revision / relative):
                yield name
        return
    blob = os.path.realpath(part)
    yield from (link for link in _links(repo) if os.path.realpath(link) == blob)
    yield repo.joinpath(*inner)


def _links(repo: Path) -> Iterator[Path]:
    """Every file and link below the snapshots of a repository."""
    for place, _, files in os.walk(repo / "snapshots"):
        yield from (Path(place, name) for name in files)


def _blobs(repos: Iterable[Path], names: dict[str, Path]) -> tuple[list[DoomedFile], list[KeptFile]]:
    """The bytes behind the names that go: those nobody else needs, and the others."""
    doomed, kept = list[DoomedFile](), list[KeptFile]()
    for repo in repos:
        needed: dict[str, Path] = {}
        wanted: dict[str, None] = {}
        for link in _links(repo):
            real = os.path.realpath(link)
            if str(link) in names:
                wanted[real] = None
            else:
                needed.setdefault(real, link)
        for real in wanted:
            blob = Path(real)
            if blob.parent != repo / "blobs" or not os.path.isfile(blob):
                continue
            if real in needed:
                user = needed[real].relative_to(repo / "snapshots")
                kept.append(KeptFile(blob, os.path.getsize(blob), f"{user} needs it"))
            else:
                doomed.append(_doomed(blob))
    return doomed, kept


def _doomed(path: Path) -> DoomedFile:
    is_link = os.path.islink(path)
    return DoomedFile(path, 0 if is_link else os.lstat(path).st_size, is_link)


def _without_linked(files: Sequence[DoomedFile]) -> tuple[list[DoomedFile], list[KeptFile]]:
    """The files with the bytes that go with each: of hard links the last frees them, and none where others stay."""
    left: dict[tuple[int, int], int] = {}
    found, kept = list[DoomedFile](), list[KeptFile]()
    for file in files:
        facts = os.lstat(file.path)
        key = (facts.st_dev, facts.st_ino)
        left[key] = left.get(key, facts.st_nlink) - 1
        found.append(file if left[key] == 0 or file.is_link else replace(file, nbytes=0))
    for file in files:
        facts = os.lstat(file.path)
        if not file.is_link and left.pop((facts.st_dev, facts.st_ino), 0) > 0:
            kept.append(KeptFile(file.path, file.nbytes, "another name of the file, a hard link, keeps them"))
    return found, kept


def _listed(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except OSError:
        return []


def _tidy(repo: Path) -> None:
    """Take away folders that are empty now; the whole repository where nothing of it is left."""
    for place, _, _ in sorted(os.walk(repo / "snapshots"), reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(place)
    with contextlib.suppress(OSError):
        os.rmdir(repo / "blobs")
    if not (repo / "snapshots").exists() and not (repo / "blobs").exists():
        for name in _NOTES:
            shutil.rmtree(repo / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(repo)
