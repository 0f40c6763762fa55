"""The header of a model that is still on the hub, read over Range: a few megabytes of a file of any size.

The reader is the one for files (gguf_header), fed from the network: the same limits, the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmcli.base.settings import Settings
from llmcli.models import hub
from llmcli.models.check import check_headers
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_header import GgufHeader, read_header_from
from llmcli.models.gguf_source import MAX_STRINGS, Source
from llmcli.models.hub import HubFile
from llmcli.models.hub_listing import RemoteFile


class RemoteSource(Source):
    """A file of a repository, read forward; its `path` is its name there."""

    def __init__(self, repo_id: str, commit: str, file: RemoteFile, settings: Settings) -> None:
        self.path = Path(file.name)
        self.position = 0
        self.data = bytearray()
        self.strings_left = MAX_STRINGS
        self.leaps = False
        self.file_bytes = file.size_bytes
        self._wanted, self._settings = HubFile(repo_id, file.name, commit), settings

    def __exit__(self, *_: object) -> None:
        """Nothing is open between two reads."""

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on. Raises ModelError."""
        return hub.read_range(self._wanted, self._settings, offset, count)


def remote_headers(
    repo_id: str, commit: str, files: Sequence[RemoteFile], settings: Settings
) -> tuple[GgufHeader, ...]:
    """The headers of a model's files, in order. Raises ModelError: out of reach, refused, no usable GGUF file."""
    return tuple(read_header_from(RemoteSource(repo_id, commit, file, settings)) for file in files)


def remote_facts(repo_id: str, commit: str, files: Sequence[RemoteFile], settings: Settings) -> ModelFacts:
    """The facts of the model that these files make. Raises ModelError, also where it could not be run here."""
    return check_headers(remote_headers(repo_id, commit, files, settings), need_vocabulary=False)
