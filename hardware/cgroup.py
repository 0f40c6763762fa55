"""Which cgroup folders limit this process: its own and every ancestor that can be seen, version 2 and version 1.

A limit of any ancestor holds too, so the caller looks at all of them. Formats: cgroups(7) and proc_pid_mountinfo(5);
Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1. Knows nothing of what the limits mean.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from llmcli.base.records import dataclass
from llmcli.hardware.kernel_files import read_text

_OCTAL = re.compile(r"\\([0-7]{3})")
# Where the mounts are by convention, for when mountinfo cannot be read.
_USUAL_V2 = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_USUAL_V1 = "/sys/fs/cgroup/{}"


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One folder of the hierarchy: version 1 or 2."""

    version: int
    folder: Path


@dataclass(frozen=True, slots=True)
class _Mount:
    version: int
    root: str  # the folder of the hierarchy that is mounted
    point: str  # where
    controllers: frozenset[str]


def cgroups(root: Path, controller: str) -> tuple[Cgroup, ...]:
    """The folders that may limit this process by `controller` (`cpu`, `memory`), from its own up to the mount point."""
    memberships = _memberships(read_text(root / "proc/self/cgroup"))
    found: dict[Cgroup, None] = {}
    for mount in _mounts(root, controller):
        path = memberships.get("" if mount.version == 2 else controller, "/")
        found.update(dict.fromkeys(_lineage(root, mount, path)))
    return tuple(found)


def _memberships(text: str) -> dict[str, str]:
    """Controller -> path of /proc/self/cgroup; version 2 has the empty name (`0::/user.slice`)."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        names, colon, path = rest.partition(":")
        if colon and path.startswith("/"):
            for name in names.split(",") if number != "0" else [""]:
                paths.setdefault(name, path)
    return paths


def _mounts(root: Path, controller: str) -> list[_Mount]:
    lines = read_text(root / "proc/self/mountinfo").splitlines()
    mounts = [mount for line in lines if (mount := _parse_mount(line))]
    if not mounts:
        usual = [_Mount(2, "/", point, frozenset()) for point in _USUAL_V2]
        return [*usual, _Mount(1, "/", _USUAL_V1.format(controller), frozenset({controller}))]
    return [mount for mount in mounts if mount.version == 2 or controller in mount.controllers]


def _parse_mount(line: str) -> _Mount | None:
    left, dash, right = line.partition(" - ")
    before, after = left.split(" "), right.split(" ")
    if not dash or len(before) < 6 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
        return None
    point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), before[4])
    if not point.startswith("/"):
        return None
    return _Mount(2 if after[0] == "cgroup2" else 1, before[3], point, frozenset(after[2].split(",")))


def _lineage(root: Path, mount: _Mount, path: str) -> list[Cgroup]:
    """The process's folder below the mount point and its parents, innermost first.

    A path outside the mounted part (`/../x` in a namespace, another container's view) leaves the mount point alone.
    """
    inside, top = PurePosixPath(path), PurePosixPath(mount.root)
    below = inside.relative_to(top) if inside.is_relative_to(top) and ".." not in inside.parts else PurePosixPath()
    base = root / mount.point.lstrip("/")
    return [Cgroup(mount.version, base / part) for part in (below, *below.parents)]
