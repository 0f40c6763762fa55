"""From an address to a whole, checked file: what is there is gone on from, what breaks is tried again.

The bytes go into a half file (`part`), under a name that nothing takes for a model; who calls gives it its real name
once `fetch` has returned. Killed at any byte, the half file is good for the next try. What is in it is never trusted
for being there: it is hashed again, and the whole is held against the digest that the server stated beforehand.
Knows nothing of hubs and caches: an `opener` yields the body of an answer that begins at an offset.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, TypeAlias

from llmcli.base.errors import LlmcliError, ModelError, ResourceError, UserInterruptError
from llmcli.base.files import CHUNK_BYTES
from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_seconds
from llmcli.models.checksum import Checksum, WrongBytesError, check_header, refuse_other
from llmcli.models.http_body import Body, content_range
from llmcli.models.hub_errors import TransientError, broke_off
from llmcli.models.place import as_disk_error
from llmcli.models.progress import Progress

Opener: TypeAlias = Callable[[int], AbstractContextManager[Body]]
GO_ON = "the same command goes on from there"
# Between tries that brought next to nothing; one that brought more starts the row again. A server's own wish counts
# instead. More: a hundredth of the file, or this.
PAUSES_S = (0.2, 1.0, 3.0, 8.0)
_STEP_BYTES = 64 << 10
_MOST_WAIT_S = 60.0
_START_BYTES = 512  # enough to recognise what is no model


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be fetched.

    name     for messages
    digest   sha256, or git's sha1 of a file, in hex; None: not known beforehand
    move_with  the setting that moves the folder to another disk
    """

    name: str
    size_bytes: int | None
    digest: str | None
    move_with: str


def fetch(
    wanted: Wanted,
    part: Path,
    opener: Opener,
    *,
    task: Progress,
    notify: Callable[[str], None],
    stop: threading.Event | None = None,
) -> str:
    """Make `part` the whole file, with the right bytes; its sha256.

    `stop` makes it end with UserInterruptError. Raises ModelError (refused, other bytes: the part is gone; broken off:
    it is kept), ResourceError (disk full: it is kept).
    """
    transfer = _Transfer(wanted, part, opener, task, notify, stop or threading.Event())
    with contextlib.closing(transfer):
        begun_before = transfer.take_up()
        try:
            return transfer.complete()
        except WrongBytesError:
            if not begun_before:
                raise
            notify(f"the half file of {wanted.name} from an earlier try does not fit: fetching it from the start")
            return transfer.complete()


