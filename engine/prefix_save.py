"""Saving the KV of a prompt while it is used: the engine's thread takes blocks out, a writer thread puts them on disk.

Taking a block out is a memory copy; writing it (checksum, file, fsync) happens beside the computing. The buffers
between the two are few, and nothing waits for the disk: a block that finds no free buffer is taken out later, since
its rows stay in the cache. Only a recurrent state, which the next token overwrites, is waited for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from llmcli.cache_store.keys import BLOCK_TOKENS, Fingerprint
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.store import PrefixStore
from llmcli.engine.kv_layout import Structure
from llmcli.engine.session import Session
from llmcli.engine.state_io import ExportFailedError, StateMover

_BUFFERS = 3
_PREVIEW_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) that make one block; with the recurrent state at its end where `state`."""

    start: int
    end: int
    state: bool
    exact: bool = True


def plan_spans(start: int, end: int, states: Sequence[int], *, exact_end: int) -> list[Span]:
    """Cut [start, end) into blocks: at multiples of 256, at the positions of states, and where exactness ends."""
    cuts = {end, *(p for p in states if start < p < end)}
    if start < exact_end < end:
        cuts.add(exact_end)
    cuts.update(range(start - start % BLOCK_TOKENS + BLOCK_TOKENS, end, BLOCK_TOKENS))
    spans, position = [], start
    for cut in sorted(cuts):
        spans.append(Span(position, cut, state=cut in states, exact=cut <= exact_end))
        position = cut
    return spans


@dataclass(slots=True)
class _Job:
    span: Span
    parts: dict[str, memoryview]
    mover: StateMover
    preview: str


class Saver:
    """Saves the spans of one prompt, in order, behind `parent`. `pump` in the engine's thread, `finish` at the end."""

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
        self._stopped = False
        self.written_bytes = 0
        self.writing_s = 0.0
        self.saved_end = parent.end_tokens if parent else 0
        self.refused: str | None = None

    def pump(self, *, wait: bool = False) -> None:
        """Take out what has been computed, as far as there are free buffers; with `wait` all of it."""
        while self._waiting and not self._stopped and self._waiting[0].end <= len(self._session.tokens):
            if not self._session.is_whole:
                self._stopped = True
                return
            span = self._waiting[0]
            mover = self._buffer(wait=wait or span.state)
            if mover is None:
                return
            self._waiting.pop(0)
            self._take_out(span, mover)

    def _buffer(self, *, wait: bool) -> StateMover | None:
        if self._thread is None:
            for _ in range(_BUFFERS):
                self._free.put(StateMover(self._session.context, self._structure))
            self._thread = threading.Thread(target=self._write, name="prefix store", daemon=True)
            self._thread.start()
        try:
            return self._free.get(block=wait)
        except queue.Empty:
            return None

    def _take_out(self, span: Span, mover: StateMover) -> None:
        tokens = self._ids[span.start : span.end]
        try:
            stateless = self._structure.attention is None and not span.state
            parts = {} if stateless else mover.export(span.start, tokens, state=span.state)
        except ExportFailedError as error:
            self._stopped, self.refused = True, error.message
            return
        self._jobs.put(_Job(span, parts, mover, self._preview(tokens)))

    def _preview(self, tokens: Sequence[int]) -> str:
        tokenizer = self._session.context.model.tokenizer
        pieces = (tokenizer.piece(token, special=True) for token in tokens[:_PREVIEW_TOKENS])
        return b"".join(pieces).decode("utf-8", "replace")

    def _write(self) -> None:
        """The writer thread: a block that is refused ends the chain, since what follows could not be found."""
        while job := self._jobs.get():
            begun = time.perf_counter()
            if self.refused is None:
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
            job.parts = {}
            self._free.put(job.mover)
            self.writing_s += time.perf_counter() - begun
        self._store.flush()

    def finish(self, timeout_s: float) -> bool:
        """Write what is left, for at most so long; False where the writer was left behind."""
        self.pump(wait=True)
        if self._thread is None:
            return True
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
