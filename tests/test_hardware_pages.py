"""Huge pages and driver versions from trees that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.hardware.pages import HugePages, driver_version, read_huge_pages


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_nothing_is_told(tmp_path: Path) -> None:
    assert read_huge_pages(tmp_path) is None
    assert driver_version(tmp_path, "nvidia") is None
    assert driver_version(tmp_path, "i915") is None


@pytest.mark.parametrize("chosen", ["always", "madvise", "never"])
def test_transparent(chosen: str, tmp_path: Path) -> None:
    words = " ".join(f"[{word}]" if word == chosen else word for word in ("always", "madvise", "never"))
    write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", words + "\n")
    assert read_huge_pages(tmp_path) == HugePages(chosen, 0)


def test_reserved(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "HugePages_Total:      16\nHugePages_Free: 3\nHugepagesize:       2048 kB\n")
    assert read_huge_pages(tmp_path) == HugePages(None, 32 << 20)
    write(tmp_path, "proc/meminfo", "HugePages_Total: many\n")
    assert read_huge_pages(tmp_path) is None


def test_drivers(tmp_path: Path) -> None:
    line = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12.3\n"
    )
    write(tmp_path, "proc/driver/nvidia/version", line)
    write(tmp_path, "sys/module/amdgpu/version", "6.7.0\n")
    assert driver_version(tmp_path, "nvidia") == "550.54.15"
    assert driver_version(tmp_path, "amdgpu") == "6.7.0"
