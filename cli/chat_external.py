"""A text in the editor of the user's choice."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.base.text import decode_utf8, printable

_USUAL = ("editor", "nano", "vim", "vi", "emacs")


def edited(text: str, settings: Settings) -> str | None:
    """`text` as the user left it; None where the editor says that it failed. Raises LlmcliError where none starts.

    The terminal must be in its ordinary mode.
    """
    command = _command(settings)
    handle, name = tempfile.mkstemp(prefix="llmcli-", suffix=".md")  # 0600
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(text.encode("utf-8", "replace"))
        try:
            done = subprocess.run([*command, name], check=False)
        except OSError as error:
            raise LlmcliError(
                f"cannot start the editor {printable(command[0])}: {error.strerror}", hint="set EDITOR"
            ) from None
        if done.returncode:
            return None
        return decode_utf8(Path(name).read_bytes()).text.removesuffix("\n")
    finally:
        os.unlink(name)


def _command(settings: Settings) -> list[str]:
    if wanted := settings.editor.strip():
        try:
            return shlex.split(wanted)
        except ValueError:  # a quote without its partner: perhaps the name of a file
            return [wanted]
    for name in _USUAL:
        if shutil.which(name):
            return [name]
    raise LlmcliError("there is no editor", hint="set EDITOR")
