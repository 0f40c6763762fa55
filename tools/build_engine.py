"""Installs the engine, llama-cpp-python at the version that pyproject.toml pins, into the running virtual environment.

    .venv/bin/python tools/build_engine.py [--force]

Its authors publish only source in the public index, so it is compiled here, and because that takes minutes the wheel
is kept in LLMCLI_BUILD_CACHE (else `llmcli-build` in the user's cache folder). In this order:

    1. the right version is installed, loads, and nobody asked for other flags: nothing is done
    2. a kept wheel with the same key: installed in seconds
    3. compiled with CMAKE_ARGS honoured, kept, installed

The key covers everything that changes the machine code: version, CMAKE_ARGS, compiler and its flags, operating
system, C library, and the CPU's features, since by default the library is built for the CPU at hand (GGML_NATIVE).
Runs before anything else is installed: Python's standard library only, nothing of llmcli.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGE = "llama-cpp-python"
ROOT = Path(__file__).resolve().parent.parent
# llama-cpp-python forces llama.cpp's `common` library on, half of the compile time for nothing we use. llama.cpp's own
# project() call comes after that and includes this file, which has the last word. The vision library goes by a flag.
HOOK = 'set(LLAMA_BUILD_COMMON OFF CACHE BOOL "" FORCE)\n'
COMPILE_CORE_S = 500  # compiler seconds of one core for what is left (measured)
JOB_BYTES = 1 << 30  # memory one compiler process may need
COMPILER_VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDAARCHS", "CUDACXX", "SKBUILD_CMAKE_ARGS")
VERIFY = "import llama_cpp as l; l.llama_backend_init(); print(l.__version__, l.llama_print_system_info().decode())"
STEP = re.compile(r"^\s*\[\s*(\d+)(?:/(\d+)\]|%\])")  # ninja: [12/143]   make: [ 12%]
LOG_TAIL_LINES = 25


class BuildError(Exception):
    """A failure for the user: what, and what to do."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides what the compiled library is."""

    version: str
    cmake_args: str
    compiler: dict[str, str]
    system: str
    libc: str
    cpu: tuple[str, ...]

    @property
    def key(self) -> str:
        """The folder name of its wheel."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the engine; the exit code."""
    parser = argparse.ArgumentParser(description="Install llama-cpp-python, compiled for this machine.")
    parser.add_argument("--force", action="store_true", help="compile again, whatever is installed or kept")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no compilers left behind either
    force: bool = parser.parse_args(arguments).force
    try:
        if sys.prefix == sys.base_prefix:
            raise BuildError(
                "not in a virtual environment: run `make install`, or .venv/bin/python tools/build_engine.py"
            )
        install(recipe_here(), force=force)
    except BuildError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; nothing was installed")
        return 130
    return 0


def install(recipe: Recipe, *, force: bool) -> None:
    """Bring the environment to `recipe`, by the cheapest way that works."""
    reason = "asked for" if force else why_install(recipe)
    if reason is None:
        say(f"{PACKAGE} {recipe.version} is installed")
        return
    folder = cache_folder() / recipe.key
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / "lock"):
        wheel = None if force else kept_wheel(folder)
        if wheel:
            say(f"{PACKAGE} {recipe.version} ({reason}): installing the wheel kept from an earlier build")
            if error := try_install(wheel):
                say(f"the kept wheel is of no use and goes: {error}")
                wheel.unlink()
                wheel = None
        if wheel is None:
            say(f"{PACKAGE} {recipe.version} ({reason})")
            wheel = build(recipe, folder)
            if error := try_install(wheel):
                raise BuildError(f"the compiled library does not load: {error}")
    marker_path().write_text(json.dumps(asdict(recipe)))
    say(f"{PACKAGE} {recipe.version} works: {verify()[1]}")


# ---- what is wanted, what is there -----------------------------------------------------------------------------------


def recipe_here() -> Recipe:
    """The recipe for this machine and environment."""
    cmake_args = os.environ.get("CMAKE_ARGS", "").strip()
    native = not re.search(r"-DGGML_NATIVE(:BOOL)?=(off|0|false|no|n)\b", cmake_args, re.IGNORECASE)
    return Recipe(
        version=pinned_version(),
        cmake_args=cmake_args,
        compiler={name: os.environ[name] for name in COMPILER_VARIABLES if os.environ.get(name)},
        system=f"{sys.platform}-{platform.machine()}",
        libc="-".join(platform.libc_ver()),
        cpu=cpu_features() if native else (),
    )


