"""Every failure llmcli reports on purpose: a message, the next thing to type, and the exit code.

Anything else that reaches the error boundary in `llmcli.cli.main` is a bug in llmcli.
The codes are the table of docs/exit-codes.md.
"""

from __future__ import annotations

from typing import ClassVar


class LlmcliError(Exception):
    """A failure with one line for the user.

    message     what went wrong: the thing named, expected and found; no final full stop needed
    hint        what to type or change next; None where there is nothing useful to say
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LlmcliError):
    """The command line, an environment default or the config file is not usable (exit 2)."""

    exit_code = 2


class ModelError(LlmcliError):
    """The model is not there, is not a model, or cannot be had (exit 3)."""

    exit_code = 3


class ContextOverflowError(LlmcliError):
    """The prompt does not fit the context; nothing was generated (exit 4)."""

    exit_code = 4


class LimitMissedError(LlmcliError):
    """A limit that the user set was missed (exit 5)."""

    exit_code = 5


class ResourceError(LlmcliError):
    """Not enough memory or disk (exit 6)."""

    exit_code = 6


class UserInterruptError(LlmcliError):
    """Ctrl-C, before or during the work (exit 130)."""

    exit_code = 130

    def __init__(self, message: str = "interrupted", *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
