"""Saving the KV of a prompt while it is used: the engine's thread takes blocks out, a writer thread puts them on disk.

Taking a block out is a memory copy; writing it (checksum, file, fsync) happens beside the computing. The buffers
between the two are few, and nothing waits for the disk before the answer is out: a block that finds no free buffer is
taken out later, since its rows stay in the cache. A recurrent state, which the next token overwrites, is set aside
then. At the end the writer is waited for, but not for ever, and not longer than the user likes (Ctrl-C).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence

from llmcli.base.records import dataclass
from llmcli.cache_store.keys import BLOCK_TOKENS, Fingerprint
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.store import PrefixStore
from llmcli.engine.interrupt import StopFlag
from llmcli.engine.kv_layout import STATE, Structure
from llmcli.engine.session import Session
from llmcli.engine.state_io import ExportFailedError, StateMover

_BUFFERS = 3
_PREVIEW_TOKENS = 48
# How long the end of a run waits for the disk: for an answer that is complete, for one that Ctrl-C ended, and once
# Ctrl-C was pressed while waiting.
_PATIENCE_S, _INTERRUPTED_S, _LEAVE_S = 60.0, 5.0, 0.5
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) that make one block; with the recurrent state at its end where `state`."""

    start: int
    end: int
    state: bool
    exact: bool = True


def plan_spans(start: int, end: int, states: Sequence[int], *, exact_end: int, parting: int = 0) -> list[Span]:
    """Cut [start, end) into blocks: at multiples of 256, at the positions of states, where exactness ends, and where
    the prompt parts from a stored one: all that part there share what lies before, and each is saved behind it.
    """
    cuts = {end, *(p for p in (*states, exact_end, parting) if start < p < end)}
    cuts.update(range(start - start % BLOCK_TOKENS + BLOCK_TOKENS, end, BLOCK_TOKENS))
    spans, position = [], start
    for cut in sorted(cuts):
        spans.append(Span(position, cut, state=cut in states, exact=cut <= exact_end))
        position = cut
    return spans


class _Patience:
    """How long to wait; a Ctrl-C that comes while waiting cuts it short."""

    def __init__(self, stop: StopFlag, wait_s: float | None = None) -> None:
        self._stop = stop
        self._was_stopped = stop.is_set()
        if wait_s is None:
            wait_s = _INTERRUPTED_S if self._was_stopped else _PATIENCE_S
        self._until_s = time.monotonic() + wait_s

    def is_left(self) -> bool:
        """Whether to go on waiting."""
        now_s = time.monotonic()
        if self._stop.is_set() and not self._was_stopped:
            self._was_stopped, self._until_s = True, min(self._until_s, now_s + _LEAVE_S)
        return now_s < self._until_s


@dataclass(slots=True)
class _Job:
    span: Span
    parts: dict[str, memoryview]
    mover: StateMover
    preview: str


