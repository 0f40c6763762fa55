"""The folder of saved conversations: one file each, one process at a time in each.

    sessions/                 0700
    ├── holidays.jsonl        0600
    └── .locks/holidays       locked as long as a process has it open; says which one

Reading takes no lock: files only grow. Whoever opens, renames or removes one holds its lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmcli.base.bounded_file import read_bounded
from llmcli.base.errors import LlmcliError, ResourceError, UsageError
from llmcli.base.files import file_lock, fsync_dir, make_private_dir
from llmcli.base.text import printable
from llmcli.sessions.disk import require_writable
from llmcli.sessions.file import SUFFIX, Reading, SessionLog
from llmcli.sessions.names import check_name, dated_name
from llmcli.sessions.turns import local_now

_LOCKS, _LOCK_BYTES = ".locks", 4096
_MOST_TITLE_CHARS = 60


class SessionMissingError(LlmcliError):
    """There is no session of this name."""


class SessionBusyError(LlmcliError):
    """Another process has the session open."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session in a list. title: how its first question begins; trouble: why it cannot be read, None where it can."""

    name: str
    path: Path
    used_s: float
    file_bytes: int
    turns: int = 0
    title: str = ""
    model: str = ""
    content_id: str = ""
    tokens: int = 0
    created: str = ""
    trouble: str | None = None


class Library:
    """All sessions of one user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Where a session is, or would be. Raises UsageError for a bad name."""
        return self.folder / (check_name(name) + SUFFIX)

    def exists(self, name: str) -> bool:
        """Whether there is one of this name."""
        return self.path(name).is_file()

    def names(self) -> list[str]:
        """Every session, the last used first; files that somebody else put there are passed over."""
        found: list[tuple[float, str]] = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError, UsageError):
                    if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                        found.append((entry.stat().st_mtime, check_name(entry.name[: -len(SUFFIX)])))
        return [name for _, name in sorted(found, key=lambda pair: (-pair[0], pair[1]))]

    def last(self) -> str | None:
        """The session that was used last."""
        return next(iter(self.names()), None)

    def read(self, name: str) -> Reading:
        """What a session says. Raises LlmcliError."""
        path = self.path(name)
        try:
            self._require_file(path, name)
            return Reading(path)
        except FileNotFoundError:
            raise self._missing(name) from None
        except OSError as error:
            raise LlmcliError(f"session {name} cannot be read: {error.strerror}") from None

    def infos(self) -> list[SessionInfo]:
        """Every session for a list, the last used first; one that is removed meanwhile is passed over."""
        found = list[SessionInfo]()
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):
                found.append(self.info(name))
        return found

    def info(self, name: str) -> SessionInfo:
        """A session for a list; never raises for what is in its file."""
        path = self.path(name)
        facts = path.stat()
        try:
            found = self.read(name)
        except LlmcliError as error:
            return SessionInfo(name, path, facts.st_mtime, facts.st_size, trouble=error.message)
        turns = found.history.turns
        title = " ".join((turns[0].user if turns else found.history.unanswered or "").split())
        return SessionInfo(
            name,
            path,
            facts.st_mtime,
            facts.st_size,
            turns=len(turns),
            title=title if len(title) <= _MOST_TITLE_CHARS else title[: _MOST_TITLE_CHARS - 1] + "…",
            model=found.header.model.name,
            content_id=found.header.model.content_id,
            tokens=len(turns[-1].ids) if turns else 0,
            created=found.header.created,
        )

    @contextlib.contextmanager
    def open(self, name: str, *, create: bool = False) -> Iterator[SessionLog]:
        """The session to go on with; with `create` a new one where there is none.

        Raises SessionMissingError, SessionBusyError, SessionDamagedError, OSError.
        """
        path = self.path(name)
        if not create and not path.exists():
            raise self._missing(name)
        self._require_file(path, name)
        with self._lock(name):
            if path.exists():
                require_writable(path)
            yield SessionLog(path)

    @contextlib.contextmanager
    def open_new(self) -> Iterator[SessionLog]:
        """A conversation that nobody named: the time is its name. Raises OSError.

        A chat in which nothing was said yet holds its name and has no file.
        """
        taken = set(self.names())
        with contextlib.ExitStack() as held:
            while True:
                name = dated_name(taken, local_now())
                taken.add(name)
                with contextlib.suppress(SessionBusyError):
                    log = held.enter_context(self.open(name, create=True))
                    if log.header is None:
                        break
                    held.pop_all().close()  # another chat has just begun it, and ended
            yield log

    def fork(self, source: str, target: str) -> None:
        """Copy a conversation, as it stands, to a new name. Raises LlmcliError, OSError."""
        self.copy(self._as_log(source), target)

    def copy(self, log: SessionLog, target: str) -> None:
        """Write what an open session holds to a new name. Raises LlmcliError, OSError."""
        path = self.path(target)
        with self._lock(target):
            self._require_free(target)
            log.copy_to(path)

    def rename(self, source: str, target: str) -> None:
        """Give a session another name. Raises LlmcliError, OSError."""
        old, new = self.path(source), self.path(target)
        if not old.is_file():
            raise self._missing(source)
        self._require_free(target)
        with self._lock(source), self._lock(target):
            self._require_free(target)
            os.rename(old, new)
            fsync_dir(self.folder)

    def remove(self, name: str) -> int:
        """Delete a session; the bytes that went. Raises LlmcliError, OSError."""
        path = self.path(name)
        if not path.is_file():
            raise self._missing(name)
        with self._lock(name):
            nbytes = path.stat().st_size
            path.unlink()
            fsync_dir(self.folder)
        return nbytes

    def _as_log(self, name: str) -> SessionLog:
        if not self.exists(name):
            raise self._missing(name)
        return SessionLog(self.path(name))

    def _require_file(self, path: Path, name: str) -> None:
        if path.exists() and not path.is_file():  # reading a pipe or a device might never end
            raise LlmcliError(f"session {name} cannot be read: {path} is not a file")

    def _require_free(self, name: str) -> None:
        if self.path(name).exists():
            raise LlmcliError(f"there is a session {name} already", hint="llmcli sessions ls")

    def _missing(self, name: str) -> SessionMissingError:
        return SessionMissingError(f"there is no session {printable(name)}", hint="llmcli sessions ls")

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        make_private_dir(self.folder)
        os.chmod(self.folder, 0o700)
        path = make_private_dir(self.folder / _LOCKS) / name
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(file_lock(path, timeout_s=0))
            except ResourceError:
                raise SessionBusyError(
                    f"session {name} is open in another llmcli{_holder(path)}",
                    hint=f"end that one, or llmcli sessions fork {name} NEW",
                ) from None
            _sign(path)
            yield


def _sign(path: Path) -> None:
    """Say in the lock who holds it: for messages alone, the lock is the kernel's."""
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": local_now().isoformat(timespec="minutes")}
    with contextlib.suppress(OSError):
        path.write_text(json.dumps(who))
        os.chmod(path, 0o600)


def _holder(path: Path) -> str:
    try:
        who = json.loads(read_bounded(path, _LOCK_BYTES))
        return printable(f" (process {who['pid']} on {who['host']}, since {who['since']})")
    except (OSError, ValueError, TypeError, KeyError):
        return ""
