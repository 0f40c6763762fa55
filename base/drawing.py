"""The start of matplotlib, with nothing of it in the way of the user: no words of its own, no folder left behind."""

from __future__ import annotations

import atexit
import contextlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llmcli.base.errors import LlmcliError

_FOLDERS = "matplotlib-*"  # what it calls those that it makes where its own cannot be written


@contextlib.contextmanager
def starting_matplotlib() -> Iterator[None]:
    """Import it inside. Raises LlmcliError where it does not start."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells where it caches when HOME is read-only
    place = Path(tempfile.gettempdir())
    before = set(place.glob(_FOLDERS))
    try:
        yield
    except ValueError as error:  # MPLBACKEND names none, though nothing here needs one
        raise LlmcliError(f"matplotlib does not start: {str(error).splitlines()[0]}") from None
    folder = Path(sys.modules["matplotlib"].get_configdir())
    # Its list of fonts is in memory now. It would remove the folder at exit, and this process mostly ends without that.
    if folder in set(place.glob(_FOLDERS)) - before:
        atexit.unregister(shutil.rmtree)
        shutil.rmtree(folder, ignore_errors=True)
