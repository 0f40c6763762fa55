"""The text that a model is measured on: a file, stdin, or what comes with the package."""

from __future__ import annotations

import os
from collections.abc import Callable

from llmcli.cli.inputs import gather_parts
from llmcli.quant.corpus import Text, shipped


def text_from(file: str | None, otherwise: str, notify: Callable[[str], None]) -> Text:
    """The text of `file` (`-` is stdin), or the package's own called `otherwise`. Raises LlmcliError."""
    if file is None:
        return shipped(otherwise)
    parts = gather_parts(prompt=None, words=(), files=(file,), use_stdin=file == "-", notify=notify, example="-f TEXT")
    return Text("stdin" if file == "-" else os.path.basename(file), parts[0].text)
