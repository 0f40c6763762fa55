"""What a list says of a model: a few facts from its header, or what is wrong with the file. Remembered by identity.

Reading a header takes milliseconds, and a list of hundreds of models must not. So the facts of every listed file are
kept in one small file under the cache folder, and count as long as the file is the same (file_identity.py). A
memo that is damaged, unwritable or of another version costs time, never an error. What is not in it is read by all
processors at once.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from llmcli.base.bounded_file import read_bounded
from llmcli.base.errors import ModelError
from llmcli.base.files import atomic_write, make_private_dir
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.shared_out import shared_out
from llmcli.models.file_identity import FileIdentity
from llmcli.models.gguf_source import shown

if TYPE_CHECKING:
    from llmcli.models.gguf_header import GgufHeader

_VERSION = 2
_LEAST_FOR_A_PROCESS = 24  # a header takes one or two milliseconds
_MEMO_NAME = "headlines.json"
_MEMO_MAX_BYTES = 64 << 20

# ok: a language model; other: a sound file that is none (a companion, or an unknown architecture)
Status = Literal["ok", "other", "incomplete", "damaged"]


@dataclass(frozen=True, slots=True)
class Headline:
    """What the list shows. `problem` says what is wrong in a clause; the figures are None where they are not known."""

    status: Status
    problem: str | None = None
    architecture: str | None = None
    quant: str | None = None
    n_params: int | None = None
    tensor_bytes: int | None = None
    n_ctx_train: int | None = None

    @property
    def bpw(self) -> float | None:
        """Bits per weight, over all tensors."""
        return self.tensor_bytes * 8 / self.n_params if self.n_params and self.tensor_bytes else None


_VALUES = attrgetter(*(field.name for field in fields(Headline)))


def read_headline(path: Path, *, buffer: bytearray | None = None) -> Headline:
    """The headline of a model from its file or its first part. Never raises for what is in the file."""
    from llmcli.models.gguf_header import skim_header
    from llmcli.models.gguf_source import CutOffError
    from llmcli.models.kind import NotAModelError, check_kind
    from llmcli.models.shards import read_shards

    known: dict[str, Any] = {}
    skim = partial(skim_header, buffer=buffer)
    try:
        header = skim(path)
        headers = read_shards(header, read=skim)
        known = _figures(headers)
        known["architecture"] = check_kind(header)
        return Headline("ok", **known)
    except NotAModelError as error:
        return Headline("other", _clause(error, path), **known)
    except CutOffError as error:
        return Headline("incomplete", _clause(error, path))
    except ModelError as error:
        return Headline("damaged", _clause(error, path))


def _figures(headers: Sequence[GgufHeader]) -> dict[str, Any]:
    from llmcli.models.facts import count_kinds, quant_of_tensors
    from llmcli.models.gguf_keys import Keys

    kinds = count_kinds(headers)
    keys = Keys(headers[0])
    architecture = keys.text("general.architecture") or ""
    return {
        "architecture": architecture or None,
        "quant": quant_of_tensors(keys, kinds) if kinds else None,
        "n_params": sum(math.prod(shape) * count for (shape, _, _), count in kinds.items()),
        "tensor_bytes": sum(nbytes * count for (_, _, nbytes), count in kinds.items()),
        "n_ctx_train": keys.integer(f"{architecture}.context_length"),
    }


def _clause(error: ModelError, path: Path) -> str:
    """The message without the path in front, which the list names anyway."""
    text = error.message.removeprefix(shown(path)).strip()
    return text.removeprefix("is ").removeprefix("not a usable model: ").removeprefix("not a usable GGUF file: ")


class Headlines:
    """The headlines of this machine's models: asked for by path and identity, kept between runs."""

    def __init__(self, settings: Settings) -> None:
        self._file = settings.cache_dir / "models" / _MEMO_NAME
        self._known = self._load()
        self._asked: dict[str, Any] = {}

    def of_all(self, models: Mapping[Path, Sequence[FileIdentity]]) -> dict[Path, Headline]:
        """The headline of each model, given the state that its files are in."""
        states = {path: [list(file) for file in files] for path, files in models.items()}
        remembered = {path: _from_json(self._known.get(str(path)), state) for path, state in states.items()}
        found = {path: headline for path, headline in remembered.items() if headline is not None}
        unread = [path for path in models if path not in found]
        broken: dict[Path, Headline] = {}
        for path, answer in zip(unread, shared_out(_Reader(), unread, least=_LEAST_FOR_A_PROCESS), strict=True):
            if isinstance(answer, str):  # may be better next time, so it is not remembered
                broken[path] = Headline("damaged", f"cannot be read: {answer}")
            else:
                found[path] = Headline(*answer)
        self._asked |= {str(path): [states[path], list(_VALUES(headline))] for path, headline in found.items()}
        return found | broken

    def save(self) -> None:
        """Remember what was asked for, where it is news. What was not asked for is not there any more."""
        if self._asked == self._known:
            return
        with contextlib.suppress(OSError):
            make_private_dir(self._file.parent)
            atomic_write(self._file, json.dumps({"version": _VERSION, "files": self._asked}).encode(), durable=False)

    def _load(self) -> dict[str, Any]:
        try:
            data = json.loads(read_bounded(self._file, _MEMO_MAX_BYTES))
            files = data["files"] if data["version"] == _VERSION else {}
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return {}
        return files if isinstance(files, dict) else {}


class _Reader:
    """Reads one headline after another into the same memory."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __call__(self, path: Path) -> tuple[Any, ...] | str:
        """The values of a headline, or why the system would not give the file."""
        try:
            return tuple(_VALUES(read_headline(path, buffer=self._buffer)))
        except (OSError, ValueError) as error:
            return getattr(error, "strerror", None) or str(error)


def _from_json(entry: Any, state: list[Any]) -> Headline | None:
    """What is remembered, where it is of a file in this state, and can be what was written."""
    if not isinstance(entry, list) or len(entry) != 2 or entry[0] != state:
        return None
    try:
        status, problem, architecture, quant, *numbers = entry[1]
        found = Headline(status, problem, architecture, quant, *numbers)
    except (TypeError, ValueError):
        return None
    are_texts = all(text is None or isinstance(text, str) for text in (problem, architecture, quant))
    are_counts = all(number is None or (type(number) is int and number >= 0) for number in numbers)
    return found if status in get_args(Status) and are_texts and are_counts else None
