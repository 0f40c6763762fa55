"""/read: a file's text for the next message. Only what can end and what can fit is read. And counting tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from llmcli.base.bounded_file import open_plain
from llmcli.base.errors import ContextOverflowError, UsageError
from llmcli.base.text import decode_utf8, printable
from llmcli.base.units import format_count
from llmcli.cli.chat_shell import ChatShell

# What is tokenized in one go, without an ear for Ctrl-C: a tenth of a second. A count of more may be off by one each.
_PIECE_CHARS = 1 << 18


def attach(shell: ChatShell, file: str) -> int:
    """Put a file's text before the next message; how many tokens it has.

    Raises UsageError for what is no readable file, ContextOverflowError, UserInterruptError.
    """
    engine = shell.conversation.engine
    longest = max(engine.inspected.facts.longest_token_bytes, 1)
    data = _read(file, longest, engine.context.n_ctx)
    text, bad_offset = decode_utf8(data)
    if bad_offset is not None:
        shell.notify(f"warning: {printable(file)} is not UTF-8 at byte {bad_offset:,}; wrong bytes were replaced")
    count = 0
    for more in _counts(shell, text):
        count += more
        _require_room(file, count, engine.context.n_ctx)
    shell.attachments.append(text)
    return count


def count_tokens(shell: ChatShell, text: str) -> int:
    """How many tokens a text has. Raises UserInterruptError."""
    return sum(_counts(shell, text))


def _counts(shell: ChatShell, text: str) -> Iterator[int]:
    for start in range(0, len(text), _PIECE_CHARS):
        piece = text[start : start + _PIECE_CHARS]
        yield len(shell.conversation.engine.model.tokenizer.tokenize(piece, parse_special=False))
        shell.require_wanted()


def _read(file: str, longest_token_bytes: int, n_ctx: int) -> bytes:
    """The whole file; of one that is too large for sure, its size alone is looked at."""
    try:
        with os.fdopen(open_plain(Path(os.path.expanduser(file))), "rb") as source:
            _require_room(file, os.fstat(source.fileno()).st_size // longest_token_bytes, n_ctx)
            data = source.read(n_ctx * longest_token_bytes)  # one that grows, or whose size nobody knows
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read {printable(file)}: {reason}") from None
    _require_room(file, len(data) // longest_token_bytes, n_ctx)
    return data


def _require_room(file: str, least_tokens: int, n_ctx: int) -> None:
    if least_tokens >= n_ctx:
        count = format_count(least_tokens, "token")
        raise ContextOverflowError(
            f"{printable(file)} has at least {count}, and the context {n_ctx:,}", hint="a larger -c, or a part of it"
        )
