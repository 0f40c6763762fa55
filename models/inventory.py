"""Everything on this machine that is a model or was meant to become one, sound or not. For lists and for removal.

The scan is `library`'s: our folder, the user's folders, the Hugging Face cache; never the network. Where `library`
leaves out what cannot be run, this keeps it and says why: half downloads, missing parts, links to nothing, files that
are something else. One bad entry never breaks a scan.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from llmcli.base.real_paths import RealPaths
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.models import library
from llmcli.models.default_model import BUILT_IN
from llmcli.models.file_identity import FileIdentity, file_identity
from llmcli.models.headline import Headline, Headlines
from llmcli.models.library import Candidate, Source
from llmcli.models.reference import is_half_name, looks_like_path, model_name, shard_of


@dataclass(frozen=True, slots=True)
class Listed:
    """A model, or what is left of one.

    name        the file name without ending and shard number
    reference   what to type to get exactly this one; the path of what cannot be run
    path        the file, of a split model the first part that is there
    files       all its files that are there; links as they are
    repo_id     of the repository in the Hugging Face cache that it belongs to
    size_bytes  of all its files; modified_s: when the last of them was changed, in seconds since 1970
    """

    name: str
    reference: str
    path: Path
    files: tuple[Path, ...]
    source: Source
    repo_id: str | None
    size_bytes: int
    modified_s: float
    headline: Headline

    @property
    def is_usable(self) -> bool:
        """Whether it can be run, as far as its header tells."""
        return self.headline.status == "ok"


@dataclass(frozen=True, slots=True)
class _Group:
    """The files of one model as they were found; `missing` are the numbers of parts that were not."""

    first: Candidate
    files: tuple[Path, ...]
    missing: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class _Found:
    """A model, looked at from outside.

    entry      as it is listed; where the header is still to be read, as if nothing were wrong with it
    real_path  of the file, without links
    to_read    the state of all its files; empty where it is known without reading what is wrong
    """

    entry: Listed
    real_path: str
    to_read: tuple[FileIdentity, ...] = ()


def take_inventory(settings: Settings) -> tuple[Listed, ...]:
    """Every entry once, however many names its file has, sorted by name."""
    found: dict[str, _Found] = {}
    for one in _find(settings):
        found.setdefault(one.real_path, one)
    headlines = Headlines(settings)
    read = headlines.of_all({one.entry.path: one.to_read for one in found.values() if one.to_read})
    headlines.save()
    entries = [_with_headline(one.entry, read.get(one.entry.path)) for one in found.values()]
    named = _with_short_references(entries, settings)
    return tuple(sorted(named, key=lambda entry: (entry.name.casefold(), entry.reference)))


def _with_headline(entry: Listed, headline: Headline | None) -> Listed:
    if headline is None:
        return entry
    reference = entry.reference if headline.status == "ok" else str(entry.path)
    return replace(entry, headline=headline, reference=reference)


def _find(settings: Settings) -> Iterator[_Found]:
    paths = RealPaths()
    for source, folder in library.places(settings):
        for group in _groups(library.candidates_below(folder)):
            if found := _look_at(group, source, paths):
                yield found
    for repo in library.cached_repos(settings):
        yield from _in_repo(repo, paths)


def _in_repo(repo: Path, paths: RealPaths) -> Iterator[_Found]:
    repo_id, found = library.repo_id_of(repo), dict[str, _Found]()
    for snapshot in library.snapshots(repo):
        for group in _groups(library.candidates_below(snapshot)):
            if group.first.relative not in found and (one := _look_at(group, "hub", paths, repo_id)):
                found[group.first.relative] = one
    sound = [relative for relative, one in found.items() if library.starts_like_gguf(one.entry.path)]
    for relative, one in found.items():
        reference = library.shortest_reference(repo_id, relative, sound) if one.to_read else one.entry.reference
        yield _Found(replace(one.entry, reference=reference), one.real_path, one.to_read)
    yield from _half(repo, repo_id, paths)


def _half(repo: Path, repo_id: str, paths: RealPaths) -> Iterator[_Found]:
    """What unfinished downloads left among the blobs. Their names tell nothing, so only what starts like a model."""
    for path in library.half_files(repo):
        if library.starts_like_gguf(path):
            try:
                status = os.stat(path)
            except OSError:  # just finished
                continue
            headline = Headline("incomplete", "half a download")
            entry = Listed(repo_id, str(path), path, (path,), "hub", repo_id, status.st_size, status.st_mtime, headline)
            yield _Found(entry, paths.of(str(path)))


def _groups(candidates: Iterable[Candidate]) -> list[_Group]:
    """The candidates by model: the parts of a split one together."""
    groups: list[_Group] = []
    split: dict[tuple[str, str, int], dict[int, Candidate]] = {}
    for candidate in candidates:
        place, _, base = candidate.relative.rpartition("/")
        if (shard := shard_of(base)) and shard.count <= 999:
            split.setdefault((place, shard.stem, shard.count), {})[shard.number] = candidate
        else:
            groups.append(_Group(candidate, (candidate.path,), (), 1))
    for (_, _, count), parts in split.items():
        present = [parts[number] for number in sorted(parts)]
        missing = tuple(number for number in range(1, count + 1) if number not in parts)
        groups.append(_Group(present[0], tuple(part.path for part in present), missing, count))
    return groups


def _look_at(group: _Group, source: Source, paths: RealPaths, repo_id: str | None = None) -> _Found | None:
    """The entry of a group; None for what is no file at all, such as a pipe or a folder with a model's name."""
    path, sizes, modified = group.first.path, 0, 0.0
    to_read: tuple[FileIdentity, ...] = ()
    headline = _without_reading(group)
    try:
        for file in group.files:
            status = os.stat(file)
            if not stat.S_ISREG(status.st_mode):
                return None
            sizes, modified = sizes + status.st_size, max(modified, status.st_mtime)
        if headline is None:
            to_read = tuple(file_identity(str(file), paths.of) for file in group.files)
    except FileNotFoundError:
        if not os.path.lexists(path):
            return None  # gone since it was listed
        headline = Headline("incomplete", "a link to a file that is gone")
    except (OSError, ValueError) as error:
        headline = Headline("damaged", f"cannot be read: {getattr(error, 'strerror', None) or error}")
    name, headline = model_name(path.name), headline or Headline("ok")
    entry = Listed(name, str(path), path, group.files, source, repo_id, sizes, modified, headline)
    return _Found(entry, to_read[0].real_path if to_read else paths.of(str(path)), to_read)


def _without_reading(group: _Group) -> Headline | None:
    if is_half_name(group.first.path.name):
        return Headline("incomplete", "half a download")
    if group.missing:
        others = f" and {len(group.missing) - 1} more" if len(group.missing) > 1 else ""
        return Headline("incomplete", f"part {group.missing[0]} of {group.count}{others} missing")
    return None


def _with_short_references(entries: list[Listed], settings: Settings) -> Iterator[Listed]:
    """A model outside the hub's cache goes by its name, where that name alone means it."""
    names = Counter(entry.name.casefold() for entry in entries if entry.is_usable)
    taken = {name.casefold() for name in (*settings.aliases, *BUILT_IN)}
    for entry in entries:
        name = entry.name
        is_free = names[name.casefold()] == 1 and name.casefold() not in taken and not looks_like_path(name)
        if entry.repo_id is None and entry.is_usable and is_free and not os.path.lexists(name):
            yield replace(entry, reference=name)
        else:
            yield entry
