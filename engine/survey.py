"""The parts of `llmcli doctor` that take time or leave the machine alone no longer: disks tried with a file, the hub
asked for a connection; and huge pages and drivers. Facts, and a verdict on each; see diagnose for the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.base.units import format_bytes
from llmcli.engine.diagnose import Check
from llmcli.hardware.devices import Gpu
from llmcli.hardware.disk import DiskSpeed, try_disk
from llmcli.hardware.kernel_files import REAL_ROOT
from llmcli.hardware.pages import HugePages, driver_version, read_huge_pages
from llmcli.models.reach import connect, proxy_for, without_credentials

_HUB_TIMEOUT_S = 4.0
# Below this a model of a gigabyte takes ten seconds to load, and a stored prefix hardly beats computing it.
_SLOW_BYTES_S = 100 << 20


@dataclass(frozen=True, slots=True)
class Hub:
    """Whether the hub answers. seconds: of the connection; None where it was not made, for `problem` or not asked."""

    endpoint: str
    asked: bool
    seconds: float | None = None
    proxy: str | None = None
    problem: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found; drivers: name -> version."""

    hub: Hub
    disks: tuple[DiskSpeed, ...]
    huge_pages: HugePages | None
    drivers: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """The facts with the names of docs/commands/doctor.md."""
        return {
            "hub": asdict(self.hub),
            "disks": [{**asdict(disk), "is_network": disk.is_network} for disk in self.disks],
            "huge_pages": asdict(self.huge_pages) if self.huge_pages else None,
            "drivers": dict(self.drivers),
        }


def survey(
    settings: Settings,
    gpus: Sequence[Gpu],
    *,
    quick: bool,
    root: Path = REAL_ROOT,
    ask: Callable[[str, float], None] = connect,
) -> Survey:
    """Look around. quick: neither the hub nor the disks are tried. `root` and `ask` are for tests."""
    names = dict.fromkeys(gpu.driver for gpu in gpus if gpu.driver)
    drivers = {name: version for name in names if name and (version := driver_version(root, name))}
    disks = () if quick else _disks(settings)
    return Survey(reach_hub(settings, quick=quick, ask=ask), disks, read_huge_pages(root), drivers)


def _disks(settings: Settings) -> tuple[DiskSpeed, ...]:
    """Where models and the prefix store live; folders on one device are tried once."""
    found: dict[int, DiskSpeed] = {}
    for folder in (settings.hub_cache_dir, settings.data_dir, settings.cache_dir):
        nearest = next((place for place in (folder, *folder.parents) if os.path.isdir(place)), None)
        if nearest is not None and (device := nearest.stat().st_dev) not in found:
            found[device] = try_disk(folder)
    return tuple(found.values())


def reach_hub(settings: Settings, *, quick: bool, ask: Callable[[str, float], None] = connect) -> Hub:
    """Ask the hub for a connection, and for nothing else; not where the network is forbidden."""
    endpoint = without_credentials(settings.hub_endpoint)
    if settings.offline or quick:
        return Hub(endpoint, asked=False)
    begun = time.monotonic()
    target = urlsplit(settings.hub_endpoint)
    proxy = proxy_for(target.scheme, target.hostname) if target.hostname else None
    shown = without_credentials(proxy) if proxy else None
    try:
        ask(settings.hub_endpoint, begun + _HUB_TIMEOUT_S)
    except LlmcliError as error:
        return Hub(endpoint, asked=True, proxy=shown, problem=error.message, hint=error.hint)
    return Hub(endpoint, asked=True, seconds=time.monotonic() - begun, proxy=shown)


def judge_survey(found: Survey) -> tuple[Check, ...]:
    """The lines of the page."""
    checks = [Check("driver", "ok", f"{name} {version}") for name, version in found.drivers.items()]
    if found.huge_pages:
        checks.append(_huge_pages(found.huge_pages))
    return (*checks, *(_disk(disk) for disk in found.disks), _hub(found.hub))


def _huge_pages(pages: HugePages) -> Check:
    parts = [f"transparent ones: {pages.transparent}"] * (pages.transparent is not None)
    parts += [f"{format_bytes(pages.reserved_bytes)} set aside"] * (pages.reserved_bytes > 0)
    return Check("huge pages", "ok", ", ".join(parts) or "none")


def _disk(disk: DiskSpeed) -> Check:
    kind = f"{disk.path} is on {disk.kind or 'an unknown file system'}"
    if disk.write_bytes_s is None:
        return Check("disk", "warn", f"{kind}, where no file could be written to try it", "make the folder writable")
    read = "" if disk.read_bytes_s is None else f", reads {_speed(disk.read_bytes_s)}"
    message = f"{kind}, writes {_speed(disk.write_bytes_s)}{read}"
    if disk.is_network:
        advice = "put the store on a local disk: --cache-dir, or LLMCLI_HOME for everything"
        return Check(
            "disk", "warn", f"{message}; a network file system is slow, and locks on it cannot be relied on", advice
        )
    if min(disk.write_bytes_s, disk.read_bytes_s or disk.write_bytes_s) < _SLOW_BYTES_S:
        return Check(
            "disk", "warn", f"{message}: slow", "put models and the store on a faster disk: HF_HOME, LLMCLI_HOME"
        )
    return Check("disk", "ok", message)


def _speed(bytes_s: float) -> str:
    return f"{format_bytes(int(bytes_s))}/s"


def _hub(hub: Hub) -> Check:
    through = f" through the proxy {hub.proxy}" if hub.proxy else ""
    if not hub.asked:
        return Check("hub", "ok", f"{hub.endpoint} was not asked: the network is off, or --quick was given")
    if hub.problem is not None:
        return Check("hub", "warn", f"{hub.problem}; models that are here still run", hub.hint)
    return Check("hub", "ok", f"{hub.endpoint} answers in {1000 * (hub.seconds or 0):.0f} ms{through}")
