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


def edited(text: str, settings: Settings) -> str:
    """`text` as the user left it. Raises LlmcliError where no editor starts, and where it says that it failed.

    The terminal must be in its ordinary mode.
    """
    command = _command(settings)
    try:
        handle, name = tempfile.mkstemp(prefix="llmcli-", suffix=".md")  # 0600
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(text.encode("utf-8", "replace"))
            _run([*command, name])
            return decode_utf8(Path(name).read_bytes()).text.removesuffix("\n")
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:  # no room for the file, or the editor left none
        raise LlmcliError(f"nothing came back from the editor: {error.strerror}") from None


def _run(command: list[str]) -> None:
    shown = printable(command[0])
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        raise LlmcliError(f"cannot start the editor {shown}: {error.strerror}", hint="set EDITOR") from None
    if code:
        how = f"exit {code}" if code > 0 else f"signal {-code}"
        raise LlmcliError(f"the editor {shown} ended with {how}: nothing is changed")


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
