"""The exit codes are a promise (docs/exit-codes.md)."""

from __future__ import annotations

import pytest

from llmcli.base import errors

CODES = {
    errors.LlmcliError: 1,
    errors.UsageError: 2,
    errors.ModelError: 3,
    errors.ContextOverflowError: 4,
    errors.LimitMissedError: 5,
    errors.ResourceError: 6,
    errors.UserInterruptError: 130,
}


@pytest.mark.parametrize(("kind", "code"), CODES.items())
def test_each_class_has_its_exit_code(kind: type[errors.LlmcliError], code: int) -> None:
    assert kind("what happened").exit_code == code


def test_no_class_was_forgotten() -> None:
    found = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.LlmcliError)}
    assert found == set(CODES)


def test_message_and_hint() -> None:
    error = errors.ModelError("no such file: x.gguf", hint="llmcli ls")
    assert (error.message, error.hint, str(error)) == ("no such file: x.gguf", "llmcli ls", "no such file: x.gguf")
    assert errors.ModelError("x").hint is None


def test_an_interrupt_needs_no_words() -> None:
    assert errors.UserInterruptError().message == "interrupted"
