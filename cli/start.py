"""The console script. A Ctrl-C while the program is being imported, half of a short command's time, is one, too."""

from __future__ import annotations

import os
import sys


def run() -> None:
    """Import the program and run it."""
    try:
        from llmcli.cli import main

        main.run()
    except KeyboardInterrupt:  # before `main.call` or behind it
        sys.stderr.write("error: interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # a second one would break into the interpreter's own end, with words of its own
