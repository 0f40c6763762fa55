"""One file from a hub on loopback into the cache, and every way that goes wrong."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import LlmcliError, ModelError, ResourceError
from llmcli.base.settings import Settings
from llmcli.models.hub import REACH_S, HubFile
from llmcli.models.hub_fetch import download
from llmcli.models.progress import Progress, silent
from tests.fixtures.hub_stub import COMMIT, HubStub

CONTENT = b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(range(256)) * 400  # no keys, no tensors, and sound
DIGEST = hashlib.sha256(CONTENT).hexdigest()
WANTED = HubFile("o/repo", "m.gguf", size_bytes=len(CONTENT), sha256=DIGEST)
UNKNOWN = HubFile("o/repo", "m.gguf")


@pytest.fixture
def online(llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets the client go out, to loopback; it reads its switches once, when it is imported."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    close_session()
    yield
    close_session()


@pytest.fixture
def hub(online: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStub]:
    (tmp_path / "o" / "repo").mkdir(parents=True)
    (tmp_path / "o" / "repo" / "m.gguf").write_bytes(CONTENT)
    with HubStub(tmp_path) as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.endpoint)
        yield stub


def settings() -> Settings:
    return settings_module.load()


def fetch(wanted: HubFile, **options: Any) -> Path:
    return download(wanted, settings(), progress=silent, **options)


def failure(wanted: HubFile, **options: Any) -> LlmcliError:
    """The error; nothing that could be taken for a model is left, under any name."""
    with pytest.raises(LlmcliError) as caught:
        fetch(wanted, **options)
    cache = settings().hub_cache_dir
    left = [p for p in cache.rglob("*") if p.is_file() and p.suffix not in {".lock", ".TAG"} and "refs" not in p.parts]
    assert [p for p in left if ".no_exist" not in p.parts and p.name not in {"CACHEDIR.TAG", ".gitignore"}] == []
    return caught.value


def test_the_file_comes_into_the_shared_cache(hub: HubStub) -> None:
    path = fetch(WANTED)
    assert path.read_bytes() == CONTENT
    assert path.relative_to(settings().hub_cache_dir).parts[:2] == ("models--o--repo", "snapshots")
    assert path.name == "m.gguf"
    assert fetch(WANTED) == path


def test_progress_counts_bytes_up_to_the_size(hub: HubStub) -> None:
    seen: list[int] = []
    titles: list[tuple[str, int | None]] = []

    class Task:
        def update(self, done_bytes: int) -> None:
            seen.append(done_bytes)

    def factory(title: str, total_bytes: int | None, _unit: str = "", /) -> contextlib.AbstractContextManager[Progress]:
        titles.append((title, total_bytes))
        return contextlib.nullcontext(Task())

    download(WANTED, settings(), progress=factory)
    assert titles == [("m.gguf", len(CONTENT))]
    assert seen == sorted(seen)
    assert seen[-1] == len(CONTENT)


def test_nothing_is_written_to_the_terminal(hub: HubStub, capfd: pytest.CaptureFixture[str]) -> None:
    fetch(WANTED)
    hub.set_fault("o/repo", status=500)
    with pytest.raises(ModelError):
        fetch(HubFile("o/repo", "other.gguf"))
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("huggingface_hub").level > logging.CRITICAL


def test_a_cut_is_mended_by_range(hub: HubStub) -> None:
    hub.set_fault("o/repo", cut=1000)
    assert fetch(WANTED).read_bytes() == CONTENT
    assert [r.byte_range for r in hub.requests if r.method == "GET"] == [None, "bytes=1000-"]


def test_other_bytes_at_the_hub_are_refused_before_any_is_fetched(hub: HubStub) -> None:
    error = failure(HubFile("o/repo", "m.gguf", size_bytes=len(CONTENT), sha256="0" * 64))
    assert f"sha256 {DIGEST}, expected {'0' * 64}" in error.message
    assert f"bytes {len(CONTENT)}, expected 7" in failure(HubFile("o/repo", "m.gguf", size_bytes=7)).message
    assert {r.method for r in hub.requests} == {"HEAD"}


def test_a_flipped_byte_is_found_and_removed(hub: HubStub) -> None:
    hub.set_fault("o/repo", sha256=DIGEST)  # what the hub states; the client believes it
    (hub.root / "o" / "repo" / "m.gguf").write_bytes(CONTENT[:-1] + b"!")
    assert "wrong bytes" in failure(WANTED).message
    assert "wrong bytes" in failure(UNKNOWN).message
    (hub.root / "o" / "repo" / "m.gguf").write_bytes(CONTENT)
    assert fetch(WANTED).read_bytes() == CONTENT


def test_a_web_page_is_found_and_removed(hub: HubStub) -> None:
    hub.set_fault("o/repo", html=True)
    assert failure(UNKNOWN).message == "what came as m.gguf is an HTML page"


@pytest.mark.parametrize("linked", [True, False])
def test_wrong_bytes_that_are_there_are_replaced(hub: HubStub, linked: bool) -> None:
    """Both layouts: with links to blobs, and plain files where a system has no links."""
    pinned = HubFile("o/repo", "m.gguf", COMMIT, len(CONTENT), DIGEST)
    path = fetch(pinned)
    if not linked:
        path.unlink()
    path.write_bytes(b"GGUF" + b"0" * (len(CONTENT) - 4))
    assert path.is_symlink() == linked
    assert fetch(pinned).read_bytes() == CONTENT


def test_missing_and_gated(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(HubFile("o/none", "m.gguf")).message == "the hub has no repository o/none, or it is private"
    assert failure(HubFile("o/repo", "none.gguf")).message == "o/repo has no file none.gguf"
    hub.set_fault("o/repo", gated=True)
    assert failure(WANTED).message == "o/repo is gated and there is no token"
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    assert fetch(WANTED).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_in_trouble_is_not_asked_twice(hub: HubStub, status: int) -> None:
    hub.set_fault("o/repo", status=status)
    assert str(status) in failure(WANTED).message
    assert len(hub.requests) == 1


@pytest.mark.parametrize(
    "name",
    ["../../evil.gguf", "/tmp/x.gguf", "a/../x.gguf", "a//x.gguf", "x\x1b[31m.gguf", "x\n.gguf", "..\\x.gguf", ""],
)
def test_hostile_names_are_refused_unasked(hub: HubStub, name: str) -> None:
    error = failure(HubFile("o/repo", name))
    assert "refused" in error.message
    assert "\x1b" not in error.message
    assert hub.requests == []


def test_offline_is_at_once(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMCLI_OFFLINE", "1")
    assert failure(WANTED).message == "the network is switched off"
    assert hub.requests == []


def test_a_hub_that_takes_the_connection_and_says_nothing(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        began = time.monotonic()
        assert failure(WANTED, reach_s=0.5).message == "cannot reach 127.0.0.1: no answer in time"
        assert time.monotonic() - began < 1.5
    assert REACH_S < 3


def test_a_login_portal(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server, page), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert "is not a model hub" in failure(WANTED).message


def test_what_is_no_tls(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server, b"no tls here\r\n"), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"https://127.0.0.1:{server.getsockname()[1]}")
        assert failure(WANTED).message.startswith("cannot reach 127.0.0.1: ")


def _answer(server: socket.socket, reply: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            connection.settimeout(2)
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(reply)


def test_a_proxy_that_refuses_is_named(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:1")
    error = failure(WANTED)
    assert error.message == "cannot reach hub.invalid through the proxy http://127.0.0.1:1: Connection refused"


def test_the_hub_is_reached_through_the_proxy(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    # The stub answers what a plain HTTP proxy is asked for: it reads the path out of a full address too.
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    assert fetch(WANTED).read_bytes() == CONTENT


def test_a_bundle_for_other_tools_is_used(hub: HubStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "absent.pem"))
    error = failure(WANTED)
    assert error.message == f"cannot read the CA certificates at {tmp_path}/absent.pem: No such file or directory"
    assert error.hint == "correct REQUESTS_CA_BUNDLE"
    bundles: list[dict[str, str]] = []
    make = ssl.create_default_context

    def noted(**where: str) -> ssl.SSLContext:
        bundles.append(where)
        return make()

    monkeypatch.setattr(ssl, "create_default_context", noted)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path))
    try:
        assert fetch(WANTED).read_bytes() == CONTENT
    finally:
        set_client_factory(_http.default_client_factory)
    assert {"capath": str(tmp_path)} in bundles


def test_a_full_disk_is_found_before_the_download(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000, total=1, used=1))
    error = failure(WANTED)
    assert isinstance(error, ResourceError)
    assert {r.method for r in hub.requests} == {"HEAD"}


def test_a_cache_that_cannot_be_written(hub: HubStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(LlmcliError) as caught:
        fetch(WANTED)
    assert caught.value.exit_code == 1
    assert str(tmp_path / "file") in caught.value.message
    assert "HF_HOME" in str(caught.value.hint)


def test_an_interrupt_leaves_what_the_next_try_goes_on_from(hub: HubStub) -> None:
    class Task:
        def update(self, done_bytes: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(WANTED, settings(), progress=lambda *_: contextlib.nullcontext(Task()))
    (half,) = [p for p in settings().hub_cache_dir.rglob("*") if "blobs" in p.parts and p.is_file()]
    assert half.name == f"{DIGEST}.incomplete"
    size = half.stat().st_size
    assert fetch(WANTED).read_bytes() == CONTENT
    assert hub.requests[-1].byte_range == f"bytes={size}-" or size == len(CONTENT)
    assert not half.exists()


def test_two_at_once_both_succeed(hub: HubStub) -> None:
    found: list[Path | ModelError] = []

    def run() -> None:
        try:
            found.append(fetch(WANTED))
        except ModelError as error:
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert isinstance(found[0], Path)
    assert found[0].read_bytes() == CONTENT
