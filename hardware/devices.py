"""The GPUs of this machine, found without any vendor library: what is there, not what the engine can use.

NVIDIA's driver lists its GPUs under /proc; the PCI bus lists every display controller and accelerator with its vendor;
an Apple Silicon chip has its GPU built in. On Windows nothing is looked for.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from llmcli.base.records import dataclass
from llmcli.hardware.kernel_files import REAL_ROOT, colon_fields, number, read_number, read_text
from llmcli.hardware.sysctl import Sysctl, read_sysctl

_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"
_VENDOR_NAMES = {_NVIDIA: "NVIDIA", _AMD: "AMD", _INTEL: "Intel"}
# PCI base classes (PCI Code and ID Assignment): 03 display controller, 12 processing accelerator (AMD Instinct).
_GPU_CLASS = re.compile(r"0x(03|12)[0-9a-fA-F]{4}\Z")
_HEX_ID = re.compile(r"0x[0-9a-fA-F]{4}\Z")
# Under the Windows Subsystem for Linux no GPU is on the bus: this device and library stand for it.
_WSL_DEVICE, _WSL_CUDA = "dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    kind           what llama.cpp would use it through: "cuda", "rocm", "metal", "vulkan"
    name           the maker's name where the system tells it, else vendor and PCI device id
    memory_bytes   its own memory (Apple: the memory it shares with the CPU), None where not told
    driver         the kernel driver bound to it, None where there is none: then nothing can use it
    """

    kind: str
    name: str
    memory_bytes: int | None
    driver: str | None = None


def find_gpus(root: Path = REAL_ROOT, *, system: str = sys.platform, sysctl: Sysctl = read_sysctl) -> tuple[Gpu, ...]:
    """The GPUs by PCI address; the arguments stand in for another machine in tests."""
    if system == "darwin":
        return _apple(sysctl)
    listed = _nvidia_by_address(root)
    on_bus = {folder.name: gpu for folder in _entries(root / "sys/bus/pci/devices") if (gpu := _pci_gpu(root, folder))}
    found = {**on_bus, **listed}
    if not found and (root / _WSL_DEVICE).exists() and (root / _WSL_CUDA).exists():
        return (Gpu("cuda", "NVIDIA GPU (through WSL)", None, "dxgkrnl"),)
    return tuple(gpu for _, gpu in sorted(found.items()))


def _apple(sysctl: Sysctl) -> tuple[Gpu, ...]:
    values = sysctl(("hw.optional.arm64", "machdep.cpu.brand_string", "hw.memsize"))
    if values.get("hw.optional.arm64") != "1":
        return ()
    name = values.get("machdep.cpu.brand_string", "Apple Silicon")
    return (Gpu("metal", f"{name} GPU", number(values.get("hw.memsize", "")), "AGX"),)


def _nvidia_by_address(root: Path) -> dict[str, Gpu]:
    """PCI address -> GPU, from the driver's own list (its addresses may be upper case)."""
    found: dict[str, Gpu] = {}
    for folder in _entries(root / "proc/driver/nvidia/gpus"):
        name = colon_fields(read_text(folder / "information")).get("Model") or "NVIDIA GPU"
        if not name.startswith("NVIDIA"):
            name = f"NVIDIA {name}"
        found[folder.name.lower()] = Gpu("cuda", name, None, "nvidia")
    return found


def _pci_gpu(root: Path, folder: Path) -> Gpu | None:
    vendor, device = read_text(folder / "vendor"), read_text(folder / "device")
    if vendor not in _VENDOR_NAMES or not _GPU_CLASS.match(read_text(folder / "class")):
        return None
    driver = _driver(folder)
    name = read_text(folder / "product_name") or f"{_VENDOR_NAMES[vendor]} GPU"
    if name.endswith(" GPU") and _HEX_ID.match(device):
        name = f"{name} ({device})"
    return Gpu(_kind(root, vendor), name, read_number(folder / "mem_info_vram_total"), driver)


def _kind(root: Path, vendor: str) -> str:
    if vendor == _NVIDIA:
        return "cuda"
    # ROCm works through the kfd device; without it an AMD GPU can still be used through Vulkan.
    return "rocm" if vendor == _AMD and (root / "sys/class/kfd/kfd").exists() else "vulkan"


def _driver(folder: Path) -> str | None:
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
