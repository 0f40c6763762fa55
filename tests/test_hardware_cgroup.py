"""Which cgroup folders limit a process, for the mounts that real systems have."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.hardware.cgroup import cgroups


def _write(root: Path, membership: str, mountinfo: str | None) -> None:
    folder = root / "proc/self"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup").write_text(membership)
    if mountinfo is not None:
        (folder / "mountinfo").write_text(mountinfo)


def _folders(root: Path, controller: str) -> list[tuple[int, str]]:
    return [(group.version, "/" + group.folder.relative_to(root).as_posix()) for group in cgroups(root, controller)]


V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_version_2_own_folder_and_every_ancestor(tmp_path: Path) -> None:
    _write(tmp_path, "0::/user.slice/app.scope\n", V2_MOUNT)
    assert _folders(tmp_path, "cpu") == [
        (2, "/sys/fs/cgroup/user.slice/app.scope"),
        (2, "/sys/fs/cgroup/user.slice"),
        (2, "/sys/fs/cgroup"),
    ]


def test_version_2_in_a_namespace(tmp_path: Path) -> None:
    _write(tmp_path, "0::/\n", V2_MOUNT)
    assert _folders(tmp_path, "memory") == [(2, "/sys/fs/cgroup")]


def test_version_2_path_outside_the_namespace(tmp_path: Path) -> None:
    _write(tmp_path, "0::/../../other\n", V2_MOUNT)
    assert _folders(tmp_path, "memory") == [(2, "/sys/fs/cgroup")]


def test_version_1_container_without_a_namespace(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc/sub\n1:name=systemd:/docker/abc\n",
        "40 31 0:32 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "41 31 0:35 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
    )
    assert _folders(tmp_path, "cpu") == [
        (1, "/sys/fs/cgroup/cpu,cpuacct/sub"),
        (1, "/sys/fs/cgroup/cpu,cpuacct"),
    ]
    assert _folders(tmp_path, "memory") == [(1, "/sys/fs/cgroup/memory")]


def test_both_versions_side_by_side(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "4:memory:/a\n0::/b\n",
        "35 31 0:35 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    )
    assert _folders(tmp_path, "memory") == [
        (1, "/sys/fs/cgroup/memory/a"),
        (1, "/sys/fs/cgroup/memory"),
        (2, "/sys/fs/cgroup/unified/b"),
        (2, "/sys/fs/cgroup/unified"),
    ]


def test_mount_point_with_a_space(tmp_path: Path) -> None:
    _write(tmp_path, "0::/\n", r"30 23 0:26 / /my\040mount rw - cgroup2 cgroup2 rw" + "\n")
    assert _folders(tmp_path, "cpu") == [(2, "/my mount")]


def test_without_mountinfo_the_usual_places(tmp_path: Path) -> None:
    _write(tmp_path, "0::/a\n3:cpu:/b\n", None)
    assert _folders(tmp_path, "cpu") == [
        (2, "/sys/fs/cgroup/a"),
        (2, "/sys/fs/cgroup"),
        (2, "/sys/fs/cgroup/unified/a"),
        (2, "/sys/fs/cgroup/unified"),
        (1, "/sys/fs/cgroup/cpu/b"),
        (1, "/sys/fs/cgroup/cpu"),
    ]


def test_nothing_at_all_still_names_the_usual_places(tmp_path: Path) -> None:
    assert _folders(tmp_path, "cpu") == [
        (2, "/sys/fs/cgroup"),
        (2, "/sys/fs/cgroup/unified"),
        (1, "/sys/fs/cgroup/cpu"),
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(membership=st.text(), mountinfo=st.text())
def test_nonsense_never_raises(tmp_path: Path, membership: str, mountinfo: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/self/cgroup").write_bytes(membership.encode("utf-8", "surrogatepass"))
    (tmp_path / "proc/self/mountinfo").write_bytes(mountinfo.encode("utf-8", "surrogatepass"))
    assert all(group.folder.is_relative_to(tmp_path) for group in cgroups(tmp_path, "cpu"))


@pytest.mark.parametrize(
    "line",
    [
        "30 23 0:26 / relative rw - cgroup2 cgroup2 rw",
        "30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw",
        "30 23 - cgroup2 cgroup2 rw",
        "30 23 0:26 / /sys/fs/cgroup rw cgroup2 cgroup2 rw",
    ],
)
def test_lines_that_are_no_cgroup_mount(tmp_path: Path, line: str) -> None:
    _write(tmp_path, "0::/\n", line + "\n" + V2_MOUNT)
    assert _folders(tmp_path, "cpu") == [(2, "/sys/fs/cgroup")]
