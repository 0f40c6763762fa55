"""Load, governor, temperature and peak memory, from trees that are made up and from this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llmcli.hardware.conditions import Conditions, peak_bytes, read_conditions, reset_peak


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_an_empty_tree_tells_nothing(tmp_path: Path) -> None:
    assert read_conditions(tmp_path) == Conditions(None, None, None, None)
    assert peak_bytes(tmp_path) is None
    assert not reset_peak(tmp_path)


def test_a_laptop(tmp_path: Path) -> None:
    write(tmp_path, "proc/loadavg", "0.52 0.58 0.59 1/977 1234\n")
    cpu = "sys/devices/system/cpu"
    write(tmp_path, f"{cpu}/cpu0/cpufreq/scaling_governor", "powersave\n")
    write(tmp_path, f"{cpu}/cpu1/cpufreq/scaling_governor", "performance\n")
    write(tmp_path, f"{cpu}/intel_pstate/no_turbo", "1\n")
    write(tmp_path, "sys/class/thermal/thermal_zone0/temp", "47000\n")
    write(tmp_path, "sys/class/thermal/thermal_zone1/temp", "81500\n")
    assert read_conditions(tmp_path) == Conditions(0.52, "performance+powersave", 81.5, turbo=False)
    write(tmp_path, f"{cpu}/cpufreq/boost", "1\n")
    assert read_conditions(tmp_path).turbo is True


def test_nonsense_is_not_known(tmp_path: Path) -> None:
    write(tmp_path, "proc/loadavg", "much\n")
    write(tmp_path, "sys/class/thermal/thermal_zone0/temp", "hot\n")
    write(tmp_path, "proc/self/status", "VmHWM:\t kB\n")
    assert read_conditions(tmp_path) == Conditions(None, None, None, None)
    assert peak_bytes(tmp_path) is None


def test_peak_of_a_status_file(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/status", "Name:\tx\nVmHWM:\t    2048 kB\n")
    write(tmp_path, "proc/self/clear_refs", "")
    assert peak_bytes(tmp_path) == 2 << 20
    assert reset_peak(tmp_path)
    assert (tmp_path / "proc/self/clear_refs").read_text() == "5"


@pytest.mark.skipif(sys.platform == "win32", reason="nothing tells there")
def test_the_peak_of_this_process_grows() -> None:
    before = peak_bytes()
    assert before
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    after = peak_bytes()
    assert after
    assert after >= 64 << 20
    assert after >= before