def pinned_version() -> str:
    """The version that pyproject.toml asks for (read by pattern: tomllib is not in Python 3.10)."""
    found = re.search(rf'"{PACKAGE}==([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if not found:
        raise BuildError(f"pyproject.toml does not pin {PACKAGE}==VERSION")
    return found[1]


def cpu_features() -> tuple[str, ...]:
    """Everything the system says about the first CPU's instruction set: more than matters, never less."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
            if found := re.search(r"^(?:flags|Features|features|isa)\s*:\s*(.+)$", text, re.MULTILINE):
                return tuple(sorted(found[1].split()))
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return (subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip(),)
    return (platform.processor(),)


def marker_path() -> Path:
    """Where the environment remembers the recipe of the engine in it."""
    return Path(sys.prefix) / "llmcli-engine.json"


def why_install(recipe: Recipe) -> str | None:
    """Why something must be installed, or None. A ready-made wheel that the user put there is left alone."""
    try:
        installed = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "not installed yet"
    if installed != recipe.version:
        return f"instead of {installed}"
    try:
        built = json.loads(marker_path().read_text())
    except (OSError, ValueError):
        built = {}
    if recipe.cmake_args and built.get("cmake_args") != recipe.cmake_args:
        return f"with CMAKE_ARGS={recipe.cmake_args}"
    if missing := sorted(set(built.get("cpu", ())) - set(cpu_features())):
        return f"the installed one was built for a CPU with {' '.join(missing[:5])}"
    loads, text = verify()
    return None if loads else f"the installed one does not load: {text}"


def cache_folder() -> Path:
    """Where wheels and build logs are kept."""
    if chosen := os.environ.get("LLMCLI_BUILD_CACHE"):
        return Path(chosen).absolute()
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root).absolute() / "llmcli-build"


def kept_wheel(folder: Path) -> Path | None:
    """The wheel of an earlier build, if there is one."""
    return next(iter(sorted(folder.glob("*.whl"))), None)


# ---- installing ------------------------------------------------------------------------------------------------------


def try_install(wheel: Path) -> str | None:
    """Install `wheel` and load the library; what went wrong, or None."""
    # --force-reinstall: pip calls the same version with other flags "already satisfied". Its dependencies come in a
    # second step, which finds the package itself satisfied and so builds nothing.
    for arguments in (["--force-reinstall", "--no-deps", str(wheel)], [f"{PACKAGE}=={pinned_version()}"]):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    loads, text = verify()
    return None if loads else text


def verify() -> tuple[bool, str]:
    """Load the library in a child process, where a crash costs nothing: whether it works, and what it says."""
    done = subprocess.run([sys.executable, "-c", VERIFY], capture_output=True, text=True, check=False)
    if done.returncode < 0:
        return False, f"ended by {signal.Signals(-done.returncode).name}"
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else f"exit code {done.returncode}"


# ---- compiling -------------------------------------------------------------------------------------------------------


def build(recipe: Recipe, folder: Path) -> Path:
    """Compile a wheel into `folder`; it appears there whole or not at all."""
    require_tools(recipe.cmake_args)
    jobs = parallel_jobs()
    minutes = math.ceil(COMPILE_CORE_S / jobs / 60)
    more = " (several times that for GPU code)" if re.search("CUDA|HIP|VULKAN|SYCL", recipe.cmake_args) else ""
    say(f"compiling with {jobs} jobs, about {minutes} min{more}, once per machine and set of flags")
    log, started = folder / "build.log", time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder) as temp:
        hook = Path(temp) / "hook.cmake"
        hook.write_text(HOOK)
        code = run_pip_wheel(recipe, hook, jobs, Path(temp), log)
        built = kept_wheel(Path(temp))
        if code or built is None:
            raise BuildError(f"the build failed (pip: exit code {code})\n{tail(log)}\nthe whole log: {log}")
        wheel = folder / built.name
        os.replace(built, wheel)
    (folder / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1))
    say(f"compiled in {(time.monotonic() - started) / 60:.1f} min, kept in {folder}")
    return wheel


def require_tools(cmake_args: str) -> None:
    """Raise BuildError, before minutes are spent, where a compiler is missing. CMake and ninja come from pip."""
    if sys.platform == "win32":
        return  # CMake finds Visual Studio itself
    for language, variable, names in (("C", "CC", ("cc", "gcc", "clang")), ("C++", "CXX", ("c++", "g++", "clang++"))):
        asked = os.environ.get(variable)
        candidates = (asked.split()[0],) if asked else names
        if not any(works(name) for name in candidates):
            install_it = "xcode-select --install" if sys.platform == "darwin" else "e.g. apt install build-essential"
            raise BuildError(f"no {language} compiler ({' or '.join(candidates)}); install one first: {install_it}")
    cuda = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    for flag, tool, places, source in (
        ("GGML_CUDA", os.environ.get("CUDACXX", "nvcc"), [*cuda, "/usr/local/cuda"], "the CUDA toolkit"),
        ("GGML_VULKAN", "glslc", [os.environ.get("VULKAN_SDK", "")], "the Vulkan SDK"),
    ):
        wanted = re.search(rf"-D{flag}(:BOOL)?=(on|1|true|yes|y)\b", cmake_args, re.IGNORECASE)
        if wanted and not (shutil.which(tool) or any(shutil.which(tool, path=f"{p}/bin") for p in places if p)):
            raise BuildError(f"CMAKE_ARGS has {flag} on, but there is no {tool}; install {source} first")


def works(compiler: str) -> bool:
    """Whether it is there and answers: macOS has a `cc` that only offers to install one."""
    if not shutil.which(compiler):
        return False
    return subprocess.run([compiler, "--version"], capture_output=True, check=False).returncode == 0


def parallel_jobs() -> int:
    """Compiler processes at once: usable cores (affinity, container quota), and no more than memory holds."""
    if (chosen := os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "")).isdigit():
        return max(1, int(chosen))
    jobs = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or "max"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        jobs = min(jobs, int(quota) // int(period))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        jobs = min(jobs, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // JOB_BYTES)
    return max(1, jobs)


def run_pip_wheel(recipe: Recipe, hook: Path, jobs: int, out: Path, log: Path) -> int:
    """Let pip compile; its exit code. What it says goes to `log`, how far it is to stderr."""
    # SKBUILD_CMAKE_ARGS is split at semicolons, so the hook's path may have spaces; the user's CMAKE_ARGS come after
    # it on the command line of CMake and win. --no-cache-dir: pip keeps wheels by the source alone and would hand
    # over one that was compiled with other flags or for another CPU.
    ours = f"-DLLAVA_BUILD=OFF;-DCMAKE_PROJECT_llama.cpp_INCLUDE={hook}"
    theirs = os.environ.get("SKBUILD_CMAKE_ARGS")
    env = {
        **os.environ,
        "SKBUILD_CMAKE_ARGS": f"{ours};{theirs}" if theirs else ours,
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
    }
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-cache-dir", "--no-deps", "--no-binary", PACKAGE]
    command += ["--wheel-dir", str(out), f"{PACKAGE}=={recipe.version}"]
    posix = sys.platform != "win32"
    child = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=posix,
    )
    with child, open(log, "w", encoding="utf-8") as target, Progress() as progress:
        try:
            for line in child.stdout or ():
                target.write(line)
                progress.see(line)
        except BaseException:
            if posix:  # the compilers too; and pip removes its build folder on an interrupt, not when terminated
                os.killpg(child.pid, signal.SIGINT)
            else:
                child.terminate()
            raise
    return child.returncode


def tail(log: Path) -> str:
    """The last lines of the build log, without the compiler's very long command lines."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join(f"    {line[:200]}" for line in lines)


# ---- talking and waiting ---------------------------------------------------------------------------------------------


class Progress:
    """One line on stderr that says how far the compiler is: rewritten in a terminal, else a new one each minute."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._every_s = 0.2 if self._live else 60.0
        self._started = self._told = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def see(self, line: str) -> None:
        """Take note of one line of the build's output."""
        found, now = STEP.match(line), time.monotonic()
        if not found or now - self._told < self._every_s:
            return
        self._told = now
        done = int(found[1]) / int(found[2] or 100)
        text = f"engine: compiling {done:4.0%}, {now - self._started:.0f} s"
        print(f"\r\033[K{text}" if self._live else text, end="" if self._live else "\n", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """One line (or, for a failed build, several) on stderr."""
    print(f"engine: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Keep a second build of the same wheel waiting. Without flock (Windows) both build; placing is atomic anyway."""
    with open(path, "ab") as handle:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another build of the same wheel")
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
