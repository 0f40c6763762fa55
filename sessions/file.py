"""One session's file: read to the last sound line, and appended to, synced, as each turn ends.

A last line that was cut off (kill -9, a full disk) is no damage: the turn in flight is lost, and that is said, as is a
question behind which no turn stands. A last line that only lacks its newline is whole. A line in the middle that is not
what it should be is left out, said, and left in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.base.files import atomic_write, fsync_dir, make_private_dir
from llmcli.base.text import printable
from llmcli.sessions.disk import FORBIDDEN, append, size_of, unwritable
from llmcli.sessions.events import (
    EventError,
    Header,
    ModelNote,
    NewerVersionError,
    Replay,
    event_line,
    model_line,
    turn_line,
)
from llmcli.sessions.turns import History, Turn

SUFFIX = ".jsonl"
_MOST_LINE_BYTES = 256 << 20


class SessionDamagedError(LlmcliError):
    """The file cannot be read as a conversation."""


class Reading:
    """What a file says.

    sound_bytes   where the last whole line ends
    is_ended      whether that line ends with a newline
    is_cut        whether half a line stands behind it; the last warning says so
    warnings      what was left out, one line each
    lost_question   the last one, where no answer stands behind it: one on its way, or lost with its process
    """

    def __init__(self, path: Path) -> None:
        """Raises SessionDamagedError where there is no sound header or a newer version's line, OSError."""
        self.sound_bytes, self.is_ended, self.is_cut = 0, True, False
        self.warnings: list[str] = []
        self._name = printable(path.stem)
        with open(path, "rb") as source:
            lines = self._whole_lines(iter(lambda: source.readline(_MOST_LINE_BYTES), b""))
            self._replay = self._read(lines)
        self.lost_question = self._replay.asking
        self._replay.lose_question()

    @property
    def header(self) -> Header:
        """The first line, with the model of the last change."""
        return self._replay.header

    @property
    def ids_known(self) -> bool:
        """Whether the next turn can be written as its difference to the one before."""
        return self._replay.ids_known

    @property
    def history(self) -> History:
        """What still stands of the conversation."""
        return self._replay.history

    def _whole_lines(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        for line in lines:
            self.is_ended = line.endswith(b"\n")
            if not self.is_ended and not _is_whole(line):
                self.is_cut = self.is_ended = True  # what comes next is written over it
                self.warnings.append(f"the last line of session {self._name} was cut off: the turn in flight is lost")
                return
            self.sound_bytes += len(line)
            yield line

    def _read(self, lines: Iterator[bytes]) -> Replay:
        try:
            replay = Replay.of(Header.from_line(next(lines, b"")))
            for number, line in enumerate(lines, 2):
                self._apply(replay, number, line)
        except NewerVersionError as error:
            raise SessionDamagedError(f"session {self._name} cannot be read: {error}", hint="update llmcli") from None
        except EventError as error:
            raise SessionDamagedError(f"session {self._name} cannot be read: {error}") from None
        return replay

    def _apply(self, replay: Replay, number: int, line: bytes) -> None:
        try:
            replay.apply(line)
        except NewerVersionError:
            raise
        except EventError as error:
            replay.lose_ids()
            self.warnings.append(f"line {number} of session {self._name} is damaged and left out: {error}")


class SessionLog:
    """An open session: what was said, and the file that every change goes to. Only one process has it open.

    name       the session's name; None: nothing is saved
    header     None in a new one, until `begin`
    lost_question   a question that was asked by a process that ended before the answer did
    is_unsaved   something was said that could not be written yet
    warnings   what was found wrong when it was opened
    A file that is not there is made with the first turn, so that nothing is left of a chat in which nothing was said.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the file, where there is one. Raises LlmcliError, OSError."""
        self.path, self.name = path, path.stem if path else None
        self.header: Header | None = None
        self.history = History()
        self.warnings: list[str] = []
        self._size: int | None = None
        self._waiting: list[bytes] = []
        self._is_ended = True  # False: the last line lacks its newline
        self._is_in_folder = True  # False: a power cut could still take the file's name away
        self.is_unsaved = False
        self.lost_question: str | None = None
        self._counts_on = True  # False behind a damaged line: the next turn is written whole
        if path and size_of(path):  # nothing was said in an empty one
            found = Reading(path)
            self.header, self.history, self.warnings = found.header, found.history, found.warnings
            self._size, self._counts_on, self._is_ended = found.sound_bytes, found.ids_known, found.is_ended
            self.lost_question = found.lost_question
            if found.is_cut and found.lost_question is not None:  # the same loss
                self.warnings = self.warnings[:-1]

    def begin(self, header: Header) -> None:
        """What a new session is with."""
        self.header = header
        self.history.system = header.system

    def ask(self, user: str | None) -> None:
        """A question is asked, and its turn will follow; None: it will not. Raises LlmcliError where that is forbidden.

        Not synced: it survives the end of the process. A disk that is full is told with the turn.
        """
        if self.path is None or self.header is None:
            return
        self._waiting.append(event_line("ask", user=user))
        try:
            self._write(self.path, self.header, durable=False)
        except OSError as error:
            self._waiting.pop()
            if error.errno in FORBIDDEN:
                raise unwritable(self.name, error) from None
        else:
            self._written()

    def add(self, turn: Turn) -> None:
        """A turn has ended: it is on disk when this returns. Raises LlmcliError; a later call writes it then."""
        before = self.history.turns[-1] if self.history.turns and self._counts_on else None
        self._counts_on = True
        self.history.add(turn)
        self._append(turn_line(turn, before))

    def undo(self, count: int) -> int:
        """Take turns back; how many there were."""
        if taken := self.history.undo(count):
            self._append(event_line("undo", turns=count))
        return taken

    def clear(self) -> None:
        """Forget all turns."""
        self.history.clear()
        self._append(event_line("clear"))

    def set_system(self, text: str | None) -> None:
        """Another system prompt from here on."""
        self.history.system = text
        self._append(event_line("system", text=text))

    def hide(self, start: int, end: int) -> None:
        """Leave turns [start, end) out from now on. Written with the turn that they make room for."""
        self.history.hide(start, end)
        if self.path:
            self._waiting.append(event_line("drop", start=start, end=end))

    def change_model(self, model: ModelNote, template: tuple[str, str] | None) -> None:
        """Go on with another model."""
        self.history.change_model()
        if self.header:
            self.header = replace(self.header, model=model, template=template)
        self._append(model_line(model, template))

    def _append(self, line: bytes) -> None:
        if self.path is None or self.header is None:
            return
        self._waiting.append(line)
        if self._size is None and not self.history.asked:
            return
        self._save(self.path, self.header)

    def save_rest(self) -> bool:
        """Try once more to write what could not be written; whether there was such. Raises LlmcliError."""
        if not self.is_unsaved or self.path is None or self.header is None:
            return False
        self._save(self.path, self.header)
        return True

    def _save(self, path: Path, header: Header) -> None:
        try:
            self._write(path, header)
        except OSError as error:
            self.is_unsaved = True
            raise unwritable(self.name, error) from None
        self._written()

    def _written(self) -> None:
        self._waiting.clear()
        self.is_unsaved, self._is_ended = False, True

    def _write(self, path: Path, header: Header, *, durable: bool = True) -> None:
        """What waits, at the end of what is sound, or nothing of it."""
        waiting = (b"" if self._is_ended else b"\n") + b"".join(self._waiting)
        if self._size is not None and size_of(path) >= self._size:
            append(path, self._size, waiting, durable=durable)
            if durable and not self._is_in_folder:
                fsync_dir(path.parent)
                self._is_in_folder = True
            self._size += len(waiting)
            return
        # The first turn; or somebody removed the file, or a part of it. In one step: a header alone is no session.
        if self._size is None:
            whole = header.as_line() + waiting
        else:
            whole = session_bytes(header, self.history) + (b"" if durable else self._waiting[-1])
        make_private_dir(path.parent)
        atomic_write(path, whole, durable=durable)
        self._size, self._is_in_folder = len(whole), durable

    def copy_to(self, path: Path) -> None:
        """A new file with the same conversation, as it stands. Raises LlmcliError where nothing was said, OSError."""
        if self.header is None:
            raise LlmcliError("there is nothing to save yet")
        atomic_write(path, session_bytes(self.header, self.history))

    def replace(self, history: History) -> None:
        """Another conversation in the place of this one; the file keeps both, and this one counts."""
        lines = [event_line("clear"), event_line("system", text=None), *snapshot_lines(None, history)]
        self.history = history
        self._append(b"".join(lines))


def _is_whole(line: bytes) -> bool:
    """Whether a line without its newline has all the rest: many editors leave the last one out."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def session_bytes(header: Header, history: History) -> bytes:
    """A session file that says what `history` does, without what was taken back."""
    return b"".join([header.as_line(), *snapshot_lines(header.system, history)])


def snapshot_lines(system: str | None, history: History) -> list[bytes]:
    """The shortest lines that lead from nothing said, with this system prompt, to `history`."""
    state, lines = History(system=system), list[bytes]()

    def bring(system: str | None, hidden: tuple[int, int]) -> None:
        if state.system != system:
            state.system = system
            lines.append(event_line("system", text=system))
        if state.hidden != hidden:
            state.hidden = hidden
            lines.append(event_line("drop", start=hidden[0], end=hidden[1]))

    for turn in history.turns:
        bring(turn.system, turn.hidden)
        lines.append(turn_line(turn, state.turns[-1] if state.turns else None))
        state.add(turn)
    if history.unanswered is not None:
        lines.append(turn_line(Turn(history.unanswered, finish_reason="interrupted"), None))
    bring(history.system, history.hidden)
    return lines


def turn_json(turn: Turn) -> dict[str, Any]:
    """A turn for people and programs, without its tokens."""
    fields = asdict(turn)
    for name in ("prompt_ids", "completion_ids", "content", "system", "hidden", "noted_sum"):
        del fields[name]
    return fields | {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(turn.completion_ids)}