class Saver:
    """Saves the spans of one prompt, in order, behind `parent`. `pump` in the engine's thread, `finish` at the end.

    refused   why the chain ends early, None where it does not
    bug       what went wrong in the writer thread that nobody thought of
    """

    def __init__(
        self,
        store: PrefixStore,
        fingerprint: Fingerprint,
        structure: Structure,
        session: Session,
        ids: Sequence[int],
        spans: Sequence[Span],
        parent: BlockRef | None,
    ) -> None:
        self._store, self._fingerprint, self._structure = store, fingerprint, structure
        self._session, self._ids, self._parent = session, ids, parent
        self._waiting = list(spans)
        self._free: queue.SimpleQueue[StateMover] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._aside: StateMover | None = None
        self._states: dict[int, bytes] = {}  # set aside, by the position that they stand at
        self._stopped = False
        self.written_bytes = 0
        self.writing_s = 0.0
        self.saved_end = parent.end_tokens if parent else 0
        self.refused: str | None = None
        self.bug: Exception | None = None

    def pump(self) -> None:
        """Take out what has been computed, as far as there are free buffers."""
        self._pump(None)

    def _pump(self, patience: _Patience | None) -> None:
        while self._waiting and not self._stopped and self._waiting[0].end <= len(self._session.tokens):
            span = self._waiting[0]
            if not self._holds(span):
                self._stopped = True
                return
            mover = self._buffer(patience)
            if mover is None:
                self._set_states_aside()
                return
            self._waiting.pop(0)
            self._take_out(span, mover)

    def _holds(self, span: Span) -> bool:
        """Whether the session still holds these tokens of this prompt, computed behind all that comes before them."""
        session, tokens = self._session, self._ids[span.start : span.end]
        return session.is_whole and session.tokens[span.start : span.end] == list(tokens)

    def _buffer(self, patience: _Patience | None) -> StateMover | None:
        if self._thread is None:
            for _ in range(_BUFFERS):
                self._free.put(StateMover(self._session.context, self._structure))
            self._thread = threading.Thread(target=self._write, name="prefix store", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Empty):
            return self._free.get(block=False)
        while patience and patience.is_left() and self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                return self._free.get(timeout=_POLL_S)
        return None

    def _set_states_aside(self) -> None:
        """Copy the state that a waiting block ends with and the next token overwrites."""
        position = len(self._session.tokens)
        for span in self._waiting:
            if span.state and span.end == position and position not in self._states and self._holds(span):
                self._aside = self._aside or StateMover(self._session.context, self._structure)
                if parts := self._export(span, self._aside, state=True):
                    self._states[position] = bytes(parts[STATE])

    def _take_out(self, span: Span, mover: StateMover) -> None:
        aside = self._states.pop(span.end, None)
        parts = self._export(span, mover, state=span.state and aside is None)
        if parts is None:
            return
        if aside:
            parts[STATE] = memoryview(aside)
        self._jobs.put(_Job(span, parts, mover, self._preview(self._ids[span.start : span.end])))

    def _export(self, span: Span, mover: StateMover, *, state: bool) -> dict[str, memoryview] | None:
        """The parts of a block, none where it has neither rows nor a state; None, and the chain ends, on failure."""
        if self._structure.attention is None and not state:
            return {}
        try:
            return mover.export(span.start, self._ids[span.start : span.end], state=state)
        except ExportFailedError as error:
            self._stopped, self.refused = True, error.message
            return None

    def _preview(self, tokens: Sequence[int]) -> str:
        tokenizer = self._session.context.model.tokenizer
        pieces = (tokenizer.piece(token, special=True) for token in tokens[:_PREVIEW_TOKENS])
        return b"".join(pieces).decode("utf-8", "replace")

    def _write(self) -> None:
        """The writer thread."""
        try:
            self._write_jobs()
        except Exception as error:  # noqa: BLE001  # the boundary of this thread: a bug here must not cost the answer
            self.bug, self.refused, self._stopped = error, "an internal error", True

    def _write_jobs(self) -> None:
        """A block that is refused ends the chain, since what follows could not be found."""
        while job := self._jobs.get():
            begun = time.perf_counter()
            if self.refused is None:
                self._put(job)
            job.parts = {}
            self._free.put(job.mover)
            self.writing_s += time.perf_counter() - begun
        self._store.flush()

    def _put(self, job: _Job) -> None:
        stored = self._store.put(
            self._fingerprint,
            self._parent,
            self._ids[job.span.start : job.span.end],
            job.parts,
            preview=job.preview,
            exact=job.span.exact,
        )
        if stored.ref is None:
            self.refused, self._stopped = stored.refused or "refused", True
        else:
            self._parent, self.saved_end = stored.ref, stored.ref.end_tokens
            self.written_bytes += stored.written_bytes

    def finish(self) -> bool:
        """Write what is left, as long as it is worth waiting for; False where the writer was left behind."""
        patience = _Patience(self._session.context.stop)
        self._pump(patience)
        return self._end(patience)

    def leave(self) -> bool:
        """The same after an error: what is taken out already is written, and nothing is waited for but a moment."""
        return self._end(_Patience(self._session.context.stop, _LEAVE_S))

    def _end(self, patience: _Patience) -> bool:
        self._stopped = True
        if self._thread is None:
            return True
        self._jobs.put(None)
        while self._thread.is_alive() and patience.is_left():
            self._thread.join(_POLL_S)
        if self._thread.is_alive():
            self.refused = "left behind"  # a block in the middle of being written may still get its name
            return False
        return True
