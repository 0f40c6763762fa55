"""Which model a reference describes: here, or on the hub by its header over Range; and servers that mean harm."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.base.settings import Settings, load
from llmcli.models.described import Described, describe_reference
from tests.fixtures.hub_stub import COMMIT, HubStub
from tests.library_case import add_to_cache, tiny
from tests.pull_case import online

__all__ = ["online"]

BIG = 3 << 20  # of weights behind the header: what must not be fetched


@pytest.fixture
def hub(online: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStub]:
    with HubStub(tmp_path / "hub") as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.endpoint)
        yield stub


def describe(reference: str, settings: Settings | None = None, **options: str | None) -> Described:
    notes: list[str] = []
    return describe_reference(reference, settings or load(), revision=options.get("revision"), notify=notes.append)


def big_model() -> bytes:
    return tiny(weights=BIG // 4).dump()


def test_here_comes_first(hub: HubStub) -> None:
    hub.add("o/M-GGUF", "M-Q4_0.gguf", big_model())
    add_to_cache(load(), "o/M-GGUF", "M-Q4_0.gguf", tiny().dump())
    assert describe("o/M-GGUF:Q4_0").description.n_params == 32
    assert hub.requests == []
    remote = describe("o/M-GGUF:Q4_0", revision="main")
    assert (remote.path, remote.commit, remote.description.n_params) == (None, COMMIT, BIG // 4)


def test_only_the_header_is_fetched(hub: HubStub) -> None:
    hub.add("o/M-GGUF", "sub/M-Q4_0.gguf", big_model())
    found = describe("o/M-GGUF:Q4_0")
    assert (found.repo_id, found.name, found.files) == ("o/M-GGUF", "M-Q4_0", ("sub/M-Q4_0.gguf",))
    ranges = [request.byte_range for request in hub.requests if "/resolve/" in request.path]
    assert ranges
    assert all(text and int(text.split("-")[1]) - int(text.split("=")[1].split("-")[0]) < 1 << 20 for text in ranges)


def test_all_parts_of_a_split_model(hub: HubStub) -> None:
    for number in (1, 2):
        part = tiny().set("split.count", 2, 2).set("split.no", 2, number - 1).set("split.tensors.count", 5, 2)
        part.tensors[0].name = b"t%d" % number
        hub.add("o/M-GGUF", f"M-Q8_0-0000{number}-of-00002.gguf", part.dump())
    found = describe("o/M-GGUF:Q8_0")
    assert (found.description.n_files, found.description.n_params, found.name) == (2, 64, "M-Q8_0")


def test_what_there_is_instead(hub: HubStub) -> None:
    for quant in ("Q4_0", "Q8_0"):
        hub.add("o/M-GGUF", f"M-{quant}.gguf", tiny().dump())
    hub.add("o/empty", "README.md", b"x")
    for reference, problem in (
        ("o/M-GGUF", "o/M-GGUF has 2 models"),
        ("o/M-GGUF:Q2_K", "o/M-GGUF has no Q2_K"),
        ("o/empty", "o/empty has no GGUF model"),
        ("o/nosuch", "the hub has no repository o/nosuch, or it is private"),
    ):
        with pytest.raises(ModelError) as caught:
            describe(reference)
        assert caught.value.message == problem
    with pytest.raises(ModelError) as caught:
        describe("o/M-GGUF")
    assert caught.value.hint is not None
    assert "M-Q4_0.gguf" in caught.value.hint


def test_offline_and_names_that_are_no_repository(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("o/M-GGUF", "M-Q4_0.gguf", tiny().dump())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for reference in ("o/M-GGUF:Q4_0", "nosuch", "./no.gguf"):
        with pytest.raises(ModelError):
            describe(reference)
    assert hub.requests == []
    with pytest.raises(ModelError, match="names no repository"):
        describe("nosuch", revision="main")


def test_an_alias_leads_to_the_hub(hub: HubStub, llmcli_home: Path) -> None:
    hub.add("o/M-GGUF", "M-Q4_0.gguf", tiny().dump())
    (llmcli_home / "config").mkdir()
    (llmcli_home / "config" / "config.toml").write_text('[alias]\nmine = "o/M-GGUF:Q4_0"\n')
    assert describe("mine").repo_id == "o/M-GGUF"


def test_a_model_that_cannot_be_run_is_described_with_the_reason(hub: HubStub) -> None:
    hub.add("o/M-GGUF", "M-Q4_0.gguf", tiny("nosucharch").dump())
    found = describe("o/M-GGUF:Q4_0").description
    assert (found.facts, found.architecture) == (None, "nosucharch")
    assert "does not know" in (found.problem or "")


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ({"html": True}, "an HTML page"),
        ({"status": 500}, "answers 500"),
        ({"status": 429}, "429"),
        ({"gated": True}, "is gated and there is no token"),
        ({"names": ["../../evil.gguf", "/tmp/x.gguf", "a\x1b[2J.gguf"]}, None),
    ],
)
def test_faults_of_the_hub(hub: HubStub, fault: dict[str, object], problem: str | None) -> None:
    hub.add("o/M-GGUF", "M-Q4_0.gguf", tiny().dump())
    hub.set_fault("o/M-GGUF", **fault)
    if problem is None:
        assert describe("o/M-GGUF:Q4_0").name == "M-Q4_0"
    else:
        with pytest.raises(ModelError) as caught:
            describe("o/M-GGUF:Q4_0")
        assert problem in caught.value.message
        assert caught.value.message.isprintable()


class _Hostile(BaseHTTPRequestHandler):
    """Serves a good listing, and `body` for the file."""

    protocol_version = "HTTP/1.1"
    body: Callable[[_Hostile], None]
    sent = 0

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        with contextlib.suppress(ConnectionError):
            if self.path.startswith("/api/models"):
                files = '{"rfilename": "m-Q4_0.gguf", "size": 99999999999, "lfs": {"sha256": "%s"}}' % ("c" * 64)
                listing = f'{{"id": "o/m", "sha": "{COMMIT}", "siblings": [{files}]}}'
                self._send(200, listing.encode())
            else:
                type(self).body(self)

    def _send(self, status: int, data: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _endless(handler: _Hostile) -> None:
    """The range is ignored, and the body has no end."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(99_999_999_999))
    handler.end_headers()
    while True:
        handler.wfile.write(b"\0" * 65536)
        type(handler).sent += 65536


