"""How work that takes a while reports its progress, without knowing who shows it.

The terminal's bar lives in the cli; everything here and below it only calls the factory it was given.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Progress(Protocol):
    """One running task."""

    def update(self, done: int, /) -> None:
        """Tell how much is done in all, in the task's unit: a total, not a step."""


class ProgressFactory(Protocol):
    """Starts a task: `with progress("fetching x", 98362432) as task: task.update(n)`; the total may be unknown.

    unit   what the total and the updates count: bytes where it is "", else this noun in the singular
    """

    def __call__(self, title: str, total: int | None, unit: str = "", /) -> AbstractContextManager[Progress]:
        """A context manager that shows the task while it is entered, and ends it on any way out."""


class SilentProgress:
    """Progress that nobody looks at."""

    def update(self, done: int, /) -> None:
        """Do nothing."""


def silent(title: str, total: int | None, unit: str = "", /) -> AbstractContextManager[Progress]:  # noqa: ARG001
    """The ProgressFactory for when there is nobody to show anything to."""
    return nullcontext(SilentProgress())
