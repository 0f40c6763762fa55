"""Where words go: answers and data to stdout, byte for byte; everything else to stderr, one line each.

stdout is written through its descriptor, unbuffered by Python: what was printed has left the process, a reader that
went away is noticed at once, and nothing fails at interpreter exit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable
from typing import Any

from llmcli.base.errors import LlmcliError, ResourceError
from llmcli.base.text import printable
from llmcli.cli.safe_text import harmless

READER_GONE = 141  # 128 + SIGPIPE, what a shell reports for a program that a closed pipe ended
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_closed_at_start: set[int] = set()


def open_missing_descriptors() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed, so that no file we open later gets their number."""
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            _closed_at_start.add(descriptor)
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest free number is the missing one


def stdin_is_open() -> bool:
    """Whether there was a stdin when llmcli started."""
    return _STDIN not in _closed_at_start


def is_terminal(descriptor: int = _STDOUT) -> bool:
    """Whether the descriptor is a terminal."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def terminal_columns() -> int | None:
    """How wide the terminal on stdout is, as the system or COLUMNS tells; None where stdout is none."""
    if not is_terminal():
        return None
    import shutil  # 3 ms, with the archives behind it

    return shutil.get_terminal_size().columns


def write(text: str) -> None:
    """Write `text` to stdout as UTF-8, whatever the locale; on a terminal control characters are shown harmlessly.

    Raises BrokenPipeError when the reader is gone, ResourceError on a full disk, LlmcliError when stdout is closed.
    """
    _send((harmless(text) if is_terminal(_STDOUT) else text).encode("utf-8", "backslashreplace"))


def write_names(names: Iterable[str]) -> None:
    """Names of files on stdout, one on a line: the very bytes that the file system has, so that they can be used again.

    On a terminal each is shown on its line, with escapes for what could drive the terminal. Raises as `write` does.
    """
    if is_terminal(_STDOUT):
        write("".join(f"{printable(name)}\n" for name in names))
    else:
        _send(b"".join(_file_system_bytes(name) + b"\n" for name in names))


def _file_system_bytes(name: str) -> bytes:
    try:
        return os.fsencode(name)
    except UnicodeEncodeError:  # of config.toml, and not to be had in this locale
        return name.encode("utf-8", "backslashreplace")


def _send(data: bytes) -> None:
    if _STDOUT in _closed_at_start:
        raise LlmcliError("stdout is closed: there is nowhere to write the answer")
    try:
        _write_all(_STDOUT, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(f"cannot write the answer: {error.strerror}") from None
        raise LlmcliError(f"cannot write to stdout: {error.strerror}") from None


def write_json(value: Any) -> None:
    """One JSON object on one line of stdout; names of files that are not UTF-8 make it ASCII with escapes."""
    import json

    line = json.dumps(value, ensure_ascii=False)
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        line = json.dumps(value)
    write(line + "\n")


def stderr_line(text: str) -> None:
    """One line on stderr; failures there are nobody's business."""
    stderr_text(text + "\n")


def stderr_error(message: str, hint: str | None = None) -> None:
    """What went wrong in one line; the hint stands behind it, or below it where it is a table."""
    if hint and "\n" in hint:
        hint = "\n".join(printable(line) for line in hint.split("\n"))
        stderr_line(f"error: {printable(message)}; {hint}")
    else:
        stderr_line("error: " + printable(message + (f" ({hint})" if hint else "")))


def os_error_line(error: OSError) -> str:
    """What the system refused, with the file's name where there is one."""
    reason = error.strerror or str(error)
    return f"{printable(str(error.filename))}: {reason}" if error.filename else reason


def os_failure(error: OSError, what: str = "", *, hint: str | None = None) -> LlmcliError:
    """The same as a failure with its exit code; `what` goes before it."""
    kind = ResourceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else LlmcliError
    return kind(what + os_error_line(error), hint=hint)


def stderr_text(text: str) -> None:
    """Raw text on stderr, in the encoding of the stream, with escapes for what it lacks."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError):
        _write_all(_STDERR, text.encode(encoding, "backslashreplace"))


def read_line() -> str:
    """One line of stdin, without what follows it; "" at its end."""
    line = bytearray()
    while (byte := os.read(_STDIN, 1)) and byte != b"\n":
        line += byte
    return line.decode("utf-8", "replace")


def flush_clicks_output() -> int:
    """Send off what click printed through Python's own stdout (help, the version); the exit code where that fails.

    Python would try again at exit, and print a traceback of its own: the rest goes to the null device instead.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        return READER_GONE if isinstance(error, BrokenPipeError) else 1
    return 0


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody else made the pipe non-blocking
            import select

            select.select([], [descriptor], [])
