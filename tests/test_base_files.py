from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmcli.base import files
from llmcli.base.errors import ResourceError
from llmcli.base.files import CHUNK_BYTES, TEMP_PREFIX, atomic_write, file_lock, make_private_dir, sha256_file


@pytest.fixture
def loose_umask() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_private_folder_is_0700_and_may_exist(tmp_path: Path, loose_umask: None) -> None:
    folder = tmp_path / "a" / "b"
    assert make_private_dir(folder) == folder
    assert mode(folder) == 0o700
    make_private_dir(folder)


def test_a_folder_below_a_file_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        make_private_dir(tmp_path / "file" / "x")


def test_atomic_write_replaces_the_whole_file(tmp_path: Path, loose_umask: None) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"something longer than the new text")
    atomic_write(path, b"new\0")
    assert path.read_bytes() == b"new\0"
    assert mode(path) == 0o600
    atomic_write(path, b"", mode=0o644)
    assert (path.read_bytes(), mode(path)) == (b"", 0o644)
    assert os.listdir(tmp_path) == ["x"]


def test_the_data_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(fd: int) -> None:
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "data")
        real_sync(fd)

    def replace(source: str, target: Path) -> None:
        assert Path(source).name.startswith(TEMP_PREFIX)
        assert Path(source).parent == target.parent
        steps.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    atomic_write(tmp_path / "x", b"1")
    expected = ["data", "rename", "folder"] if os.path.isdir("/proc/self/fd") else ["data", "rename", "data"]
    assert steps == expected


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    step: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path: Path) -> None:
    files.fsync_dir(tmp_path / "nowhere")


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 1])
def test_sha256_tells_how_far_it_is(size: int, tmp_path: Path) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    (tmp_path / "x").write_bytes(data)
    told: list[int] = []
    assert sha256_file(tmp_path / "x", on_bytes=told.append) == hashlib.sha256(data).hexdigest()
    assert told == [min(size, end) for end in range(CHUNK_BYTES, size + CHUNK_BYTES, CHUNK_BYTES)]
    assert sha256_file(tmp_path / "x") == hashlib.sha256(data).hexdigest()


def test_a_held_lock_is_waited_for_and_told_once(tmp_path: Path) -> None:
    path, told = tmp_path / "lock", []
    with file_lock(path):
        began = time.monotonic()
        another = file_lock(path, timeout_s=0.15, on_wait=lambda: told.append("waiting"))
        with pytest.raises(ResourceError, match="lock is locked by another process"), another:
            pass
        assert 0.15 <= time.monotonic() - began < 5
    assert told == ["waiting"]
    with file_lock(path, timeout_s=0, on_wait=lambda: told.append("again")):
        pass
    assert told == ["waiting"]
    assert path.exists()


def test_the_next_one_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    path, order = tmp_path / "lock", []
    waiting = threading.Event()

    def second() -> None:
        with file_lock(path, on_wait=waiting.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with file_lock(path):
        thread.start()
        assert waiting.wait(5)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]


def test_a_lock_is_given_back_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), file_lock(tmp_path / "lock"):
        raise ZeroDivisionError
    with file_lock(tmp_path / "lock", timeout_s=0):
        pass


def test_the_kernel_drops_the_lock_of_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom llmcli.base.files import file_lock\n"
        "with file_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(ResourceError), file_lock(tmp_path / "lock", timeout_s=0):
            pass
        child.kill()
        child.wait()
    with file_lock(tmp_path / "lock", timeout_s=5):
        pass


def test_a_lock_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), file_lock(tmp_path / "nowhere" / "lock"):
        pass


def test_a_pipe_in_the_place_of_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(OSError, match="No such device"), file_lock(tmp_path / "lock"):
        pass


def test_a_lock_on_a_file_that_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), file_lock(tmp_path / "lock", create=False):
        pass
    assert list(tmp_path.iterdir()) == []
