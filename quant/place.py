"""Where the output goes, and what keeps every file whole: checks before, a temporary folder, one rename at the end.

The work is done in a folder of its own beside the target, so that a run that dies leaves nothing under the target's
name, and what it leaves is known by its lock to belong to nobody: the next run there removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmcli.base.errors import LlmcliError, ResourceError, UsageError
from llmcli.base.files import file_lock, fsync_dir
from llmcli.base.text import printable
from llmcli.base.units import format_bytes
from llmcli.models.reference import SUFFIX, Shard, model_name, quant_of, shard_of

WORK_PREFIX = ".tmp-quantize-"
_LOCK = "lock"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Target:
    """The output of one type: `files` are all its parts, `stem` what llama.cpp makes their names of.

    makes_folder   the user named the folder as one, so that it is made where it is missing
    """

    folder: Path
    files: tuple[Path, ...]
    stem: str
    forced: bool
    makes_folder: bool = False

    @property
    def first(self) -> Path:
        """The file to name: the output, or its first part."""
        return self.files[0]


def default_name(source: Path, type_name: str) -> str:
    """`m-F16.gguf` and Q4_0 make `m-Q4_0.gguf`: the type takes the place of the one in the name, or is added."""
    stem = model_name(source.name)
    quant = quant_of(source.name)
    if quant and stem.upper().endswith(quant):
        stem = stem[: -len(quant)].rstrip("-._") or stem
    return f"{stem}-{type_name}{SUFFIX}"


def target_at(path: Path, *, parts: int, forced: bool, makes_folder: bool = False) -> Target:
    """The files of the output that the user calls `path`, given in how many parts it is written.

    A link is followed, so that what it points to is replaced and the link stays. Raises UsageError for the name of one
    part of several where one file is written.
    """
    real = Path(os.path.realpath(path))
    shard = shard_of(real.name)
    if parts == 1:
        if shard:
            raise UsageError(
                f"{printable(real.name)} is the name of one part of {shard.count}, and the output is one file",
                hint=f"call it {printable(shard.stem)}{SUFFIX}, or keep the parts of a split model with --keep-split",
            )
        return Target(real.parent, (real,), real.name, forced, makes_folder)
    stem = shard.stem if shard else model_name(real.name)
    names = Shard(stem, 1, parts)
    files = tuple(real.with_name(names.sibling(i + 1)) for i in range(parts))
    return Target(real.parent, files, stem, forced, makes_folder)


def check_target(target: Target, inputs: Sequence[Path]) -> None:
    """Refuse, before anything is touched, what cannot or must not be written. Raises LlmcliError."""
    for file in target.files:
        _check_not_an_input(file, inputs)
    _check_folder(target)
    for file in target.files:
        if not _is_there(file):
            continue
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise LlmcliError(f"{printable(str(file))} is there and is no regular file")
        if not target.forced:
            raise LlmcliError(f"{printable(str(file))} is there already", hint="--force replaces it once it is whole")


def _is_there(file: Path) -> bool:
    """Whether the name is taken. Raises LlmcliError for one that the file system cannot have, such as a long one."""
    try:
        os.lstat(file)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise LlmcliError(
            f"cannot write {printable(str(file))}: {error.strerror}", hint="name another output"
        ) from None
    return True


def _check_folder(target: Target) -> None:
    folder = target.folder
    if target.makes_folder and not os.path.lexists(folder):
        folder = folder.parent
    shown = printable(str(folder))
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise LlmcliError(f"{shown} is no folder", hint="name an output somewhere else")
    if not os.path.isdir(folder):
        raise LlmcliError(f"the folder {shown} does not exist", hint=f"mkdir -p {shown}")


def _check_not_an_input(file: Path, inputs: Sequence[Path]) -> None:
    for source in inputs:
        with contextlib.suppress(OSError):
            if os.path.samefile(file, source):
                raise LlmcliError(
                    f"the output {printable(str(file))} and the input {printable(str(source))} are the same file",
                    hint="name another output",
                )


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raise ResourceError where the disk, or the limit on a file's size, has no room for what will be written."""
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder if folder.exists() else folder.parent).free
        if free < needed_bytes:
            raise ResourceError(
                f"the output needs {format_bytes(needed_bytes)}, and {printable(str(folder))} has {format_bytes(free)} "
                "free",
                hint="free some, or name an output on another disk",
            )


@contextlib.contextmanager
def work_folder(target: Target) -> Iterator[Path]:
    """A new folder beside the target, removed on any way out. Raises LlmcliError where it cannot be made.

    Where the target's own folder is made for it, that one goes too unless something has come into it.
    """
    _sweep(target.folder)
    is_new = target.makes_folder and not target.folder.exists()
    try:
        if is_new:
            target.folder.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=target.folder))
    except OSError as error:
        raise cannot_write(target.folder, error) from None
    try:
        with file_lock(made / _LOCK):
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # it holds the output
                target.folder.rmdir()


def _sweep(folder: Path) -> None:
    """Remove what killed runs left: their folders, whose lock nobody holds any more."""
    with contextlib.suppress(OSError):
        for left in folder.glob(WORK_PREFIX + "*"):
            if (left / _LOCK).is_file():
                with contextlib.suppress(ResourceError, OSError), file_lock(left / _LOCK, timeout_s=0):
                    shutil.rmtree(left, ignore_errors=True)


def cannot_write(folder: Path, error: OSError) -> LlmcliError:
    """An OSError of a folder as what the user should read."""
    shown = printable(str(folder))
    if error.errno in _FULL:
        return ResourceError(f"no room left in {shown}: {error.strerror}", hint="nothing was written")
    return LlmcliError(f"cannot write to the folder {shown}: {error.strerror}", hint="name an output somewhere else")


def why_writing_failed(folder: Path, name: str) -> LlmcliError:
    """What kept llama.cpp from writing a file of this name there: it says only that there was an error."""
    probe = folder / "probe"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(folder / name)  # which says whether there can be such a name
        with open(probe, "wb") as out:
            out.write(bytes(1 << 20))
            out.flush()
            os.fsync(out.fileno())
        probe.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            probe.unlink()
        return cannot_write(folder.parent, error)
    return LlmcliError(
        f"writing to {printable(str(folder.parent))} failed",
        hint="the disk was full for a moment, or files may not become so large (ulimit -f)",
    )


def publish(made: Sequence[Path], target: Target, *, mode: int) -> None:
    """Put the finished files under their names: the first part last, since whoever opens the model opens that.

    Without --force a file that has appeared meanwhile is not replaced. Raises LlmcliError.
    """
    for source, file in reversed(list(zip(made, target.files, strict=True))):
        try:
            os.chmod(source, mode)
            with open(source, "rb") as handle:
                os.fsync(handle.fileno())
            _put(source, file, replace=target.forced)
        except FileExistsError:
            raise LlmcliError(f"{printable(str(file))} has appeared meanwhile", hint="--force replaces it") from None
        except OSError as error:
            raise cannot_write(target.folder, error) from None
    fsync_dir(target.folder)


def _put(source: Path, file: Path, *, replace: bool) -> None:
    if not replace:
        try:
            os.link(source, file)  # unlike a rename it never replaces
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if os.path.lexists(file):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file)) from None
        else:
            os.unlink(source)
            return
    os.replace(source, file)


def new_file_mode() -> int:
    """The permissions that a file made by this process has."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
