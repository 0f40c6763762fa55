"""GPUs on fake machines: NVIDIA's own list, the PCI bus, WSL, Apple Silicon."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.hardware.devices import Gpu, find_gpus

PCI = "sys/bus/pci/devices"


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def pci(root: Path, address: str, vendor: str, device: str, klass: str, driver: str | None, **files: str) -> None:
    folder = root / PCI / address
    put(folder, {"vendor": vendor + "\n", "device": device + "\n", "class": klass + "\n", **files})
    if driver:
        (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def gpus(root: Path) -> tuple[Gpu, ...]:
    return find_gpus(root, system="linux")


def test_none(tmp_path: Path) -> None:
    assert gpus(tmp_path) == ()


def test_nvidia_is_named_by_its_driver_and_counted_once(tmp_path: Path) -> None:
    pci(tmp_path, "0000:0a:00.0", "0x10de", "0x2335", "0x030200", "nvidia")
    put(
        tmp_path,
        {
            "proc/driver/nvidia/gpus/0000:0A:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: \t 24\n",
            "proc/driver/nvidia/gpus/0000:0b:00.0/information": "Model: \t\t GeForce GTX 1080\n",
        },
    )
    assert gpus(tmp_path) == (
        Gpu("cuda", "NVIDIA H200", None, "nvidia"),
        Gpu("cuda", "NVIDIA GeForce GTX 1080", None, "nvidia"),
    )


@pytest.mark.parametrize("driver", [None, "nouveau", "vfio-pci"])
def test_nvidia_without_its_driver(tmp_path: Path, driver: str | None) -> None:
    pci(tmp_path, "0000:01:00.0", "0x10de", "0x2684", "0x030000", driver)
    pci(tmp_path, "0000:01:00.1", "0x10de", "0x22ba", "0x040300", "snd_hda_intel")  # its sound device
    assert gpus(tmp_path) == (Gpu("cuda", "NVIDIA GPU (0x2684)", None, driver),)


def test_amd_with_and_without_rocm(tmp_path: Path) -> None:
    pci(tmp_path, "0000:03:00.0", "0x1002", "0x744c", "0x030000", "amdgpu", mem_info_vram_total="25753026560\n")
    assert gpus(tmp_path) == (Gpu("vulkan", "AMD GPU (0x744c)", 25753026560, "amdgpu"),)
    put(tmp_path, {"sys/class/kfd/kfd/dev": "239:0\n"})
    assert gpus(tmp_path)[0].kind == "rocm"


def test_amd_accelerator(tmp_path: Path) -> None:
    pci(tmp_path, "0000:05:00.0", "0x1002", "0x74a1", "0x120000", "amdgpu", product_name="AMD Instinct MI300X\n")
    assert gpus(tmp_path) == (Gpu("vulkan", "AMD Instinct MI300X", None, "amdgpu"),)


def test_intel(tmp_path: Path) -> None:
    pci(tmp_path, "0000:00:02.0", "0x8086", "0x46a6", "0x030000", "i915")
    assert gpus(tmp_path) == (Gpu("vulkan", "Intel GPU (0x46a6)", None, "i915"),)


@pytest.mark.parametrize(
    ("vendor", "klass"),
    [("0x8086", "0x020000"), ("0x1af4", "0x030000"), ("", ""), ("0x10de", "garbage"), ("0x10de", "0x0302")],
)
def test_what_is_no_gpu(tmp_path: Path, vendor: str, klass: str) -> None:
    pci(tmp_path, "0000:00:02.0", vendor, "0x1", klass, None)
    assert gpus(tmp_path) == ()


def test_nonsense_beside_a_gpu(tmp_path: Path) -> None:
    pci(tmp_path, "0000:01:00.0", "0x10de", "\x1b[31m", "0x030000", "nvidia")
    put(tmp_path, {f"{PCI}/file": "", "proc/driver/nvidia/gpus/x/information": "???"})
    assert gpus(tmp_path) == (Gpu("cuda", "NVIDIA GPU", None, "nvidia"), Gpu("cuda", "NVIDIA GPU", None, "nvidia"))


def test_wsl(tmp_path: Path) -> None:
    put(tmp_path, {"dev/dxg": ""})
    assert gpus(tmp_path) == ()
    put(tmp_path, {"usr/lib/wsl/lib/libcuda.so.1": ""})
    assert gpus(tmp_path) == (Gpu("cuda", "NVIDIA GPU (through WSL)", None, "dxgkrnl"),)


def test_apple_silicon() -> None:
    values = {"hw.optional.arm64": "1", "machdep.cpu.brand_string": "Apple M3 Max", "hw.memsize": "68719476736"}
    assert find_gpus(system="darwin", sysctl=lambda names: values) == (
        Gpu("metal", "Apple M3 Max GPU", 68719476736, "AGX"),
    )


def test_intel_mac() -> None:
    assert find_gpus(system="darwin", sysctl=lambda names: {"hw.memsize": "1"}) == ()
