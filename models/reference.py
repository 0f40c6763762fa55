"""Names of models: what the user may type, and what a file name says. Pure text, no file is looked at.

A reference is a path, an alias, or `owner/repo[:QUANT|:FILE]` on the hub. A file name tells whether it is a model
at all, which shard of a split model it is, and its quantization field.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache

from llmcli.base.records import dataclass

HUB_PREFIX = "hf://"
SUFFIX = ".gguf"
HALF_SUFFIXES = (".incomplete", ".part", ".partial", ".crdownload", ".tmp")

_REPO_PART = r"[A-Za-z0-9](?:[A-Za-z0-9]|[-._](?![-.]))*"  # the hub forbids `--` and `..` in names
_MAX_REPO_CHARS = 96  # which is the hub's own limit
_HUB_REFERENCE = re.compile(rf"({_REPO_PART})/({_REPO_PART})(?::(.+))?\Z", re.DOTALL)
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf\Z", re.IGNORECASE | re.DOTALL)
# The names of llama.cpp's file types, ik_llama.cpp's further ones, and the unsloth `UD-` marker. A longer field is
# never taken for a shorter one (`Q4_K_XYZ` is not `Q4_K`): picking a similar file is worse than not finding one.
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])(?:UD-)?(?:"
    r"IQ\d_[A-Z]{1,3}(?:_R\d|_XL)?|TQ\d_\d|Q\d_[01](?:_\d_\d)?|Q\d_K(?:_(?:XXS|XS|S|M|L|XL|XXL|P))?|Q\d"
    r"|MXFP\d(?:_MOE)?|NVFP\d|BF16|FP?16|FP?32"
    r")(?!_?[A-Za-z0-9])",
    re.IGNORECASE,
)
# A list asks the same of each name for all its neighbours.
_remembered = lru_cache(maxsize=4096)
_FLOAT_QUANTS = {"BF16", "F16", "FP16", "F32", "FP32"}


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model on the hub. `selector` is a quantization or a file name, None where the user gave neither."""

    owner: str
    repo: str
    selector: str | None

    @property
    def repo_id(self) -> str:
        """`owner/repo`, as the hub writes it."""
        return f"{self.owner}/{self.repo}"


@dataclass(frozen=True, slots=True)
class Shard:
    """Place of a file in a split model: `stem` is the common part of the names, `number` counts from 1."""

    stem: str
    number: int
    count: int

    def sibling(self, number: int) -> str:
        """The file name of another shard of the same model."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}{SUFFIX}"


def parse_hub(text: str) -> HubReference | None:
    """`owner/repo[:SELECTOR]`, with or without `hf://`; None where the text has not that form."""
    found = _HUB_REFERENCE.match(text.removeprefix(HUB_PREFIX))
    if not found or len(found[1]) + 1 + len(found[2]) > _MAX_REPO_CHARS:
        return None
    return HubReference(found[1], found[2], found[3])


def looks_like_path(text: str) -> bool:
    """True where the text can only mean a file or a folder, whether it exists or not."""
    if text.startswith((os.sep, ".", "~")) or os.path.isabs(text) or (os.altsep and text.startswith(os.altsep)):
        return True
    return (text.lower().endswith(SUFFIX) and ":" not in text) or (parse_hub(text) is None and _separated(text))


def _separated(text: str) -> bool:
    return not text.startswith(HUB_PREFIX) and any(sep in text for sep in (os.sep, os.altsep) if sep)


def shard_of(file_name: str) -> Shard | None:
    """The shard that `file_name` names (`m-00002-of-00003.gguf`), None for a model in one file."""
    found = _SHARD.match(file_name)
    return Shard(found[1], int(found[2]), int(found[3])) if found else None


def model_name(file_name: str) -> str:
    """The file name without `.gguf` and without the shard number."""
    if shard := shard_of(file_name):
        return shard.stem
    return file_name[: -len(SUFFIX)] if file_name.lower().endswith(SUFFIX) else file_name


@_remembered
def quant_of(file_name: str) -> str | None:
    """The quantization field of a file name in capitals (`UD-Q4_K_XL`), the last one where there are several."""
    found = _QUANT.findall(model_name(file_name))
    return found[-1].upper() if found else None


def base_name(file_name: str) -> str:
    """What the names of a model's quantizations have in common, for comparison: without the quantization field."""
    short = model_name(file_name)
    found = list(_QUANT.finditer(short))
    kept = short[: found[-1].start()] + short[found[-1].end() :] if found else short
    return re.sub(r"[-._]+", "-", kept).strip("-").casefold()


def is_model_name(file_name: str) -> bool:
    """True for the name of a language model: no projector, importance matrix, half download or hidden file.

    `imatrix` beside a quantization is a model made with one (`x-imatrix-Q4_K_M.gguf`); alone, or beside the type of
    the unquantized model it was measured on, it is the matrix itself.
    """
    name = file_name.lower()
    if not name.endswith(SUFFIX) or name.startswith(".") or "mmproj" in name:
        return False
    return "imatrix" not in name or quant_of(file_name) not in {None, *_FLOAT_QUANTS}


def is_half_name(file_name: str) -> bool:
    """True for the names that downloaders give to what is not whole yet."""
    return file_name.lower().endswith(HALF_SUFFIXES)


def select(selector: str, names: Iterable[str], repo: str) -> list[str]:
    """Those of `names` (paths inside the repository `repo`) that `selector` means; several = ambiguous.

    In this order, the first that fits: a file name, with or without folder and ending; the exact quantization field,
    or what the name has beyond the repository's where there is no known one; its `UD-` variant. Case is ignored.
    """
    names, wanted = list(names), selector.casefold()
    by_name = [n for n in names if wanted in _spellings(n)]
    by_field = [n for n in names if _field(n, repo) == wanted]
    return by_name or by_field or [n for n in names if _field(n, repo) == f"ud-{wanted}"]


@_remembered
def _spellings(name: str) -> frozenset[str]:
    folder, _, base = name.casefold().rpartition("/")
    short = model_name(base)
    prefix = f"{folder}/" if folder else ""
    return frozenset({prefix + base, prefix + short, base, short, short + SUFFIX})


@_remembered
def _field(name: str, repo: str) -> str:
    """The part of a file's name that tells it from its siblings, for comparison without case.

    Some repositories keep each quantization in a folder of that name, and some use words of their own
    (`Model-I-Compact.gguf` in `Model-GGUF` is `I-Compact`, which is not `Compact`).
    """
    folder, _, base = name.rpartition("/")
    if quant := quant_of(base) or quant_of(folder.rpartition("/")[2]):
        return quant.casefold()
    short, stem = model_name(base).casefold(), re.sub(r"[-._]?gguf\Z", "", repo.casefold())
    return short[len(stem) :].lstrip("-._") if short.startswith(stem) else short
