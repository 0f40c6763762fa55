"""The header of a file that is still on the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import ModelError
from llmcli.models.check import check_headers, check_model
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_header import read_header_from
from llmcli.models.hub_listing import RemoteFile
from llmcli.models.remote_header import RemoteSource, remote_headers
from tests.fixtures.hub_stub import COMMIT, HubStub
from tests.pull_case import hub, online

__all__ = ["hub", "online"]


def remote_facts(data: bytes, digest: str) -> ModelFacts:
    files = [RemoteFile("m.gguf", len(data), digest)]
    return check_headers(remote_headers("o/r", COMMIT, files, settings_module.load()), need_vocabulary=False)


def test_the_facts_are_those_of_the_file(hub: HubStub, random_model: Callable[[str], Path]) -> None:
    path = random_model("iswa")
    data = path.read_bytes()
    digest = hub.add("o/r", "m.gguf", data)
    facts = remote_facts(data, digest)
    here = check_model(path, need_vocabulary=False)
    assert (facts.n_params, facts.n_head_kv, facts.sliding_window) == (
        here.n_params,
        here.n_head_kv,
        here.sliding_window,
    )
    assert {r.method for r in hub.requests} == {"GET"}
    assert all(r.byte_range for r in hub.requests)


def test_a_server_without_range(hub: HubStub, random_model: Callable[[str], Path]) -> None:
    data = random_model("plain").read_bytes()
    digest = hub.add("o/r", "m.gguf", data)
    hub.set_fault("o/r", no_range=True)
    assert remote_facts(data, digest).n_params


@pytest.mark.parametrize("fault", [{"html": True}, {"status": 404}, {"grow": -100_000}])
def test_what_is_no_header(hub: HubStub, random_model: Callable[[str], Path], fault: dict[str, int]) -> None:
    data = random_model("plain").read_bytes()
    digest = hub.add("o/r", "m.gguf", data)
    hub.set_fault("o/r", **fault)
    if "grow" in fault:
        data = data[: fault["grow"]]
    with pytest.raises(ModelError) as caught:
        remote_facts(data, digest)
    assert "m.gguf" in caught.value.message or "404" in caught.value.message


def test_only_the_header_is_asked_for() -> None:
    asked: list[tuple[int, int]] = []
    whole = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)

    def read(start: int, count: int) -> bytes:
        asked.append((start, count))
        return whole[start : start + count].ljust(min(count, 1000), b"\0")

    header = read_header_from(RemoteSource("m.gguf", 50 << 30, read))
    assert header.file_bytes == 50 << 30
    assert sum(count for _, count in asked) < 4 << 20
