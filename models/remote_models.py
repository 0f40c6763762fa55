"""Which models the files of a repository make, and which of them a reference means. Pure names and sizes, no network.

A model is one file or all parts of a split one. Projectors, importance matrices, draft models and adapters are no
models: they are taken only where their whole file name is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from llmcli.base.errors import ModelError
from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.base.units import format_bytes
from llmcli.models.hub_listing import RemoteFile
from llmcli.models.library import MAX_DEPTH
from llmcli.models.reference import SUFFIX, base_name, is_model_name, quant_of, select, shard_of
from llmcli.models.shards import MAX_SHARDS

_TABLE_ROWS = 40
# Words in a file's name that make it the companion of a model, unless the repository itself is about such files.
_COMPANION_WORDS = {"draft", "drafter", "eagle", "eagle2", "eagle3", "medusa", "mtp", "lora", "adapter", "vocab"}
_FLOATS = {"BF16", "F16", "FP16", "F32", "FP32"}


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of a repository.

    files    in order; of a split model every part that is there
    missing  names of parts that are not
    """

    files: tuple[RemoteFile, ...]
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The path of its (first) file in the repository."""
        return self.files[0].name

    @property
    def quant(self) -> str | None:
        """Its quantization field, from the file's name or else the folder's."""
        folder, _, base = self.name.rpartition("/")
        return quant_of(base) or quant_of(folder.rpartition("/")[2])

    @property
    def is_split(self) -> bool:
        """True for a model in several parts."""
        return len(self.files) + len(self.missing) > 1

    @property
    def is_float(self) -> bool:
        """True for a model that was not quantized."""
        return self.quant in _FLOATS

    @property
    def base(self) -> str:
        """What it has in common with the other quantizations of the same model."""
        return base_name(self.name.rpartition("/")[2])

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.size_bytes for file in self.files)


def models_of(files: Iterable[RemoteFile], repo: str) -> tuple[RemoteModel, ...]:
    """The models in a repository called `repo`, sorted by size."""
    chosen = [file for file in files if _is_model(file.name, repo)]
    return tuple(sorted(_without_doubles(_grouped(chosen)), key=lambda model: (model.size_bytes, model.name)))


def find(selector: str, files: Sequence[RemoteFile], repo: str) -> list[RemoteModel]:
    """The models that `selector` means, a quantization or a file name; several: it does not tell them apart.

    A whole file name may also name a companion. Any part of a split model stands for all of it.
    """
    models = _grouped([file for file in files if _is_model(file.name, repo)])
    if selector.lower().endswith(SUFFIX):
        models = _grouped([file for file in files if file.name.lower().endswith(SUFFIX)])
    owner = {file.name: model for model in models for file in model.files}
    found = list(dict.fromkeys(owner[name] for name in select(selector, owner, repo)))
    return found if selector.lower().endswith(SUFFIX) else _without_doubles(found)


def require_complete(model: RemoteModel, repo_id: str) -> None:
    """Raise ModelError for a split model with a part that the repository does not have."""
    if model.missing:
        others = f" and {len(model.missing) - 1} more" if len(model.missing) > 1 else ""
        raise ModelError(
            f"{printable(repo_id)} lacks {printable(model.missing[0])}{others}, a part of the model: nothing fetched",
            hint="tell its owner, or take another quantization",
        )


def table(models: Sequence[RemoteModel], n_params: Callable[[RemoteModel], int | None]) -> str:
    """Rows of file, size and bits per weight, for a message."""
    rows = [(printable(m.name) + _parts(m), format_bytes(m.size_bytes), _bpw(m, n_params(m))) for m in models]
    width = max((len(name) for name, _, _ in rows[:_TABLE_ROWS]), default=0)
    lines = [f"  {name:<{width}}  {size:>9}  {bpw:>5} bpw" for name, size, bpw in rows[:_TABLE_ROWS]]
    return "\n".join(lines + [f"  … and {len(rows) - _TABLE_ROWS} more"] * (len(rows) > _TABLE_ROWS))


def _parts(model: RemoteModel) -> str:
    return f" ({len(model.files)} parts)" if len(model.files) > 1 else ""


def _bpw(model: RemoteModel, n_params: int | None) -> str:
    return f"{model.size_bytes * 8 / n_params:.2f}" if n_params else "?"


def _is_model(name: str, repo: str) -> bool:
    """Whether it is named like a model, and would be found where it then lies."""
    *folders, base = name.split("/")
    shard = shard_of(base)
    if len(folders) > MAX_DEPTH or any(folder.startswith(".") for folder in folders):
        return False
    if shard and not 0 < shard.number <= shard.count <= MAX_SHARDS:
        return False
    words = set(re.split(r"[^a-z0-9]+", name.casefold()))
    return is_model_name(base) and not (_COMPANION_WORDS & words) - set(re.split(r"[^a-z0-9]+", repo.casefold()))


def _grouped(files: Sequence[RemoteFile]) -> list[RemoteModel]:
    """Each file a model, and the parts of a split one together."""
    whole: list[RemoteModel] = []
    split: dict[tuple[str, str, int], dict[int, RemoteFile]] = {}
    for file in files:
        folder, _, base = file.name.rpartition("/")
        shard = shard_of(base)
        if shard and 0 < shard.number <= shard.count <= MAX_SHARDS:
            split.setdefault((folder, shard.stem, shard.count), {})[shard.number] = file
        else:
            whole.append(RemoteModel((file,)))
    return whole + [_split_model(*key, parts) for key, parts in split.items()]


def _without_doubles(models: Sequence[RemoteModel]) -> list[RemoteModel]:
    """Without split models that are there in one file too: some owners keep both."""
    whole = {(model.base, model.quant) for model in models if not model.is_split}
    return [model for model in models if not model.is_split or (model.base, model.quant) not in whole]


def _split_model(folder: str, stem: str, count: int, parts: dict[int, RemoteFile]) -> RemoteModel:
    prefix = f"{folder}/" if folder else ""
    numbers = range(1, count + 1)
    missing = tuple(f"{prefix}{stem}-{n:05d}-of-{count:05d}{SUFFIX}" for n in numbers if n not in parts)
    return RemoteModel(tuple(parts[n] for n in numbers if n in parts), missing)
