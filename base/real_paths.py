"""Real paths of many files in few folders: `os.path.realpath`, which asks the system about every folder, each time."""

from __future__ import annotations

import os

_MOST_LINKS = 8  # one behind the other; more, or a ring, is left to the standard library


class RealPaths:
    """Remembers the real paths of folders, for as long as one look through a library takes."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def of(self, path: str) -> str:
        """The path without links, as `os.path.realpath` gives it, also where there is nothing."""
        found = path
        for _ in range(_MOST_LINKS if os.name == "posix" else 0):
            folder, name = os.path.split(found)
            if name in {"", ".", ".."}:
                break
            found = os.path.join(self._folder(folder), name)
            try:
                target = os.readlink(found)
            except OSError:
                return found
            found = os.path.join(os.path.dirname(found), target)
        return os.path.realpath(path)

    def _folder(self, folder: str) -> str:
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        return self._folders[folder]
