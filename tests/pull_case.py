"""What the tests of pulling share: a hub with small sound models, and what may be left in the cache afterwards.

Fixtures are imported by the files that want them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmcli.base import settings as settings_module
from tests.fixtures.hub_stub import HubStub

REPO = "Own/Tiny-GGUF"


def gguf(fill: int = 4096, *, seed: int = 0) -> bytes:
    """A sound GGUF file without keys and tensors, and `fill` bytes behind its header."""
    body = bytes((i * 31 + seed) % 251 for i in range(fill))
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + body


@pytest.fixture
def online(llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets the client go out, to loopback; it reads its switches once, when it is imported."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 2)
    close_session()
    yield
    close_session()


@pytest.fixture
def hub(online: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStub]:
    """A hub with one repository; for a process too: HF_ENDPOINT is set."""
    root = tmp_path / "hub"
    root.mkdir()
    with HubStub(root) as stub:
        stub.add(REPO, "Tiny-Q4_K_M.gguf", gguf())
        monkeypatch.setenv("HF_ENDPOINT", stub.endpoint)
        monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "2")
        yield stub


def cache() -> Path:
    """The Hugging Face cache of this test."""
    return settings_module.load().hub_cache_dir


def named() -> list[Path]:
    """Every file or link that any tool would take for a model, and every blob with its final name."""
    found = [p for p in cache().rglob("*") if "snapshots" in p.parts and (p.is_symlink() or p.is_file())]
    blobs = [p for p in cache().rglob("*") if p.parent.name == "blobs" and p.suffix != ".incomplete"]
    own = settings_module.load().data_dir / "models"
    return found + blobs + [p for p in own.rglob("*.gguf") if p.is_file()]


def halves() -> list[Path]:
    """The half files."""
    own = settings_module.load().data_dir / "models"
    return [p for place in (cache(), own) for p in place.rglob("*.incomplete")]
