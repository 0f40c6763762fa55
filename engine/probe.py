"""Tries the native library in a child process: a library built for another CPU kills the process that loads it.

The child loads `llmcli.engine.native`, calls it, and prints one JSON line; whatever becomes of it is a value here.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmcli.engine.plan import Device

_TIMEOUT_S = 60.0
# The parent's import path as arguments: `-c` would put the working folder first, where a json.py may lie.
_CHILD = """
import sys
sys.path[:] = sys.argv[1:]
import json
from dataclasses import asdict
from llmcli.base.errors import LlmcliError
try:
    from llmcli.engine import native
    found = {
        "system_info": native.system_info(),
        "build": native.build_info(),
        "gpu_offload": native.supports_gpu_offload(),
        "devices": [asdict(device) for device in native.devices()],
    }
except LlmcliError as error:
    found = {"error": error.message}
print("\\n" + json.dumps(found))
"""
# Windows ends a process with this code where Unix sends SIGILL (STATUS_ILLEGAL_INSTRUCTION).
_WINDOWS_ILLEGAL_INSTRUCTION = 0xC000001D


@dataclass(frozen=True, slots=True)
class Build:
    """What the native library is, or why it does not load.

    error                one line; None where it loads
    illegal_instruction  it was built for a CPU with more features than this one
    features             backend -> feature -> value, as llama.cpp prints them: {"CPU": {"AVX2": "1"}}
    """

    error: str | None = None
    illegal_instruction: bool = False
    version: str | None = None
    system_info: str | None = None
    features: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpu_offload: bool = False
    devices: tuple[Device, ...] = ()


def probe_build(command: Sequence[str] | None = None) -> Build:
    """Load the library in a child process and report. `command` replaces the child in tests."""
    child = command or [sys.executable, "-c", _CHILD, *sys.path]
    try:
        done = subprocess.run(child, capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Build(error=f"loading it did not end within {_TIMEOUT_S:g} s")
    except OSError as error:
        return Build(error=f"no child process to try it in: {error.strerror}")
    if done.returncode:
        return _ended_badly(done.returncode, done.stderr.decode("utf-8", "replace"))
    return _parse(done.stdout.decode("utf-8", "replace"))


def parse_system_info(text: str) -> dict[str, dict[str, str]]:
    """llama.cpp's feature line by backend: `CPU : AVX2 = 1 | FMA = 1 | CUDA : ARCHS = 900 | `; pieces that are no
    feature are left out.
    """
    backends: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for piece in text.split(" | "):
        before, colon, rest = piece.rpartition(" : ")
        if colon:
            current = backends.setdefault(before.strip(), {})
        name, equals, value = rest.partition(" = ")
        if equals and name.strip():
            current[name.strip()] = value.strip()
    return backends


def _ended_badly(code: int, stderr: str) -> Build:
    if code in (-signal.SIGILL, _WINDOWS_ILLEGAL_INSTRUCTION):
        return Build(error="loading it ends in an illegal instruction", illegal_instruction=True)
    if code < 0:
        return Build(error=f"loading it ends in {_signal_name(-code)}")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return Build(error=lines[-1] if lines else f"the child process ended with exit code {code}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _parse(stdout: str) -> Build:
    """The child's last line; libraries may print before it."""
    try:
        found: dict[str, Any] = json.loads((stdout.splitlines() or [""])[-1])
        if "error" in found:
            return Build(error=str(found["error"]))
        return Build(
            version=found["build"],
            system_info=found["system_info"],
            features=parse_system_info(found["system_info"]),
            gpu_offload=found["gpu_offload"],
            devices=tuple(Device(**device) for device in found["devices"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        return Build(error=f"the child process gave no answer ({type(error).__name__})")
