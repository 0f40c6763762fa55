"""Available memory on fake machines: MemAvailable against the limits of both cgroup versions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.hardware.memory import Memory, read_memory

GIB = 1 << 30
MEMINFO = "MemTotal:       33554432 kB\nMemFree:  1048576 kB\nMemAvailable: 25165824 kB\nBuffers: 1024 kB\n"
SWAP = "SwapTotal:       2097152 kB\nSwapFree:        1048576 kB\n"


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def memory(root: Path, files: dict[str, str]) -> Memory:
    return read_memory(put(root, {"proc/meminfo": MEMINFO, **files}), system="linux")


def test_without_limits(tmp_path: Path) -> None:
    assert memory(tmp_path, {"proc/meminfo": MEMINFO + SWAP}) == Memory(
        32 * GIB, 24 * GIB, None, None, 2 * GIB, 1 * GIB, None
    )


V2 = {"proc/self/cgroup": "0::/job\n"}


def test_version_2_does_not_count_inactive_cache_as_used(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/job/memory.max": str(8 * GIB),
        "sys/fs/cgroup/job/memory.current": str(7 * GIB),
        "sys/fs/cgroup/job/memory.stat": f"anon {2 * GIB}\nfile {5 * GIB}\ninactive_file {4 * GIB}\n",
    }
    assert memory(tmp_path, V2 | files) == Memory(
        32 * GIB, 5 * GIB, 8 * GIB, "/sys/fs/cgroup/job/memory.max", 0, 0, None
    )


def test_version_2_max_is_no_limit(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/job/memory.max": "max\n", "sys/fs/cgroup/job/memory.current": str(31 * GIB)}
    found = memory(tmp_path, V2 | files)
    assert (found.available_bytes, found.limit_bytes) == (24 * GIB, None)


def test_version_2_ancestor_with_less_room(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/job\n",
        "sys/fs/cgroup/pod/job/memory.max": str(4 * GIB),
        "sys/fs/cgroup/pod/job/memory.current": str(1 * GIB),
        "sys/fs/cgroup/pod/memory.max": str(16 * GIB),
        "sys/fs/cgroup/pod/memory.current": str(15 * GIB),
    }
    found = memory(tmp_path, files)
    assert (found.available_bytes, found.limit_bytes, found.limit_source) == (
        1 * GIB,
        16 * GIB,
        "/sys/fs/cgroup/pod/memory.max",
    )


def test_a_limit_above_what_is_available(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/job/memory.max": str(30 * GIB), "sys/fs/cgroup/job/memory.current": "0"}
    found = memory(tmp_path, V2 | files)
    assert (found.available_bytes, found.limit_bytes) == (24 * GIB, 30 * GIB)


@pytest.mark.parametrize(
    ("current", "stat", "room"),
    [
        (9 * GIB, "", 0),  # over the limit already
        (1 * GIB, f"inactive_file {3 * GIB}\n", 8 * GIB),  # the two figures are not from one instant
        ("rubbish", "rubbish", 8 * GIB),
    ],
)
def test_figures_that_do_not_add_up(tmp_path: Path, current: int | str, stat: str, room: int) -> None:
    files = {
        "sys/fs/cgroup/job/memory.max": str(8 * GIB),
        "sys/fs/cgroup/job/memory.current": str(current),
        "sys/fs/cgroup/job/memory.stat": stat,
    }
    assert memory(tmp_path, V2 | files).available_bytes == room


V1 = {
    "proc/self/cgroup": "4:memory:/docker/abc\n",
    "proc/self/mountinfo": "41 31 0:35 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
}


def test_version_1(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file {GIB}\ntotal_inactive_file {2 * GIB}\n",
    }
    assert memory(tmp_path, V1 | files) == Memory(
        32 * GIB, 3 * GIB, 4 * GIB, "/sys/fs/cgroup/memory/memory.limit_in_bytes", 0, 0, None
    )


def test_version_1_huge_number_is_no_limit(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
    }
    found = memory(tmp_path, V1 | files)
    assert (found.available_bytes, found.limit_bytes) == (24 * GIB, None)


def test_kernel_that_does_not_estimate(tmp_path: Path) -> None:
    text = "MemTotal: 4194304 kB\nMemFree: 1048576 kB\nBuffers: 0 kB\nCached: 1048576 kB\n"
    assert memory(tmp_path, {"proc/meminfo": text}).available_bytes == 2 * GIB


def test_available_is_never_more_than_total(tmp_path: Path) -> None:
    found = memory(tmp_path, {"proc/meminfo": "MemTotal: 1048576 kB\nMemAvailable: 9999999 kB\n"})
    assert found.available_bytes == found.total_bytes == GIB


def test_an_empty_tree_is_not_known(tmp_path: Path) -> None:
    assert read_memory(tmp_path, system="linux") == Memory(0, 0, None, None, 0, 0, None)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Max locked memory         65536                8388608              bytes     \n", 65536),
        ("Max locked memory         unlimited            unlimited            bytes     \n", None),
        ("Max locked memory\n", None),
        ("Max cpu time              7                    unlimited            seconds   \n", None),
    ],
)
def test_lock_limit(tmp_path: Path, line: str, expected: int | None) -> None:
    assert memory(tmp_path, {"proc/self/limits": "Limit  Soft Limit\n" + line}).lock_bytes == expected


def test_other_systems_go_through_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=8 * GIB, available=3 * GIB))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(total=2 * GIB, free=GIB))
    found = read_memory(system="darwin")
    assert (found.total_bytes, found.available_bytes, found.limit_bytes) == (8 * GIB, 3 * GIB, None)
    assert (found.swap_total_bytes, found.swap_free_bytes) == (2 * GIB, GIB)


def test_swap_that_psutil_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    def fail() -> None:
        raise OSError("no swap file")

    monkeypatch.setattr(psutil, "swap_memory", fail)
    assert read_memory(system="win32").swap_total_bytes == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the real /proc")
def test_this_machine_agrees_with_psutil() -> None:
    import psutil

    found, theirs = read_memory(), psutil.virtual_memory()
    assert found.total_bytes == theirs.total
    assert 0 < found.available_bytes <= found.total_bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    files=st.dictionaries(
        st.sampled_from(
            [
                "proc/meminfo",
                "proc/self/limits",
                "proc/self/cgroup",
                "sys/fs/cgroup/memory.max",
                "sys/fs/cgroup/memory.current",
                "sys/fs/cgroup/memory.stat",
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        ),
        st.one_of(st.binary(max_size=40), st.sampled_from([b"MemTotal: 5 kB", b"MemAvailable: 9 kB", b"7", b"max"])),
    )
)
def test_nonsense_never_raises(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    root = tmp_path_factory.mktemp("root")
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    found = read_memory(root, system="linux")
    assert 0 <= found.available_bytes <= found.total_bytes
