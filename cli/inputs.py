"""What the user gave as prompt: files, stdin, -p or the argument, in that order.

What stays the same from call to call (documents) comes first and the question last, so that a shared beginning can be
reused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.text import Decoded, decode_utf8, decode_word, printable
from llmcli.base.units import format_bytes
from llmcli.cli import output
from llmcli.engine.prompt import PromptPart

_STDIN = 0
_MOST_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20
_HINT_AFTER_S = 3.0
_HINT = "still waiting for stdin, an open pipe that sends nothing; end it with Ctrl-D, or use --no-stdin"


def gather_parts(
    *,
    prompt: str | None,
    words: Sequence[str],
    files: Sequence[str],
    use_stdin: bool,
    notify: Callable[[str], None],
    example: str,
    keep_blank: bool = False,
    may_be_empty: bool = False,
) -> tuple[PromptPart, ...]:
    """Every part of the prompt that holds more than white space, in order.

    example      a command line that works, for who gave no prompt
    keep_blank   white space is a prompt too, where there is nothing else
    may_be_empty no prompt at all is fine
    Raises UsageError where there is no prompt, LlmcliError where a part cannot be read.
    """
    argument = " ".join(words)
    if prompt is not None and words:
        raise UsageError("the prompt was given twice: with -p and as an argument")
    text = prompt if prompt is not None else argument
    wants_stdin = text == "-" or "-" in files
    if not use_stdin and wants_stdin:
        raise UsageError("'-' asks for stdin and --no-stdin forbids it")
    parts = [_file_part(name, notify) for name in files if name != "-"]
    if wants_stdin or (use_stdin and _stdin_has_input()):
        parts.append(PromptPart("stdin", "stdin", _told(decode_utf8(_read_stdin(notify)), "stdin", notify)))
    if text and text != "-":
        parts.append(PromptPart("argument", "prompt", decode_argument(text, "the prompt", notify)))
    kept = tuple(part for part in parts if part.text.strip())
    if not kept and keep_blank:
        kept = tuple(part for part in parts if part.text)
    if not kept and not may_be_empty:
        raise UsageError("there is no prompt", hint=f"try: {example}")
    return kept


def decode_argument(text: str, source: str, notify: Callable[[str], None]) -> str:
    """A word of the command line as text, with a warning where it is not UTF-8."""
    return _told(decode_word(text), source, notify)


def system_prompt(values: Mapping[str, Any], notify: Callable[[str], None]) -> str | None:
    """The system prompt of -sys or -sysf. Raises UsageError where both are given or the file cannot be read."""
    text, file = values["system_prompt"], values["system_prompt_file"]
    if text is not None and file is not None:
        raise UsageError("the system prompt was given twice: with -sys and with -sysf")
    if file is not None:
        return read_text_file(file, notify).rstrip("\n")
    return None if text is None else decode_argument(text, "the system prompt", notify)


def read_text_file(name: str, notify: Callable[[str], None]) -> str:
    """The text of a file that the user named. Raises LlmcliError with the reason."""
    return _file_part(name, notify).text


def _file_part(name: str, notify: Callable[[str], None]) -> PromptPart:
    path = Path(name)
    try:
        if not stat.S_ISREG(path.stat().st_mode) and path.is_dir():
            raise UsageError(f"{printable(name)} is a directory, not a file")
        with open(path, "rb") as source:
            data = _read_bounded(source.read, printable(name))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name, which config.toml can have
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read {printable(name)}: {reason}") from None
    return PromptPart("file", name, _told(decode_utf8(data), printable(name), notify))


def _told(decoded: Decoded, source: str, notify: Callable[[str], None]) -> str:
    if decoded.bad_offset is not None:
        notify(f"warning: {source} is not UTF-8 at byte {decoded.bad_offset:,}; wrong bytes were replaced")
    return decoded.text


def _stdin_has_input() -> bool:
    if not output.stdin_is_open() or output.is_terminal(_STDIN):
        return False
    try:
        os.read(_STDIN, 0)
    except OSError as error:
        return error.errno != errno.EBADF  # open for writing alone, as nohup leaves it: nobody meant to send anything
    return True


def _read_stdin(notify: Callable[[str], None]) -> bytes:
    if output.is_terminal(_STDIN):
        notify("reading the prompt from the terminal; end it with Ctrl-D")
    heard = threading.Event()
    hint = threading.Thread(target=_hint_later, args=(heard, notify), daemon=True)
    if _is_pipe():
        hint.start()

    def read(count: int) -> bytes:
        data = os.read(_STDIN, min(count, _CHUNK_BYTES))
        heard.set()
        return data

    try:
        return _read_bounded(read, "stdin")
    except OSError as error:
        raise LlmcliError(f"cannot read stdin: {error.strerror}") from None
    finally:
        heard.set()


def _hint_later(heard: threading.Event, notify: Callable[[str], None]) -> None:
    if not heard.wait(_HINT_AFTER_S):
        notify(_HINT)


def _is_pipe() -> bool:
    mode = os.fstat(_STDIN).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _read_bounded(read: Callable[[int], bytes], source: str) -> bytes:
    pieces: list[bytes] = []
    total = 0
    while True:
        try:
            piece = read(_CHUNK_BYTES)
        except BlockingIOError:  # a pipe that its owner made non-blocking: wait for data instead of failing
            with contextlib.suppress(OSError):
                select.select([_STDIN], [], [])
            continue
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        total += len(piece)
        if total > _MOST_BYTES:
            raise UsageError(f"{source} is larger than {format_bytes(_MOST_BYTES)}: no context holds that")
