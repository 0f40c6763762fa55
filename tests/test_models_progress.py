"""The protocol of progress, and the one that nobody looks at."""

from __future__ import annotations

from llmcli.models.progress import ProgressFactory, silent


def test_silent_is_a_factory_that_takes_updates() -> None:
    factory: ProgressFactory = silent
    with factory("fetching", None) as task:
        assert task.update(3) is None  # type: ignore[func-returns-value]
