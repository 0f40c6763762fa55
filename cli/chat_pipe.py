"""A chat that is not at a terminal: turns in on stdin, one per line, answers out on stdout, to the end of the input.

A line that begins with a slash is words for the model like any other, because nobody watches what a command did; with
--commands it is one. What a command says goes to stderr.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass

from llmcli.base.errors import LlmcliError, UsageError, UserInterruptError
from llmcli.base.text import decode_utf8
from llmcli.base.units import format_bytes
from llmcli.cli import output
from llmcli.cli.chat_shell import ChatShell, FrontOptions, Outcome
from llmcli.cli.prefill_line import PrefillLine
from llmcli.engine.chat_reply import Reply

_STDIN = 0
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class PipeOptions:
    """separator: what ends a turn; json: one object per turn in place of the text; commands: /words are commands."""

    separator: str = "\n"
    json: bool = False
    commands: bool = False


def run_pipe(shell: ChatShell, options: FrontOptions, pipe: PipeOptions) -> int:
    """Answer turn after turn until stdin ends. Raises LlmcliError, BrokenPipeError."""
    with PrefillLine(shown=options.reporter.draws) as line:
        shell.conversation.on_progress = line.tell
        _answer_turns(shell, options, pipe)
    shell.conversation.settle(ahead=shell.conversation.name is not None)
    return 0


def _answer_turns(shell: ChatShell, options: FrontOptions, pipe: PipeOptions) -> None:
    for data in _turns(pipe.separator.encode()):
        text = _decoded(data, shell)
        if not text.strip():
            continue
        if pipe.commands and shell.is_command(text):
            outcome = shell.do(text)
            _tell(outcome, quiet=options.quiet)
            if outcome.leave:
                break
            reply = outcome.reply
        else:
            reply = shell.conversation.say(shell.compose(text))
        if reply:
            print_reply(reply, options, json=pipe.json)
            shell.conversation.require_saved()


def _decoded(data: bytes, shell: ChatShell) -> str:
    text, bad_offset = decode_utf8(data)
    if bad_offset is not None:
        shell.notify(f"warning: stdin is not UTF-8 at byte {bad_offset:,} of a turn; wrong bytes were replaced")
    return text


def _tell(outcome: Outcome, *, quiet: bool) -> None:
    """What a command said, on stderr. Raises UsageError for what needs somebody to type."""
    if outcome.edit is not None:
        raise UsageError("here /edit needs the new text: /edit TEXT")
    for line in () if quiet else outcome.lines:
        output.stderr_line(line)


def print_reply(reply: Reply, options: FrontOptions, *, json: bool) -> None:
    """The answer with one newline at its end, thinking on stderr; or one object. Raises UserInterruptError."""
    last, thinking = "", ""
    for part in reply.parts():
        if part.kind == "text":
            if thinking and not thinking.endswith("\n"):
                options.reporter.thinking("\n")
            thinking = ""
            if not json:
                output.write(part.text)
            last = part.text[-1:] or last
        elif options.reasoning == "show" and not json:
            options.reporter.thinking(part.text)
            thinking = part.text
    if thinking and not thinking.endswith("\n"):
        options.reporter.thinking("\n")
    if json:
        output.write_json(reply.as_json())
    elif last != "\n":
        output.write("\n")
    if reply.cut_note and not options.quiet:
        output.stderr_line(f"the answer was {reply.cut_note}")
    if options.stats:
        output.stderr_line(reply.stats_line())
    if reply.finish_reason == "interrupted":
        raise UserInterruptError


def _turns(separator: bytes) -> Iterator[bytes]:
    """The turns as they come, without what separates them."""
    buffer, searched = bytearray(), 0
    while True:
        while (at := buffer.find(separator, searched)) >= 0:
            yield bytes(buffer[:at]).removesuffix(b"\r" if separator == b"\n" else b"")
            del buffer[: at + len(separator)]
            searched = 0
        searched = max(0, len(buffer) - len(separator) + 1)
        piece = _read()
        if not piece:
            break
        buffer += piece
        if len(buffer) > _MOST_BYTES:
            raise UsageError(f"a turn on stdin is larger than {format_bytes(_MOST_BYTES)}: no context holds that")
    if buffer:
        yield bytes(buffer)


def _read() -> bytes:
    while True:
        try:
            return os.read(_STDIN, _CHUNK_BYTES)
        except BlockingIOError:  # a pipe that its owner made non-blocking
            with contextlib.suppress(OSError):
                select.select([_STDIN], [], [])
        except OSError as error:
            raise LlmcliError(f"cannot read stdin: {error.strerror}") from None
