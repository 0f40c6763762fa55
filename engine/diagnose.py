"""What `llmcli doctor` says: facts of the machine, the build and the surroundings, and a verdict on each.

Gathering and judging are apart: `gather` reads everything once, `judge` is a pure function of it. Printing is the
command's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from llmcli.base.settings import Settings
from llmcli.base.units import format_bytes, format_count
from llmcli.engine.plan import Device
from llmcli.engine.probe import Build, probe_build
from llmcli.engine.surroundings import (
    ENGINE,
    DefaultModelState,
    Folder,
    Versions,
    config_in_force,
    default_title,
    environment_in_force,
    read_default_model,
    read_folders,
    read_versions,
)
from llmcli.hardware.cores import Cores, read_cores
from llmcli.hardware.cpu import Cpu, compare, read_cpu
from llmcli.hardware.devices import Gpu, find_gpus
from llmcli.hardware.memory import Memory, read_memory

Status = Literal["ok", "warn", "fail"]
_ORDER: tuple[Status, ...] = ("ok", "warn", "fail")
REBUILD = "build the engine again: .venv/bin/python tools/build_engine.py --force"
# Below this the default model has no room: its file, or its weights and a context of 4096 tokens (about 200 MiB).
_LITTLE_BYTES = 256 << 20
_BUILD_FLAGS = {"cuda": "-DGGML_CUDA=on", "rocm": "-DGGML_HIP=on", "metal": "-DGGML_METAL=on"}
_VULKAN_FLAG = "-DGGML_VULKAN=on"


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where the answers go, as the command sees it. locale: the names the environment gives, None for none."""

    is_terminal: bool
    encoding: str
    columns: int
    color: bool
    locale: str | None


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the page: a verdict, what was found, and what to do where it is not ok."""

    name: str
    status: Status
    message: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was read."""

    versions: Versions
    build: Build
    cpu: Cpu
    cores: Cores
    memory: Memory
    gpus: tuple[Gpu, ...]
    folders: tuple[Folder, ...]
    default_model: DefaultModelState
    environment: Mapping[str, str]
    config_file: str
    config: Mapping[str, Any]
    terminal: Terminal

    def as_json(self) -> dict[str, Any]:
        """The facts with the names of docs/commands/doctor.md."""
        missing, unused = compare(self.build.features.get("CPU", {}), self.cpu)
        cpu = {**asdict(self.cpu), "features": sorted(self.cpu.features)}
        build = asdict(self.build)
        return {
            "versions": asdict(self.versions),
            "build": {**build, "loads": self.build.error is None},
            "cpu": {**cpu, "missing_on_cpu": sorted(missing), "unused_by_build": sorted(unused)},
            "cores": asdict(self.cores),
            "memory": asdict(self.memory),
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "folders": [asdict(folder) for folder in self.folders],
            "default_model": asdict(self.default_model),
            "environment": dict(self.environment),
            "config_file": self.config_file,
            "config": dict(self.config),
            "terminal": asdict(self.terminal),
        }


def gather(settings: Settings, terminal: Terminal, *, probe: Callable[[], Build] = probe_build) -> Facts:
    """Read everything; takes as long as the native library takes to load (about half a second). Never the network."""
    return Facts(
        versions=read_versions(),
        build=probe(),
        cpu=read_cpu(),
        cores=read_cores(),
        memory=read_memory(),
        gpus=find_gpus(),
        folders=read_folders(settings),
        default_model=read_default_model(settings),
        environment=environment_in_force(settings),
        config_file=str(settings.config_file),
        config=config_in_force(settings),
        terminal=terminal,
    )


def judge(facts: Facts) -> tuple[Check, ...]:
    """The page, line by line."""
    return (
        Check("llmcli", "ok", f"{facts.versions.llmcli}, Python {facts.versions.python}"),
        *_packages(facts.versions),
        _build(facts.build),
        _cpu(facts.build, facts.cpu),
        _cores(facts.cores),
        _memory(facts.memory),
        *_gpus(facts.build, facts.gpus),
        *(_folder(folder) for folder in facts.folders),
        _default_model(facts.default_model),
        _listing("environment", facts.environment, "no variable that matters is set"),
        _listing("config", facts.config, f"nothing set in {facts.config_file}"),
        _terminal(facts.terminal),
    )