def _endless_header(handler: _Hostile) -> None:
    """A header that says it goes on and on, out of one piece that is sent for every range."""
    start = int((handler.headers["Range"] or "=0-").split("=")[1].split("-")[0])
    begin = b"GGUF\3\0\0\0" + (1).to_bytes(8, "little") * 2 + (1).to_bytes(8, "little") + b"x" + b"\x08\0\0\0"
    begin += (15 << 20).to_bytes(8, "little")
    data = (begin if start == 0 else b"").ljust(1 << 20, b"A")
    type(handler).sent += len(data)
    handler._send(206, data, ("Content-Range", f"bytes {start}-{start + len(data) - 1}/99999999999"))


def _zipped(handler: _Hostile) -> None:
    import gzip

    data = gzip.compress(b"GGUF" + b"\0" * (64 << 20))
    handler._send(206, data, ("Content-Encoding", "gzip"), ("Content-Range", "bytes 0-1023/99999999999"))


def _loop(handler: _Hostile) -> None:
    handler._send(302, b"", ("Location", handler.path))


def _short(handler: _Hostile) -> None:
    handler._send(206, b"GG", ("Content-Range", "bytes 0-1/2"))


def _nothing(handler: _Hostile) -> None:
    handler._send(206, b"", ("Content-Range", "bytes 0-1/99999999999"))


@pytest.mark.parametrize("body", [_endless, _endless_header, _zipped, _loop, _short, _nothing])
def test_a_server_that_means_harm(
    online: None, monkeypatch: pytest.MonkeyPatch, body: Callable[[_Hostile], None]
) -> None:
    handler: type[_Hostile] = type("Handler", (_Hostile,), {"body": body, "sent": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    try:
        with pytest.raises(ModelError) as caught:
            describe("o/m:Q4_0")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert caught.value.message.isprintable()
    assert handler.sent < 64 << 20
