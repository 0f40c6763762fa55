"""Which build of llama.cpp is installed, and whether this CPU can run it: found out once, remembered.

A library built for another CPU ends the process with an illegal instruction and no word. So the first start with a
library on a CPU loads it in a child process, holds its compiled-in features against the CPU's, and keeps the result
under the cache folder. It counts as long as the library files (path, size, time, inode) and the CPU's features are
the same.

The digest of the library's files is the build's identity: it decides whether a stored KV state may be used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from llmcli.base.bounded_file import read_bounded
from llmcli.base.errors import LlmcliError
from llmcli.base.files import atomic_write, make_private_dir, sha256_file
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.engine import native
from llmcli.hardware.cpu import Cpu, compare, read_cpu

if TYPE_CHECKING:
    from llmcli.engine.probe import Build

_FOLDER = "engine"
_MEMO_BYTES = 1 << 20
_REBUILD = "build it for this machine: make install, or see llmcli doctor"


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """The installed library. `digest`: sha256 over its files, in hex."""

    digest: str


def _in_a_child() -> Build:
    from llmcli.engine.probe import probe_build  # subprocess: 10 ms, needed once per library

    return probe_build()


def check_build(
    settings: Settings, *, cpu: Callable[[], Cpu] = read_cpu, probe: Callable[[], Build] = _in_a_child
) -> EngineBuild:
    """The installed build, once it is known to run here.

    Raises LlmcliError where it is missing, does not load, or was compiled for features that this CPU lacks.
    """
    files, here = native.library_files(), cpu()
    memo = settings.cache_dir / _FOLDER / f"{_identity(files, here)}.json"
    if (known := _recall(memo)) is None:
        _try(probe(), here)
        known = EngineBuild(hashlib.sha256("".join(sha256_file(path) for path in files).encode()).hexdigest())
        _remember(memo, known)
    return known


def _identity(files: tuple[Path, ...], cpu: Cpu) -> str:
    rows = [(str(path), (found := path.stat()).st_size, found.st_mtime_ns, found.st_ino) for path in files]
    return hashlib.sha256(repr((rows, sorted(cpu.features))).encode()).hexdigest()[:32]


def _try(build: Build, cpu: Cpu) -> None:
    missing, _ = compare(build.features.get("CPU", {}), cpu)
    if missing:
        names = ", ".join(sorted(missing))
        raise LlmcliError(f"llama.cpp was built with {names}, which this CPU ({cpu.model_name}) lacks", hint=_REBUILD)
    if build.error is not None:
        raise LlmcliError(f"llama.cpp does not load: {build.error}", hint=_REBUILD)


def _recall(memo: Path) -> EngineBuild | None:
    try:
        digest = json.loads(read_bounded(memo, _MEMO_BYTES))["digest"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return EngineBuild(digest) if isinstance(digest, str) and len(digest) == hashlib.sha256().digest_size * 2 else None


def _remember(memo: Path, build: EngineBuild) -> None:
    with contextlib.suppress(OSError):  # a read-only home costs time at every start, never an answer
        make_private_dir(memo.parent)
        atomic_write(memo, json.dumps({"digest": build.digest}).encode())
