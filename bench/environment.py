"""Where a measurement was made, as the JSON object that is kept with it: enough to know what it may be compared with.

`machine` must be equal for two results to be compared, `build` says which engine computed, `conditions` are those of
the moment and only explain.
"""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

from llmcli.base.settings import Settings
from llmcli.base.version import VERSION
from llmcli.engine import native
from llmcli.engine.probe import parse_system_info
from llmcli.engine.tuning import machine_name
from llmcli.hardware.conditions import read_conditions
from llmcli.hardware.cores import read_cores
from llmcli.hardware.cpu import read_cpu
from llmcli.hardware.memory import read_memory

# A load above this share of the cores, before anything is measured, spoils rates that take all of them.
BUSY_SHARE = 0.25


def describe(settings: Settings) -> dict[str, Any]:
    """Machine, build and conditions now. Loads the native library."""
    cpu, cores = read_cpu(), read_cores()
    features = parse_system_info(native.system_info())
    return {
        "machine": {
            "cpu": cpu.model_name,
            "architecture": cpu.architecture,
            "cores_physical": cores.physical,
            "cores_usable": cores.usable,
            "quota": cores.quota,
            "memory_bytes": read_memory().total_bytes,
            "system": f"{platform.system()} {platform.machine()}",
            "devices": [device.description or device.name for device in native.devices()],
        },
        "build": {
            "engine": native.build_info(),
            "backends": list(features),
            "features": sorted(name for found in features.values() for name in found),
            "environment": settings.native_environment,
        },
        "versions": {"llmcli": VERSION, "python": platform.python_version()},
        "conditions": conditions(),
    }


def conditions() -> dict[str, Any]:
    """Load, governor, temperature and turbo now."""
    return asdict(read_conditions())


def machine_id(environment: dict[str, Any]) -> str:
    """The machine in a few words, for people and for the config file: which one a setting was found on."""
    machine = environment["machine"]
    return machine_name(machine["cpu"], machine["cores_usable"], machine["cores_physical"])