def worst(checks: tuple[Check, ...]) -> Status:
    """The gravest verdict of all."""
    return max((check.status for check in checks), key=_ORDER.index, default="ok")


def _packages(versions: Versions) -> list[Check]:
    engine, wanted = versions.llama_cpp_python, versions.llama_cpp_python_wanted
    if engine is None:
        checks = [Check(ENGINE, "fail", "not installed", "make install")]
    elif wanted and engine != wanted:
        checks = [Check(ENGINE, "warn", f"{engine}, but llmcli was made for {wanted}", REBUILD)]
    else:
        checks = [Check(ENGINE, "ok", engine)]
    hub = versions.huggingface_hub
    checks.append(
        Check("huggingface-hub", "ok", hub)
        if hub
        else Check("huggingface-hub", "fail", "not installed", "make install")
    )
    return checks


def _build(build: Build) -> Check:
    if build.illegal_instruction:
        return Check(
            "build", "fail", f"{build.error}: it was built for a CPU with more features than this one has", REBUILD
        )
    if build.error is not None:
        return Check("build", "fail", build.error, REBUILD)
    backends = ", ".join(build.features) or "no backend"
    return Check("build", "ok", f"{build.version}, backends: {backends}")


def _cpu(build: Build, cpu: Cpu) -> Check:
    name = f"{cpu.model_name} ({cpu.architecture})"
    if build.error is not None:
        has = f", which has {_words(cpu.features)}" if cpu.features else ""
        return Check("cpu", "ok", name + has)
    missing, unused = compare(build.features.get("CPU", {}), cpu)
    if missing:
        message = f"{name} lacks {_words(missing)}, which the build uses: it can be killed at any time"
        return Check("cpu", "fail", message, REBUILD)
    if unused:
        message = f"{name} has {_words(unused)}, which the build does not use: it could be faster"
        return Check("cpu", "warn", message, REBUILD)
    used = compare((), cpu)[1]
    return Check("cpu", "ok", name + (f", the build uses all it has: {_words(used)}" if used else ""))


def _words(names: frozenset[str]) -> str:
    return " ".join(sorted(names))


def _cores(cores: Cores) -> Check:
    parts = [format_count(cores.physical, "core")]
    if cores.performance is not None:
        parts.append(f"{cores.performance} of them fast")
    if cores.logical != cores.physical:
        parts.append(f"{cores.logical} CPUs with SMT")
    if cores.affinity != cores.logical:
        parts.append(f"this process may run on {format_count(cores.affinity, 'CPU')}")
    if cores.quota is not None:
        parts.append(f"quota {cores.quota:g} ({cores.quota_source})")
    message = f"{format_count(cores.usable, 'thread')} by default: {', '.join(parts)}"
    if cores.quota is not None and cores.quota < 1:
        return Check("cores", "warn", f"{message}; less than one core stalls every answer", "raise the CPU limit")
    return Check("cores", "ok", message)


def _memory(memory: Memory) -> Check:
    if not memory.total_bytes:
        return Check("memory", "warn", "the system does not tell how much there is", "choose -c with care")
    parts = [f"{format_bytes(memory.available_bytes)} of {format_bytes(memory.total_bytes)} free"]
    if memory.limit_bytes is not None:
        parts.append(f"limit {format_bytes(memory.limit_bytes)} ({memory.limit_source})")
    if memory.swap_total_bytes:
        parts.append(f"swap {format_bytes(memory.swap_total_bytes)}")
    if memory.lock_bytes is not None:
        parts.append(f"{format_bytes(memory.lock_bytes)} may be locked")
    if memory.available_bytes < _LITTLE_BYTES:
        return Check("memory", "warn", ", ".join(parts), "end other programs or raise the limit: no model fits well")
    return Check("memory", "ok", ", ".join(parts))


