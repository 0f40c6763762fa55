"""Where everything lies under the root. The file names alone carry the tree; no index is needed to walk it.

ROOT/v1/                                    one folder per format version, 0700
blocks/<2 hex of parent>/<parent>-<key>.kv    256 folders; the children of a block are found by its name
fingerprints/<digest>.json              the description of a fingerprint
fingerprints/<digest>.notes             what was learnt about it: rates, self-test
names/<name in hex>                     a name or a pin
writers/<pid>-<random>                  one locked file per process that writes
index.sqlite                            order of use, previews, counters; rebuilt when lost
index.lock                              held by a process while it opens, fills or replaces the index
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from llmcli.base.records import dataclass
from llmcli.cache_store.keys import FORMAT_VERSION, Key

BLOCK_SUFFIX = ".kv"
TEMP_PREFIX = ".tmp-"
_BLOCK_NAME = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64})\.kv\Z")
_VERSION_NAME = re.compile(r"v[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class BlockName:
    """What a block's file name says."""

    parent: Key
    key: Key


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one store."""

    root: Path
    _blocks: str = field(init=False, repr=False)  # paths of blocks are made by the hundred: as text, not as Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "_blocks", str(self.blocks))

    @property
    def base(self) -> Path:
        """The folder of this format version."""
        return self.root / f"v{FORMAT_VERSION}"

    @property
    def blocks(self) -> Path:
        """The folder of the block folders."""
        return self.base / "blocks"

    @property
    def fingerprints(self) -> Path:
        """The folder of fingerprint descriptions and notes."""
        return self.base / "fingerprints"

    @property
    def names(self) -> Path:
        """The folder of names and pins."""
        return self.base / "names"

    @property
    def writers(self) -> Path:
        """The folder of the locked files of processes that write."""
        return self.base / "writers"

    @property
    def index(self) -> Path:
        """The SQLite index."""
        return self.base / "index.sqlite"

    def folders(self) -> tuple[Path, ...]:
        """What must exist before the first write; the block folders come with their first block."""
        return (self.base, self.blocks, self.fingerprints, self.names, self.writers)

    def shard(self, parent: Key) -> str:
        """The folder that holds the children of `parent`."""
        return f"{self._blocks}{os.sep}{parent[:1].hex()}"

    def block(self, parent: Key, key: Key) -> str:
        """The file of the block `key` behind `parent`."""
        behind = parent.hex()
        return f"{self._blocks}{os.sep}{behind[:2]}{os.sep}{behind}-{key.hex()}{BLOCK_SUFFIX}"

    def children(self, parent: Key, *, max_seen: int, max_found: int) -> tuple[list[Key], bool]:
        """Keys stored behind `parent`, and whether these are all.

        Stops after `max_seen` names in the folder or `max_found` children; the index knows a faster way then.
        """
        prefix, found = parent.hex() + "-", list[Key]()
        try:
            with os.scandir(self.shard(parent)) as entries:
                for seen, entry in enumerate(entries):
                    if seen >= max_seen or len(found) >= max_found:
                        return found, False
                    if entry.name.startswith(prefix) and (name := parse_block_name(entry.name)):
                        found.append(name.key)
        except OSError:  # no such folder: nothing was ever stored behind a parent of this shard
            return found, True
        return found, True

    def shards(self) -> Iterator[os.DirEntry[str]]:
        """The block folders, in the order of their names."""
        yield from _entries(self.blocks)

    def all_blocks(self) -> Iterator[tuple[BlockName, str]]:
        """Every block's name and path, a folder at a time; files with other names are passed over."""
        for shard in self.shards():
            if not shard.is_dir(follow_symlinks=False):
                continue
            for entry in _entries(Path(shard.path)):
                if name := parse_block_name(entry.name):
                    yield name, entry.path

    def other_formats(self) -> list[Path]:
        """Folders of other format versions beside this one: they count towards the budget, and are left alone."""
        names = (entry.name for entry in _entries(self.root))
        return [self.root / name for name in names if _VERSION_NAME.match(name) and name != self.base.name]


def parse_block_name(name: str) -> BlockName | None:
    """The keys in a block's file name; None for any other name."""
    found = _BLOCK_NAME.match(name)
    return BlockName(Key(bytes.fromhex(found[1])), Key(bytes.fromhex(found[2]))) if found else None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # gone, or not to be read: nothing to see there
        return []
