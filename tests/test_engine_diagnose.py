"""The verdicts of the doctor, line by line, on machines and builds that are made up."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from llmcli.base.settings import load
from llmcli.engine.diagnose import Check, Facts, Terminal, gather, judge, worst
from llmcli.engine.plan import Device
from llmcli.engine.probe import Build
from llmcli.engine.surroundings import DefaultModelState, Folder, Versions
from llmcli.hardware.cores import Cores
from llmcli.hardware.cpu import Cpu
from llmcli.hardware.devices import Gpu
from llmcli.hardware.memory import Memory

GIB = 1 << 30
REBUILD = "build the engine again: .venv/bin/python tools/build_engine.py --force"
BUILD = Build(
    version="llama-cpp-python 0.3.36 (llama.cpp 1)", features={"CPU": {"AVX": "1", "AVX2": "1", "OPENMP": "1"}}
)
TERMINAL = Terminal(is_terminal=True, encoding="utf-8", columns=80, color=True, locale="C.UTF-8")
FACTS = Facts(
    versions=Versions("0.1.0", "3.11.7", "0.3.36", "0.3.36", "2.4.0"),
    build=BUILD,
    cpu=Cpu("EPYC", "x86_64", frozenset({"AVX", "AVX2"})),
    cores=Cores(8, 8, None, 8, None, None, 8),
    memory=Memory(32 * GIB, 24 * GIB, None, None, 0, 0, None),
    gpus=(),
    folders=(Folder("data", "/home/me/.local/share/llmcli", exists=True, writable=True, free_bytes=9 * GIB),),
    default_model=DefaultModelState(None, "/models/a.gguf", False, None, None, 1),
    environment={},
    config_file="/home/me/.config/llmcli/config.toml",
    config={},
    terminal=TERMINAL,
)


def lines(name: str, **changes: Any) -> list[Check]:
    return [check for check in judge(replace(FACTS, **changes)) if check.name == name]


def line(name: str, **changes: Any) -> tuple[str, str, str | None]:
    (check,) = lines(name, **changes)
    return check.status, check.message, check.advice


def test_a_healthy_machine() -> None:
    assert judge(FACTS) == (
        Check("llmcli", "ok", "0.1.0, Python 3.11.7"),
        Check("llama-cpp-python", "ok", "0.3.36"),
        Check("huggingface-hub", "ok", "2.4.0"),
        Check("build", "ok", "llama-cpp-python 0.3.36 (llama.cpp 1), backends: CPU"),
        Check("cpu", "ok", "EPYC (x86_64), the build uses all it has: AVX AVX2"),
        Check("cores", "ok", "8 threads by default: 8 cores"),
        Check("memory", "ok", "24.0 GiB of 32.0 GiB free"),
        Check("gpu", "ok", "none: the CPU computes everything"),
        Check("folder data", "ok", "/home/me/.local/share/llmcli, 9.0 GiB free"),
        Check("default model", "ok", "/models/a.gguf; 1 model on this machine"),
        Check("environment", "ok", "no variable that matters is set"),
        Check("config", "ok", "nothing set in /home/me/.config/llmcli/config.toml"),
        Check("terminal", "ok", "terminal of 80 columns, with colour, utf-8, locale C.UTF-8"),
    )


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [([], "ok"), (["ok", "ok"], "ok"), (["ok", "warn", "ok"], "warn"), (["fail", "warn"], "fail")],
)
def test_the_gravest_verdict_counts(statuses: list[Any], expected: str) -> None:
    assert worst(tuple(Check("x", status, "") for status in statuses)) == expected


def test_packages() -> None:
    none = Versions("0.1.0", "3.11.7", None, None, None)
    assert line("llama-cpp-python", versions=none) == ("fail", "not installed", "make install")
    assert line("huggingface-hub", versions=none) == ("fail", "not installed", "make install")
    old = replace(FACTS.versions, llama_cpp_python="0.3.20")
    assert line("llama-cpp-python", versions=old) == ("warn", "0.3.20, but llmcli was made for 0.3.36", REBUILD)


def test_a_build_that_does_not_load() -> None:
    build = Build(error="loading it ends in an illegal instruction", illegal_instruction=True)
    assert line("build", build=build) == (
        "fail",
        "loading it ends in an illegal instruction: it was built for a CPU with more features than this one has",
        REBUILD,
    )
    assert line("build", build=Build(error="libgomp is missing")) == ("fail", "libgomp is missing", REBUILD)
    assert line("cpu", build=build) == ("ok", "EPYC (x86_64), which has AVX AVX2", None)


def test_features() -> None:
    more = replace(BUILD, features={"CPU": {"AVX": "1", "AVX2": "1", "AMX_INT8": "1"}})
    assert line("cpu", build=more) == (
        "fail",
        "EPYC (x86_64) lacks AMX_INT8, which the build uses: it can be killed at any time",
        REBUILD,
    )
    fewer = replace(BUILD, features={"CPU": {"AVX": "1"}})
    assert line("cpu", build=fewer) == (
        "warn",
        "EPYC (x86_64) has AVX2, which the build does not use: it could be faster",
        REBUILD,
    )
    unknown = Cpu("unknown", "ppc64le", frozenset())
    assert line("cpu", cpu=unknown) == ("ok", "unknown (ppc64le)", None)


def test_cores() -> None:
    cores = Cores(24, 16, 8, 20, 2.5, "/sys/fs/cgroup/cpu.max", 2)
    assert line("cores", cores=cores) == (
        "ok",
        (
            "2 threads by default: 16 cores, 8 of them fast, 24 CPUs with SMT, this process may run on 20 CPUs, "
            "quota 2.5 (/sys/fs/cgroup/cpu.max)"
        ),
        None,
    )
    starved = Cores(1, 1, None, 1, 0.5, "/sys/fs/cgroup/cpu.max", 1)
    assert line("cores", cores=starved) == (
        "warn",
        "1 thread by default: 1 core, quota 0.5 (/sys/fs/cgroup/cpu.max); less than one core stalls every answer",
        "raise the CPU limit",
    )


def test_memory() -> None:
    full = Memory(32 * GIB, 4 * GIB, 8 * GIB, "/sys/fs/cgroup/memory.max", 2 * GIB, GIB, 64 << 10)
    assert line("memory", memory=full) == (
        "ok",
        "4.0 GiB of 32.0 GiB free, limit 8.0 GiB (/sys/fs/cgroup/memory.max), swap 2.0 GiB, 64.0 KiB may be locked",
        None,
    )
    assert line("memory", memory=replace(FACTS.memory, available_bytes=GIB // 8)) == (
        "warn",
        "128.0 MiB of 32.0 GiB free",
        "end other programs or raise the limit: no model fits well",
    )
    assert line("memory", memory=Memory(0, 0, None, None, 0, 0))[0] == "warn"


CUDA = Gpu("cuda", "NVIDIA H200", None, "nvidia")


@pytest.mark.parametrize(
    ("gpu", "build", "expected"),
    [
        (
            CUDA,
            BUILD,
            (
                "warn",
                "NVIDIA H200 is not used: the build has no support for it",
                'CMAKE_ARGS="-DGGML_CUDA=on" make install',
            ),
        ),
        (
            Gpu("rocm", "MI300X", None, "amdgpu"),
            BUILD,
            ("warn", "MI300X is not used: the build has no support for it", 'CMAKE_ARGS="-DGGML_HIP=on" make install'),
        ),
        (
            CUDA,
            replace(BUILD, gpu_offload=True),
            (
                "warn",
                "NVIDIA H200 is there (driver nvidia), but the build does not find it",
                "check the maker's driver and its libraries",
            ),
        ),
        (
            Gpu("cuda", "NVIDIA GPU (0x2684)", None, None),
            BUILD,
            ("warn", "NVIDIA GPU (0x2684): no driver is bound to it", "install the maker's driver"),
        ),
        (CUDA, Build(error="x"), ("ok", "NVIDIA H200", None)),
        (
            Gpu("vulkan", "Intel GPU (0x46a6)", None, "i915"),
            BUILD,
            (
                "ok",
                (
                    "Intel GPU (0x46a6): not used; worth a try if it has its own memory: "
                    'CMAKE_ARGS="-DGGML_VULKAN=on" make install'
                ),
                None,
            ),
        ),
    ],
)
def test_a_gpu_that_is_not_used(gpu: Gpu, build: Build, expected: tuple[str, str, str | None]) -> None:
    assert line("gpu", gpus=(gpu,), build=build) == expected


def test_gpus_that_are_used() -> None:
    devices = (Device("CUDA0", "NVIDIA H200", 80 * GIB, 139 * GIB), Device("CUDA1", "", GIB, GIB))
    build = replace(BUILD, gpu_offload=True, devices=devices)
    assert lines("gpu", gpus=(CUDA, CUDA), build=build) == [
        Check("gpu", "ok", "NVIDIA H200 (CUDA0), 80.0 GiB free"),
        Check("gpu", "ok", "CUDA1, 1.0 GiB free"),
    ]


def test_folders() -> None:
    def folder(name: str, **changes: Any) -> tuple[str, str, str | None]:
        found = replace(Folder(name, "/f", exists=True, writable=True, free_bytes=GIB), **changes)
        return line(f"folder {name}", folders=(found,))

    assert folder("cache", exists=False) == ("ok", "/f (made when needed), 1.0 GiB free", None)
    assert folder("cache", free_bytes=None) == ("ok", "/f", None)
    assert folder("cache", writable=False) == (
        "warn",
        "/f cannot be written",
        "make it writable, or set LLMCLI_HOME",
    )
    assert folder("hub_cache", writable=False)[2] == "make it writable, or set HF_HOME"
    assert folder("data", free_bytes=1 << 20) == (
        "warn",
        "/f, 1.0 MiB free",
        "make room: models and caches need hundreds of MiB",
    )


def test_default_model() -> None:
    absent = DefaultModelState(None, None, True, None, None, 0)
    assert line("default model", default_model=absent) == (
        "ok",
        "SmolLM2-135M-Instruct is fetched on first use (93.8 MiB); 0 models on this machine",
        None,
    )
    wrong = DefaultModelState("x", None, False, "no model x", "llmcli run -m FILE", 2)
    assert line("default model", default_model=wrong) == (
        "fail",
        "no model x; 2 models on this machine",
        "llmcli run -m FILE",
    )


def test_environment_and_config_are_listed() -> None:
    assert line("environment", environment={"LANG": "C", "NO_COLOR": "1"})[1] == "LANG=C, NO_COLOR=1"
    assert line("config", config={"ctx-size": 512})[1] == "ctx-size=512"
    found = line("config", config={"alias": {"tiny": "~/m.gguf"}, "quiet": True, "stop": ["a", "b"]})[1]
    assert found == "alias={tiny = ~/m.gguf}, quiet=true, stop=[a, b]"


@pytest.mark.parametrize(
    ("encoding", "status"), [("UTF-8", "ok"), ("utf_8", "ok"), ("ascii", "warn"), ("cp1252", "warn")]
)
def test_terminal_encoding(encoding: str, status: str) -> None:
    assert line("terminal", terminal=replace(TERMINAL, encoding=encoding))[0] == status


def test_a_pipe_without_a_locale() -> None:
    pipe = Terminal(is_terminal=False, encoding="ascii", columns=80, color=False, locale=None)
    assert line("terminal", terminal=pipe) == (
        "warn",
        "no terminal (a pipe or file), without colour, ascii, locale not set; answers are written in UTF-8",
        "export LANG=C.UTF-8",
    )


def test_json_has_every_group_and_survives_a_round_trip() -> None:
    found = json.loads(json.dumps(FACTS.as_json()))
    assert list(found) == [
        "versions",
        "build",
        "cpu",
        "cores",
        "memory",
        "gpus",
        "folders",
        "default_model",
        "environment",
        "config_file",
        "config",
        "terminal",
    ]
    assert found["build"]["loads"] is True
    assert found["cpu"] == {
        "model_name": "EPYC",
        "architecture": "x86_64",
        "features": ["AVX", "AVX2"],
        "missing_on_cpu": [],
        "unused_by_build": [],
    }
    assert found["cores"]["usable"] == 8
    assert found["memory"]["available_bytes"] == 24 * GIB


def test_gather_reads_this_machine() -> None:
    found = gather(load(), TERMINAL, probe=lambda: Build(error="not tried"))
    assert found.build.error == "not tried"
    assert found.cores.usable >= 1
    assert found.memory.total_bytes > 0
    assert {folder.name for folder in found.folders} == {"config", "cache", "state", "data", "hub_cache"}
    assert found.terminal is TERMINAL


def test_a_build_for_gpus_without_one() -> None:
    build = replace(BUILD, gpu_offload=True)
    status, message, advice = line("gpu", build=build)
    assert (status, message) == (
        "warn",
        "none is found, though the build can use one: the CPU computes everything",
    )
    assert advice == "in a container give it the GPU, as with --gpus all; else nothing is lost"