def _gpus(build: Build, gpus: tuple[Gpu, ...]) -> list[Check]:
    """One line per GPU: those that the build uses, else those of the machine."""
    if build.devices:
        return [Check("gpu", "ok", f"{_device_name(d)}, {format_bytes(d.free_bytes)} free") for d in build.devices]
    if not gpus and build.gpu_offload:
        message = "none is found, though the build can use one: the CPU computes everything"
        return [
            Check("gpu", "warn", message, "in a container give it the GPU, as with --gpus all; else nothing is lost")
        ]
    if not gpus:
        return [Check("gpu", "ok", "none: the CPU computes everything")]
    return [_idle_gpu(build, gpu) for gpu in gpus]


def _device_name(device: Device) -> str:
    return f"{device.description} ({device.name})" if device.description else device.name


def _idle_gpu(build: Build, gpu: Gpu) -> Check:
    if gpu.driver is None:
        return Check("gpu", "warn", f"{gpu.name}: no driver is bound to it", "install the maker's driver")
    if build.error is not None:
        return Check("gpu", "ok", gpu.name)
    if build.gpu_offload:
        message = f"{gpu.name} is there (driver {gpu.driver}), but the build does not find it"
        return Check("gpu", "warn", message, "check the maker's driver and its libraries")
    if gpu.kind == "vulkan":
        advice = f'CMAKE_ARGS="{_VULKAN_FLAG}" make install'
        return Check("gpu", "ok", f"{gpu.name}: not used; worth a try if it has its own memory: {advice}")
    flag = _BUILD_FLAGS[gpu.kind]
    return Check(
        "gpu", "warn", f"{gpu.name} is not used: the build has no support for it", f'CMAKE_ARGS="{flag}" make install'
    )


def _folder(folder: Folder) -> Check:
    name = f"folder {folder.name}"
    if not folder.writable:
        variable = "HF_HOME" if folder.name == "hub_cache" else "LLMCLI_HOME"
        return Check(name, "warn", f"{folder.path} cannot be written", f"make it writable, or set {variable}")
    free = "" if folder.free_bytes is None else f", {format_bytes(folder.free_bytes)} free"
    message = folder.path + ("" if folder.exists else " (made when needed)") + free
    if folder.free_bytes is not None and folder.free_bytes < _LITTLE_BYTES:
        return Check(name, "warn", message, "make room: models and caches need hundreds of MiB")
    return Check(name, "ok", message)


def _default_model(model: DefaultModelState) -> Check:
    here = f"{format_count(model.models_here, 'model')} on this machine"
    if model.path is not None:
        return Check("default model", "ok", f"{model.path}; {here}")
    if model.fetchable:
        title, size = default_title()
        return Check("default model", "ok", f"{title} is fetched on first use ({format_bytes(size)}); {here}")
    return Check("default model", "fail", f"{model.problem}; {here}", model.hint)


def _listing(name: str, values: Mapping[str, Any], nothing: str) -> Check:
    return Check(name, "ok", ", ".join(f"{key}={_in_words(value)}" for key, value in values.items()) or nothing)


def _in_words(value: Any) -> str:
    """A value of config.toml as TOML has it, as far as it fits a line: no word of Python's."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_in_words(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_in_words, value)) + "]"
    return str(value)


def _terminal(terminal: Terminal) -> Check:
    kind = f"terminal of {terminal.columns} columns" if terminal.is_terminal else "no terminal (a pipe or file)"
    colour = "with colour" if terminal.color else "without colour"
    message = f"{kind}, {colour}, {terminal.encoding}, locale {terminal.locale or 'not set'}"
    if terminal.encoding.lower().replace("-", "").replace("_", "") != "utf8":
        return Check("terminal", "warn", f"{message}; answers are written in UTF-8", "export LANG=C.UTF-8")
    return Check("terminal", "ok", message)
