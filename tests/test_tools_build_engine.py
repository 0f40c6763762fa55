"""tools/build_engine.py with a stand-in for pip: what is built when, what is kept, what a failure says."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import build_engine
from tools.build_engine import BuildError, Recipe

WHEEL = "llama_cpp_python-0.3.36-py3-none-any.whl"
# Plays `python -m pip wheel`, `python -m pip install` and the check that loads the library. Every call is noted in
# calls; a file `wheel-fails`, `wheel-hangs`, `load-fails` makes that step do so, `load-fails-once` only the next time.
FAKE_PYTHON = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
case "$*" in
*"pip wheel"*)
    echo "$SKBUILD_CMAKE_ARGS" > cmake_args; echo "$CMAKE_BUILD_PARALLEL_LEVEL" > jobs
    cat "${SKBUILD_CMAKE_ARGS#*INCLUDE=}" > hook
    echo "[1/2] compiling"
    [ -e wheel-hangs ] && sh -c 'trap "touch compiler-ended; exit" INT; touch compiling; while :; do sleep 0.1; done'
    if [ -e wheel-fails ]; then echo "error: no space for cc1plus"; exit 1; fi
    while [ "$1" != --wheel-dir ]; do shift; done
    echo built > "$2/WHEEL" ;;
*"pip install"*) ;;
*)
    if [ -e load-fails-once ]; then rm load-fails-once; echo "OSError: libllama.so: bad" >&2; exit 1; fi
    if [ -e load-fails ]; then echo "OSError: libllama.so: bad" >&2; exit 1; fi
    echo "0.3.36 CPU : AVX2 = 1" ;;
esac
""".replace("WHEEL", WHEEL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a space in its name: the stand-in for Python, an environment, the cache of wheels."""
    folder = tmp_path / "a folder"
    (folder / "env").mkdir(parents=True)
    python = folder / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sys, "prefix", str(folder / "env"))
    monkeypatch.setenv("LLMCLI_BUILD_CACHE", str(folder / "cache"))
    for name in ("CMAKE_ARGS", "CC", "CXX", "SKBUILD_CMAKE_ARGS", "CMAKE_BUILD_PARALLEL_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(importlib.metadata, "version", _not_installed)
    return folder


def _not_installed(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def calls(place: Path, wanted: str) -> int:
    file = place / "calls"
    return sum(wanted in line for line in file.read_text().splitlines()) if file.exists() else 0


def recipe(**changes: object) -> Recipe:
    facts = {"version": "1", "cmake_args": "", "compiler": {}, "system": "s", "libc": "l", "cpu": ("avx2",)}
    return Recipe(**{**facts, **changes})  # type: ignore[arg-type]


def test_pin_is_the_installed_version() -> None:
    assert build_engine.pinned_version() == importlib.metadata.version("llama-cpp-python")


@pytest.mark.parametrize(
    "change",
    [
        {"version": "2"},
        {"cmake_args": "-DGGML_CUDA=on"},
        {"compiler": {"CFLAGS": "-O0"}},
        {"system": "t"},
        {"libc": "m"},
        {"cpu": ("avx2", "avx512f")},
    ],
    ids=str,
)
def test_key_covers_what_changes_the_code(change: dict[str, object]) -> None:
    assert recipe().key == recipe().key
    assert recipe(**change).key != recipe().key


def test_a_portable_build_is_for_every_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_engine.recipe_here().cpu == build_engine.cpu_features() != ()
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on -DGGML_NATIVE=OFF")
    assert build_engine.recipe_here().cpu == ()


def test_first_build_is_kept_and_the_second_environment_gets_it(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert build_engine.main([]) == 0
    (wheel,) = (place / "cache").glob(f"*/{WHEEL}")
    assert wheel.read_text() == "built\n"
    assert sorted(p.name for p in wheel.parent.iterdir()) == sorted([WHEEL, "build.log", "lock", "recipe.json"])
    assert (place / "hook").read_text() == build_engine.HOOK
    assert (place / "cmake_args").read_text().startswith("-DLLAVA_BUILD=OFF;-DCMAKE_PROJECT_llama.cpp_INCLUDE=/")
    assert build_engine.main([]) == 0
    assert (calls(place, "pip wheel"), calls(place, "--force-reinstall")) == (1, 2)
    assert "kept from an earlier build" in capfd.readouterr().err


def test_pip_may_not_use_its_own_cache(place: Path) -> None:
    build_engine.main([])
    (line,) = (line for line in (place / "calls").read_text().splitlines() if "pip wheel" in line)
    assert "--no-cache-dir" in line and "--no-binary llama-cpp-python" in line


def test_other_flags_are_another_wheel(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_engine.main([])
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_BLAS=on")
    assert build_engine.main([]) == 0
    assert calls(place, "pip wheel") == 2
    assert len(list((place / "cache").glob(f"*/{WHEEL}"))) == 2


def test_nothing_is_done_twice(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_engine.main([])
    monkeypatch.setattr(importlib.metadata, "version", lambda _: build_engine.pinned_version())
    (place / "calls").unlink()
    assert build_engine.main([]) == 0
    assert calls(place, "pip") == 0


def test_a_ready_made_wheel_of_the_user_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: build_engine.pinned_version())
    assert build_engine.main([]) == 0
    assert calls(place, "pip") == 0


@pytest.mark.parametrize(
    ("marker", "environment"),
    [({}, "-DGGML_CUDA_FORCE_MMQ=on"), ({"cmake_args": "", "cpu": ["no_such_feature"]}, "")],
    ids=["other flags", "other CPU"],
)
def test_what_does_not_fit_is_replaced(
    place: Path, monkeypatch: pytest.MonkeyPatch, marker: dict[str, object], environment: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: build_engine.pinned_version())
    monkeypatch.setenv("CMAKE_ARGS", environment)
    (place / "env" / "llmcli-engine.json").write_text(json.dumps(marker))
    assert build_engine.main([]) == 0
    assert calls(place, "pip wheel") == 1


def test_a_kept_wheel_that_does_not_load_is_built_again(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build_engine.main([])
    (place / "load-fails-once").touch()
    assert build_engine.main([]) == 0
    assert calls(place, "pip wheel") == 2
    assert "OSError: libllama.so: bad" in capfd.readouterr().err


def test_a_failed_build_shows_the_end_of_its_log_and_leaves_nothing(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "wheel-fails").touch()
    assert build_engine.main([]) == 1
    err = capfd.readouterr().err
    assert "error: no space for cc1plus" in err and "build.log" in err
    (folder,) = (place / "cache").iterdir()
    assert sorted(p.name for p in folder.iterdir()) == ["build.log", "lock"]
    assert not (place / "env" / "llmcli-engine.json").exists()


def test_a_library_that_does_not_load_is_an_error(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "load-fails").touch()
    assert build_engine.main([]) == 1
    assert "does not load: OSError: libllama.so: bad" in capfd.readouterr().err


def test_a_missing_compiler_is_named_before_anything_starts(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler++ -m64")
    assert build_engine.main([]) == 1
    assert "no C++ compiler (no-such-compiler++)" in capfd.readouterr().err
    assert calls(place, "pip") == 0


@pytest.mark.parametrize(("flag", "tool"), [("GGML_CUDA", "nvcc"), ("GGML_VULKAN", "glslc")])
def test_a_missing_gpu_compiler_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flag: str, tool: str
) -> None:
    compilers = tmp_path / "bin"
    compilers.mkdir()
    for name in ("cc", "c++"):
        (compilers / name).write_text("#!/bin/sh\nexit 0\n")
        (compilers / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{compilers}")
    monkeypatch.setattr(shutil, "which", _only_in(compilers))
    build_engine.require_tools(f"-D{flag}=off")
    with pytest.raises(BuildError, match=rf"{flag} on, but there is no {tool}"):
        build_engine.require_tools(f"-DX=1 -D{flag}=ON")


def _only_in(folder: Path) -> Callable[..., str | None]:
    return lambda name, path=None: str(folder / name) if path is None and (folder / name).exists() else None


def test_a_second_build_waits_for_the_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def second() -> None:
        with build_engine.lock(tmp_path / "lock"):
            order.append("second")

    with build_engine.lock(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(timeout=0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert "waiting for another build" in capfd.readouterr().err


def test_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CMAKE_BUILD_PARALLEL_LEVEL", raising=False)
    assert 1 <= build_engine.parallel_jobs() <= (os.cpu_count() or 1)
    monkeypatch.setenv("CMAKE_BUILD_PARALLEL_LEVEL", "3")
    assert build_engine.parallel_jobs() == 3


def test_interrupting_ends_the_compilers_and_keeps_nothing(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "wheel-hangs").touch()
    main_thread = threading.get_ident()

    def interrupt() -> None:
        wait_for(place / "compiling")
        signal.pthread_kill(main_thread, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert build_engine.main([]) == 130
    wait_for(place / "compiler-ended")
    assert "interrupted" in capfd.readouterr().err
    assert [p.name for p in (place / "cache").glob("*/*") if p.suffix == ".whl" or p.name.startswith(".tmp")] == []


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
