"""What the tests of `llmcli cache` share: the command in this process, on a scripted model whose tokens are bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcli.cache_store.cost import Rates
from llmcli.cli.main import call

# 300 bytes and no space, which is three bytes to this vocabulary. With the chat's frame, <|im_start|>user\n before it
# and a blank line behind it, 308 tokens.
TEXT = ("The-quick-brown-fox-jumps-over-the-lazy-dog.\n" * 7)[:300]
TEXT_TOKENS, STORED_TOKENS = 308, 256


class Cache:
    """`cache("ls")` is `llmcli cache ls`: (exit code, stdout, stderr). A scripted model is the default model."""

    def __init__(self, model: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.model, self.folder, self._capfd = model, folder, capfd

    def __call__(self, *args: str) -> tuple[int, str, str]:
        return self.llmcli("cache", *args)

    def llmcli(self, *args: str) -> tuple[int, str, str]:
        code = call(args)
        return code, *self._capfd.readouterr()

    def ok(self, *args: str) -> str:
        """The stdout of a command that succeeds in silence but for notes."""
        code, out, err = self(*args)
        assert code == 0, err
        return out

    def json(self, *args: str) -> Any:
        """The object that a command prints."""
        return json.loads(self.ok(*args, "--json"))

    def ask(self, *args: str) -> dict[str, Any]:
        """`llmcli run --json` with one token of an answer."""
        code, out, err = self.llmcli("run", "--json", "-t", "1", "-n", "1", "--temp", "0", "--no-stdin", *args)
        assert code == 0, err
        found = json.loads(out)
        assert isinstance(found, dict)
        return found

    def file(self, text: str = TEXT, name: str = "text.txt") -> str:
        """A file with this text."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def save(self, name: str, text: str = TEXT, *more: str) -> dict[str, Any]:
        """Save a prefix of one file."""
        found = self.json("save", name, "-t", "1", "--no-stdin", "-f", self.file(text, f"{name}.txt"), *more)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def cache(
    scripted_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Cache:
    """A store of its own for this test."""
    model = scripted_model(["Hello", " world"], n_ctx=2048)
    monkeypatch.setenv("LLMCLI_MODEL", str(model))
    # Tiny models compute faster than a disk is read: measured rates would make restoring a matter of luck.
    monkeypatch.setattr(Rates, "worth_restoring", lambda *_: True)
    monkeypatch.setattr(Rates, "worth_saving", lambda *_: True)
    return Cache(model, tmp_path, capfd)
