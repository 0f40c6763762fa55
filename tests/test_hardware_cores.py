"""Usable cores on fake machines: affinity, quotas of both cgroup versions, SMT, hybrid CPUs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.hardware.cores import Cores, read_cores

CPU = "sys/devices/system/cpu"


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(root: Path, siblings: list[str], *, allowed: str | None = None) -> Path:
    """A machine whose CPU n has the siblings siblings[n]."""
    last = len(siblings) - 1
    files = {f"{CPU}/online": f"0-{last}\n", "proc/self/status": f"Cpus_allowed_list:\t{allowed or f'0-{last}'}\n"}
    files |= {f"{CPU}/cpu{n}/topology/core_cpus_list": text + "\n" for n, text in enumerate(siblings)}
    return put(root, files)


def cores(root: Path) -> Cores:
    return read_cores(root, system="linux")


SMT8 = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]


def test_siblings_count_once(tmp_path: Path) -> None:
    assert cores(machine(tmp_path, SMT8)) == Cores(8, 4, None, 8, None, None, 4)


@pytest.mark.parametrize(
    ("allowed", "affinity", "usable"),
    [("0,4", 2, 1), ("0-2", 3, 3), ("0,1,4,5", 4, 2), ("7", 1, 1), ("0-63", 8, 4), ("40", 8, 4), ("rubbish", 8, 4)],
)
def test_affinity(tmp_path: Path, allowed: str, affinity: int, usable: int) -> None:
    found = cores(machine(tmp_path, SMT8, allowed=allowed))
    assert (found.affinity, found.usable) == (affinity, usable)


def test_older_topology_name(tmp_path: Path) -> None:
    files = {f"{CPU}/cpu{n}/topology/thread_siblings_list": "0-1\n" for n in (0, 1)}
    assert cores(put(tmp_path, {f"{CPU}/online": "0-1", **files})) == Cores(2, 1, None, 2, None, None, 1)


def test_offline_cpus_do_not_count(tmp_path: Path) -> None:
    put(machine(tmp_path, SMT8), {f"{CPU}/online": "0-2,4-7"})
    assert cores(tmp_path) == Cores(7, 4, None, 7, None, None, 4)


def test_cpuinfo_where_there_is_no_topology(tmp_path: Path) -> None:
    blocks = [f"processor : {n}\nphysical id : {n // 4}\ncore id : {n % 2}\n" for n in range(8)]
    assert cores(put(tmp_path, {"proc/cpuinfo": "\n".join(blocks)})) == Cores(8, 4, None, 8, None, None, 4)


def test_cpuinfo_without_core_ids_counts_every_cpu(tmp_path: Path) -> None:
    found = cores(put(tmp_path, {"proc/cpuinfo": "processor : 0\nBogoMIPS : 50\n\nprocessor : 1\nBogoMIPS : 50\n"}))
    assert (found.logical, found.physical, found.usable) == (2, 2, 2)


def test_an_empty_tree_is_one_core(tmp_path: Path) -> None:
    assert cores(tmp_path) == Cores(1, 1, None, 1, None, None, 1)


@pytest.mark.parametrize(
    ("text", "quota", "usable"),
    [
        ("200000 100000\n", 2.0, 2),
        ("250000 100000\n", 2.5, 2),
        ("50000 100000\n", 0.5, 1),
        ("10000 100000\n", 0.1, 1),
        ("9900000 100000\n", 99.0, 4),
        ("max 100000\n", None, 4),
        ("", None, 4),
        ("200000\n", None, 4),
        ("200000 0\n", None, 4),
        ("0 100000\n", None, 4),
        ("-1 100000\n", None, 4),
        ("a b c\n", None, 4),
    ],
)
def test_quota_version_2(tmp_path: Path, text: str, quota: float | None, usable: int) -> None:
    put(machine(tmp_path, SMT8), {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
    found = cores(tmp_path)
    assert (found.quota, found.usable) == (quota, usable)
    assert found.quota_source == ("/sys/fs/cgroup/cpu.max" if quota else None)


def test_quota_of_an_ancestor_holds(tmp_path: Path) -> None:
    put(
        machine(tmp_path, SMT8),
        {
            "proc/self/cgroup": "0::/a/b/c\n",
            "sys/fs/cgroup/a/b/c/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "390000 100000\n",
            "sys/fs/cgroup/a/cpu.max": "150000 50000\n",
        },
    )
    found = cores(tmp_path)
    assert (found.quota, found.quota_source, found.usable) == (3.0, "/sys/fs/cgroup/a/cpu.max", 3)


@pytest.mark.parametrize(
    ("quota_us", "period_us", "quota", "usable"),
    [("300000", "100000", 3.0, 3), ("-1", "100000", None, 4), ("50000", "100000", 0.5, 1), ("300000", "", None, 4)],
)
def test_quota_version_1(tmp_path: Path, quota_us: str, period_us: str, quota: float | None, usable: int) -> None:
    put(
        machine(tmp_path, SMT8),
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/docker/abc\n",
            "proc/self/mountinfo": "40 31 0:32 /docker /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": quota_us,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": period_us,
            "sys/fs/cgroup/cpu/abc/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/abc/cpu.cfs_period_us": "100000\n",
        },
    )
    found = cores(tmp_path)
    assert (found.quota, found.usable) == (quota, usable)
    assert found.quota_source == ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us" if quota else None)


def hybrid_intel(root: Path, **options: str) -> Path:
    """4 P-cores with two CPUs each (0 to 7), 4 E-cores (8 to 11)."""
    siblings = ["0-1", "0-1", "2-3", "2-3", "4-5", "4-5", "6-7", "6-7", "8", "9", "10", "11"]
    return put(
        machine(root, siblings, **options),
        {"sys/devices/cpu_core/cpus": "0-7\n", "sys/devices/cpu_atom/cpus": "8-11\n"},
    )


def test_hybrid_intel_takes_performance_cores(tmp_path: Path) -> None:
    assert cores(hybrid_intel(tmp_path)) == Cores(12, 8, 4, 12, None, None, 4)


@pytest.mark.parametrize(("allowed", "usable"), [("8-11", 4), ("9", 1), ("0-1,8-11", 1), ("0,2,8", 2)])
def test_hybrid_intel_within_the_affinity(tmp_path: Path, allowed: str, usable: int) -> None:
    found = cores(hybrid_intel(tmp_path, allowed=allowed))
    assert (found.performance, found.usable) == (4, usable)


def test_intel_list_that_names_every_cpu_is_not_hybrid(tmp_path: Path) -> None:
    put(machine(tmp_path, ["0", "1"]), {"sys/devices/cpu_core/cpus": "0-1\n"})
    assert cores(tmp_path).performance is None


def speeds(root: Path, name: str, values: list[int | str]) -> Path:
    return put(
        machine(root, [str(n) for n in range(len(values))]),
        {f"{CPU}/cpu{n}/{name}": f"{value}\n" for n, value in enumerate(values)},
    )


@pytest.mark.parametrize(
    ("values", "performance", "usable"),
    [
        ([446] * 4 + [1024] * 4, 4, 4),  # big.LITTLE
        ([325] * 4 + [871] * 3 + [1024], 4, 4),  # three clusters: all but the slow one
        ([381] * 6 + [1024] * 2, 2, 2),
        ([1024] * 4, None, 4),
        ([1009, 1024, 1024, 990], None, 4),  # favoured cores of a symmetric CPU
        ([1024, 446, "x", 446], None, 4),
        ([1024, 0, 446, 446], None, 4),
    ],
)
def test_arm_capacity(tmp_path: Path, values: list[int | str], performance: int | None, usable: int) -> None:
    found = cores(speeds(tmp_path, "cpu_capacity", values))
    assert (found.performance, found.usable) == (performance, usable)


CLOCKS: list[int | str] = [1_800_000, 1_800_000, 2_400_000, 2_400_000]


def test_arm_clock_where_there_is_no_capacity(tmp_path: Path) -> None:
    assert cores(speeds(tmp_path, "cpufreq/cpuinfo_max_freq", CLOCKS)).performance == 2


def test_x86_clocks_do_not_make_a_machine_hybrid(tmp_path: Path) -> None:
    speeds(tmp_path, "cpufreq/cpuinfo_max_freq", CLOCKS)
    put(tmp_path, {"proc/cpuinfo": "processor : 0\nvendor_id : AuthenticAMD\n"})
    assert (cores(tmp_path).performance, cores(tmp_path).usable) == (None, 4)


def test_everything_at_once(tmp_path: Path) -> None:
    put(
        hybrid_intel(tmp_path, allowed="2-9"),
        {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "250000 100000\n"},
    )
    assert cores(tmp_path) == Cores(12, 8, 4, 8, 2.5, "/sys/fs/cgroup/job/cpu.max", 2)


def test_apple_silicon() -> None:
    values = {
        "hw.logicalcpu": "10",
        "hw.physicalcpu": "10",
        "hw.nperflevels": "2",
        "hw.perflevel0.physicalcpu": "8",
    }
    assert read_cores(system="darwin", sysctl=lambda names: {n: values[n] for n in names}) == Cores(
        10, 10, 8, 10, None, None, 8
    )


def test_intel_mac() -> None:
    values = {"hw.logicalcpu": "12", "hw.physicalcpu": "6"}
    assert read_cores(system="darwin", sysctl=lambda names: values) == Cores(12, 6, None, 12, None, None, 6)


def test_other_systems_go_through_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [0, 1, 2, 3], raising=False)
    assert read_cores(system="win32") == Cores(16, 8, None, 4, None, None, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="the real /proc")
def test_this_machine_agrees_with_psutil() -> None:
    import psutil

    found = read_cores()
    assert found.logical == psutil.cpu_count()
    assert found.affinity == len(psutil.Process().cpu_affinity())
    assert 1 <= found.usable <= found.physical <= found.logical


FILES = st.sampled_from(
    [
        "proc/self/status",
        "proc/self/cgroup",
        "proc/self/mountinfo",
        "proc/cpuinfo",
        "sys/fs/cgroup/cpu.max",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us",
        "sys/devices/cpu_core/cpus",
        f"{CPU}/online",
        f"{CPU}/cpu0/topology/core_cpus_list",
        f"{CPU}/cpu0/cpu_capacity",
    ]
)
CONTENT = st.one_of(st.binary(max_size=40), st.sampled_from([b"0-3", b"9-1", b"max", b"-1", b"9" * 25, b"0::/../.."]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(files=st.dictionaries(FILES, CONTENT))
def test_nonsense_never_raises(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    root = tmp_path_factory.mktemp("root")
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    found = cores(root)
    assert 1 <= found.usable <= found.physical <= found.logical
    assert found.affinity <= found.logical