class _Transfer:
    """One file on its way. `done` bytes are in the part and in the checksum."""

    def __init__(
        self,
        wanted: Wanted,
        part: Path,
        opener: Opener,
        task: Progress,
        notify: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._wanted, self._part, self._opener = wanted, part, opener
        self._task, self._notify, self._stop = task, notify, stop
        self._size_bytes = wanted.size_bytes
        self._checksum = Checksum(wanted.digest, wanted.size_bytes)
        self._file: BinaryIO | None = None
        self._done = 0
        self._ended = False
        self._cannot_go_on = False  # the server has sent the whole where the rest was asked for
        # A thread for the checksum: it takes a third of the time that writing does, and the two go side by side.
        self._hasher = ThreadPoolExecutor(1)
        self._hashing: Future[None] | None = None

    def close(self) -> None:
        """Let go of the part."""
        self._hasher.shutdown()
        if self._file:
            self._file.close()

    def take_up(self) -> bool:
        """Hash what an earlier try left, if anything; whether there was something to go on from."""
        try:
            self._file = open(self._part, "r+b", buffering=0)  # noqa: SIM115  (closed by `close`)
        except FileNotFoundError:
            return False
        if self._size_bytes is not None and os.fstat(self._file.fileno()).st_size > self._size_bytes:
            self._start_over()
        while chunk := self._file.read(CHUNK_BYTES):
            self._count(memoryview(chunk))
        self._settle()
        return self._done > 0

    def complete(self) -> str:
        """Fetch what is missing and check the whole. A part with wrong bytes is removed before it raises."""
        try:
            self._run()
            self._settle()
            if self._done != (self._size_bytes or self._done):
                raise WrongBytesError(f"{self._name} came with {self._done:,} bytes, expected {self._size_bytes:,}")
            self._checksum.compare(self._name)
            self._require_part()
            check_header(self._part, self._wanted.name)
        except (WrongBytesError, ModelError) as error:
            if not isinstance(error, TransientError):
                self._remove()
            raise
        # Not flushed to the disk: waiting for that would halve the rate of a fast line. A file whose end was still in
        # memory when the power went is shorter than its header says, and that is noticed whenever it is opened.
        return self._checksum.sha256

    def _require_part(self) -> None:
        """Raise TransientError where somebody took the part away while it was written."""
        # By its size, not by its number: not every network file system gives a file the same one twice.
        if not self._part.exists() or self._part.stat().st_size != self._done:
            raise broke_off(self._wanted.name, "its half file was removed meanwhile")

    @property
    def _name(self) -> str:
        return printable(self._wanted.name)

    @property
    def _whole(self) -> bool:
        return self._ended or (self._size_bytes is not None and self._done >= self._size_bytes)

    def _run(self) -> None:
        failures = 0
        while not self._whole:
            before = self._done
            try:
                self._attempt()
            except TransientError as error:
                failures = 1 if self._done - before > self._least_step else failures + 1
                pause_s = error.wait_s if error.wait_s is not None else [*PAUSES_S, _MOST_WAIT_S][failures - 1]
                if failures > len(PAUSES_S) or pause_s > _MOST_WAIT_S:
                    raise self._given_up(error) from None
                self._notify(f"{error.message}; trying again in {format_seconds(pause_s)}")
                if self._stop.wait(pause_s):
                    raise UserInterruptError from None

    @property
    def _least_step(self) -> int:
        return min(_STEP_BYTES, (self._size_bytes or 0) // 100)

    def _given_up(self, error: TransientError) -> TransientError:
        if not self._done or self._cannot_go_on:
            return error
        return TransientError(f"{error.message}; {self._kept()}", hint=f"{GO_ON}: {error.hint}")

    def _kept(self) -> str:
        whole = f" of {format_bytes(self._size_bytes)}" if self._size_bytes is not None else ""
        return f"{format_bytes(self._done)}{whole} are kept"

    def _attempt(self) -> None:
        with self._opener(self._done) as body:
            total = self._begin(body)
            first = b""
            if not self._done:
                first = _start_of(body)
                if len(first) >= _START_BYTES or total in {None, len(first)}:  # else it was cut, and comes again
                    refuse_other(first, self._wanted.name)
            self._compare_total(total)
            self._take(memoryview(first))
            while not self._whole and (piece := body.read()):
                self._take(piece)
            if total is None and self._size_bytes is None:
                self._ended = True  # without a stated length the end of the answer is all there is to go by
            elif not self._whole:
                raise broke_off(self._wanted.name, f"{format_bytes(self._done)} of {format_bytes(total or 0)} came")

    def _begin(self, body: Body) -> int | None:
        """The size of the whole file as the answer states it; what is there is dropped where it does not go on."""
        if body.encoded:
            raise ModelError(f"{printable(body.host)} sends {self._name} compressed, which cannot be checked")
        if body.status == 206:
            span = content_range(body.headers)
            if span and span[0] == self._done:
                return span[1]
            self._start_over()
            raise broke_off(self._wanted.name, "the server sent another part than the one asked for")
        if body.status == 416:
            self._start_over()
            raise broke_off(self._wanted.name, "the server has no such part of it")
        if self._done:
            self._notify(f"{self._wanted.name} has changed, or its server cannot go on: fetching it from the start")
            self._cannot_go_on = True
            self._start_over()
        return body.length

    def _compare_total(self, total: int | None) -> None:
        if self._size_bytes is None:
            self._size_bytes = total
        elif total is not None and total != self._size_bytes:
            raise ModelError(
                f"{self._name} is sent with {total:,} bytes, expected {self._size_bytes:,}",
                hint="try again: the repository may just be changing",
            )

    def _take(self, piece: memoryview) -> None:
        if self._stop.is_set():
            raise UserInterruptError
        if self._size_bytes is not None and self._done + len(piece) > self._size_bytes:
            raise ModelError(f"{self._name} goes on after its {self._size_bytes:,} bytes: refused")
        if not piece:
            return
        try:
            self._write(piece)
        except OSError as error:
            raise self._disk_error(error) from None
        self._count(piece)

    def _write(self, piece: memoryview) -> None:
        if self._file is None:
            self._file = open(self._part, "w+b", buffering=0)  # noqa: SIM115
        # At its place, not at the end: where a file system's locks do not hold, two writers put down the same bytes.
        self._file.seek(self._done)
        written = 0
        while written < len(piece):
            written += self._file.write(piece[written:]) or 0

    def _count(self, piece: memoryview) -> None:
        self._settle()  # at most one piece is being hashed while the next one comes: a body keeps two
        self._hashing = self._hasher.submit(self._checksum.update, piece)
        self._done += len(piece)
        self._task.update(self._done)

    def _settle(self) -> None:
        """Wait until every piece is in the checksum."""
        if self._hashing:
            self._hashing.result()
            self._hashing = None

    def _disk_error(self, error: OSError) -> Exception:
        """Never an OSError: one that came out of here would be taken for a line that broke off, and tried again."""
        error.filename = error.filename or str(self._part)
        found = as_disk_error(error, self._part.parent, move_with=self._wanted.move_with)
        kept = f"; {self._kept()}" if self._done else ""
        if isinstance(found, ResourceError):
            again = f"make room and give the same command again; or set {self._wanted.move_with} to another disk"
            return ResourceError(f"{found.message}{kept}", hint=found.hint if error.errno == errno.EFBIG else again)
        where = printable(str(error.filename))
        return found or LlmcliError(f"cannot write {where}: {error.strerror or error}{kept}")

    def _start_over(self) -> None:
        self._settle()
        if self._file:
            self._file.seek(0)
            self._file.truncate(0)
        self._checksum = Checksum(self._wanted.digest, self._wanted.size_bytes)
        self._size_bytes, self._done, self._ended = self._wanted.size_bytes, 0, False
        self._task.update(0)

    def _remove(self) -> None:
        self._start_over()
        if self._file:
            self._file.close()
            self._file = None
        with contextlib.suppress(OSError):
            self._part.unlink()


def _start_of(body: Body) -> bytes:
    """The first bytes of the file: enough to see what it is, unless it is shorter or cut there."""
    start = bytearray()
    while len(start) < _START_BYTES and (piece := body.read()):
        start += piece
    return bytes(start)
