"""The doctor's lines on hub, disks, huge pages and drivers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.base.settings import load
from llmcli.engine.diagnose import Check
from llmcli.engine.survey import Hub, Survey, judge_survey, reach_hub, survey
from llmcli.hardware.devices import Gpu
from llmcli.hardware.disk import DiskSpeed
from llmcli.hardware.pages import HugePages

GIB = 1 << 30
HUB = Hub("https://huggingface.co", asked=True, seconds=0.0346)
DISK = DiskSpeed("/home/me", "ext4", 1.0 * GIB, 2.0 * GIB)


def lines(**changes: object) -> list[Check]:
    made = Survey(HUB, (DISK,), HugePages("madvise", 0), {})
    return list(judge_survey(replace(made, **changes)))  # type: ignore[arg-type]


def test_a_healthy_machine() -> None:
    assert lines(drivers={"nvidia": "550.54.15"}) == [
        Check("driver", "ok", "nvidia 550.54.15"),
        Check("huge pages", "ok", "transparent ones: madvise"),
        Check("disk", "ok", "/home/me is on ext4, writes 1.0 GiB/s, reads 2.0 GiB/s"),
        Check("hub", "ok", "https://huggingface.co answers in 35 ms"),
    ]


def test_huge_pages() -> None:
    (check, *_) = lines(huge_pages=HugePages("never", 32 << 20))
    assert check.message == "transparent ones: never, 32.0 MiB set aside"
    assert [one.name for one in lines(huge_pages=None)] == ["disk", "hub"]


@pytest.mark.parametrize(
    ("disk", "status", "words"),
    [
        (replace(DISK, read_bytes_s=None), "ok", "writes 1.0 GiB/s"),
        (replace(DISK, write_bytes_s=50.0 * (1 << 20)), "warn", "slow"),
        (replace(DISK, read_bytes_s=50.0 * (1 << 20)), "warn", "slow"),
        (replace(DISK, kind="nfs4"), "warn", "locks on it cannot be relied on"),
        (replace(DISK, kind=None), "ok", "an unknown file system"),
        (replace(DISK, write_bytes_s=None), "warn", "no file could be written"),
    ],
)
def test_disks(disk: DiskSpeed, status: str, words: str) -> None:
    (check,) = [one for one in lines(disks=(disk,)) if one.name == "disk"]
    assert check.status == status
    assert words in check.message
    assert (check.advice is None) == (status == "ok")


def test_the_hub_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy.example:3128")
    found = reach_hub(load(), quick=False, ask=lambda _url, _ends: None)
    assert found.asked
    assert found.proxy == "http://proxy.example:3128"
    (check,) = [one for one in lines(hub=found) if one.name == "hub"]
    assert check.message.endswith("through the proxy http://proxy.example:3128")


def test_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")

    def refuse(_url: str, _ends: float) -> None:
        raise ModelError("cannot reach huggingface.co: no answer in time", hint="check the network")

    found = reach_hub(load(), quick=False, ask=refuse)
    (check,) = [one for one in lines(hub=found) if one.name == "hub"]
    assert check == Check(
        "hub",
        "warn",
        "cannot reach huggingface.co: no answer in time; models that are here still run",
        "check the network",
    )


@pytest.mark.parametrize("quick", [True, False])
def test_the_hub_is_not_asked_offline(quick: bool) -> None:
    def never(_url: str, _ends: float) -> None:
        raise AssertionError("asked")

    found = reach_hub(load(), quick=quick, ask=never)  # the tests are offline
    assert not found.asked
    assert "was not asked" in lines(hub=found)[-1].message


def test_survey_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: Module  550.54  x\n")
    gpu = Gpu("cuda", "NVIDIA X", None, "nvidia")
    found = survey(load(), (gpu, gpu, Gpu("vulkan", "Intel", None)), quick=True, root=tmp_path)
    assert found == Survey(Hub("https://huggingface.co", asked=False), (), None, {"nvidia": "550.54"})
    whole = survey(load(), (), quick=False)
    assert len(whole.disks) == 1  # all folders of a test are on one device
    assert json.loads(json.dumps(whole.as_json()))["disks"][0]["is_network"] is False
