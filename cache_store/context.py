"""What every operation of one opened store works with, and how it gives up on writing.

A store never fails for reasons of the environment. It has three modes:

    writable    everything
    readonly    look-ups only: asked for, or the folder cannot be written
    off         no look-ups either: there is no folder, or it is not safely ours

Each trouble is told once, in one line.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.cache_store.block_file import read_header
from llmcli.cache_store.block_format import BlockHeader, DamagedError
from llmcli.cache_store.counters import Pending
from llmcli.cache_store.fingerprints import Fingerprints
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.names import Names
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.writers import Writer, dead_writers, sweep_temps

if TYPE_CHECKING:
    from llmcli.cache_store.index import Index

WRITABLE, READONLY, OFF = "writable", "readonly", "off"


@dataclass(slots=True)
class Context:
    """The state of one opened store.

    trouble          why it was not WRITABLE when it was opened
    dead             markers of processes that were killed while writing; the index is looked after before they go
    dirty_folders    folders whose renames are not yet durable
    other_bytes      what other format versions take; None: not looked at yet
    abandoned        a thread still writes and cannot be waited for: its marker stays, and nothing may wait for a lock
    """

    layout: Layout
    policy: Policy
    salt: str
    mode: str
    trouble: str | None
    notify: Callable[[str], None]
    writer: Writer
    names: Names
    fingerprints: Fingerprints
    pending: Pending = field(default_factory=Pending)
    dead: list[Path] = field(default_factory=list)
    dirty_folders: set[Path] = field(default_factory=set)
    other_bytes: int | None = None
    abandoned: bool = False
    _told: set[str] = field(default_factory=set)
    _index: Index | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def index(self) -> Index:
        """The index, imported and made on first use."""
        from llmcli.cache_store.index import Index

        with self._lock:
            if self._index is None:
                in_memory = self.mode != WRITABLE
                self._index = Index(self.layout.index, self.headers, self._warn_of_index, in_memory=in_memory)
            return self._index

    @property
    def index_is_used(self) -> bool:
        """Whether anything asked for the index yet."""
        return self._index is not None

    def warn(self, text: str, *, once_as: str = "") -> None:
        """Tell the user one line, the first time (for all texts with the same `once_as`)."""
        kind = once_as or text
        with self._lock:
            told = kind in self._told
            self._told.add(kind)
        if not told:
            self.notify(text)

    def stop_writing(self, error: OSError) -> None:
        """After a failed write: look-ups go on, nothing more is saved by this process."""
        if self.mode == WRITABLE:
            self.mode = READONLY
            self.warn(f"the prefix store cannot be written ({_words(error)}); nothing more is saved", once_as="trouble")

    def _warn_of_index(self, text: str) -> None:
        self.warn(text, once_as="trouble")

    def headers(self) -> Iterator[tuple[BlockHeader, float]]:
        """Every sound header in the store with the block's time of last use; reads one page of each file."""
        for name, path in self.layout.all_blocks():
            with contextlib.suppress(FileNotFoundError, DamagedError):
                header, facts = read_header(path)
                if (header.parent, header.key) == (name.parent, name.key) and header.key_is_its_own():
                    yield header, facts.st_mtime


def open_context(root: Path, policy: Policy, salt: str, notify: Callable[[str], None], *, readonly: bool) -> Context:
    """Prepare the folders and look for killed writers. Never raises for what it finds there."""
    layout = Layout(root)
    writer = Writer(layout)
    mode, trouble = (READONLY, None) if readonly else _prepare(layout)
    context = Context(
        layout, policy, salt, mode, trouble, notify, writer, Names(layout, writer), Fingerprints(layout, writer)
    )
    if trouble:
        what = "used ({}); going on without it" if mode == OFF else "written ({}); nothing is saved"
        context.warn(f"the prefix store at {printable(str(root))} cannot be {what.format(trouble)}", once_as="trouble")
    if mode == WRITABLE:
        context.dead = dead_writers(layout)
        if context.dead:
            sweep_temps(layout, context.dead)
    return context


def _prepare(layout: Layout) -> tuple[str, str | None]:
    """Make the folders, private whatever the umask. Returns the mode, and what is wrong where it is not WRITABLE."""
    try:
        layout.root.parent.mkdir(parents=True, exist_ok=True)
        for folder in (layout.root, *layout.folders()):
            make_folder(folder)
        if trouble := _unsafe(layout):
            return OFF, trouble
        if not os.access(layout.base, os.W_OK | os.X_OK):
            return _existing_mode(layout), "no permission to write"
    except OSError as error:
        return _existing_mode(layout), _words(error)
    return WRITABLE, None


def make_folder(folder: Path) -> None:
    """Make one folder for this user alone, unless it is there. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        os.chmod(folder, 0o700)


def _unsafe(layout: Layout) -> str | None:
    """Why the folder of this format is not safely ours; None where it is. Closes it to others where that is all."""
    base = layout.base
    facts = os.lstat(base)
    if not all(stat.S_ISDIR(os.lstat(folder).st_mode) for folder in layout.folders()):
        return "not a folder"  # nor a link to one: what is there would be changed outside the store
    if hasattr(os, "geteuid"):
        if os.geteuid() not in (0, facts.st_uid):
            return "it belongs to another user"
        if facts.st_mode & 0o077:
            os.chmod(base, 0o700)
    return None


def _existing_mode(layout: Layout) -> str:
    # os.path: a name that is too long for the file system is an exception to Path.
    return READONLY if os.path.isdir(layout.blocks) and os.access(layout.blocks, os.R_OK | os.X_OK) else OFF


def _words(error: OSError) -> str:
    return error.strerror or type(error).__name__
