"""The header of a model that is still on the hub, read over Range: a few megabytes of a file of any size.

The reader is the one for files (gguf_header), fed from the network: the same limits, the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from llmcli.base.settings import Settings
from llmcli.models import hub
from llmcli.models.gguf_header import GgufHeader, read_header_from
from llmcli.models.gguf_source import Source
from llmcli.models.hub import HubFile
from llmcli.models.hub_listing import RemoteFile
from llmcli.models.side_by_side import side_by_side


class RemoteSource(Source):
    """A file somewhere else, read forward: `read(start, count)` fetches, and `path` is its name there."""

    def __init__(self, name: str, size_bytes: int, read: Callable[[int, int], bytes]) -> None:
        self._read, self._size_bytes = read, size_bytes
        super().__init__(Path(name))

    def _open(self) -> int:
        return self._size_bytes

    def __exit__(self, *_: object) -> None:
        """Nothing is open between two reads."""

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from `offset` on. Raises ModelError."""
        return self._read(offset, count)

    def _fill(self, start: int, end: int) -> int:
        piece = self._read(start, end - start)
        self.data[start : start + len(piece)] = piece
        return start + len(piece)


def remote_headers(
    repo_id: str, commit: str, files: Sequence[RemoteFile], settings: Settings
) -> tuple[GgufHeader, ...]:
    """The headers of a model's files, in order. Raises ModelError: out of reach, refused, no usable GGUF file."""

    def read_file(file: RemoteFile) -> GgufHeader:
        read = partial(hub.read_range, HubFile(repo_id, file.name, commit), settings)
        return read_header_from(RemoteSource(file.name, file.size_bytes, read))

    return tuple(side_by_side(read_file, files))
