"""The console script. A Ctrl-C while the program is being imported, half of a short command's time, is one, too."""

from __future__ import annotations

import sys


def run() -> None:
    """Import the program and run it."""
    try:
        from llmcli.cli import main

        main.run()
    except KeyboardInterrupt:  # before `main.call` or behind it
        sys.stderr.write("error: interrupted\n")
        raise SystemExit(130) from None
