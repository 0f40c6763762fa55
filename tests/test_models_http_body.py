"""Bodies of every kind through the real library: with a length, in chunks, compressed, cut, of any size."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from llmcli.base import settings as settings_module
from llmcli.models import hub
from llmcli.models.http_body import content_range
from tests.pull_case import online

__all__ = ["online"]

DATA = bytes(range(256)) * 16_384  # 4 MiB


@pytest.fixture
def server(online: None) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Silence."""

        def do_GET(self) -> None:
            kind, _, size = self.path.strip("/").partition("/")
            data = DATA[: int(size)]
            self.send_response(200)
            if kind == "chunked":
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for at in range(0, len(data), 50_000):
                    piece = data[at : at + 50_000]
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
                return
            if kind == "gzip":
                data = gzip.compress(data)
                self.send_header("Content-Encoding", "gzip")
            if kind == "until-close":
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(len(data) + (100 if kind == "cut" else 0)))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = kind in {"cut", "until-close"}

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.daemon_threads = True
    served.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_address[1]}"
    served.shutdown()
    served.server_close()
    thread.join()


def read(url: str) -> bytes:
    with hub.open_url(url, settings_module.load(), headers={}) as (_, body):
        found = bytearray()
        while piece := body.read():
            found += piece
        assert bytes(body.read()) == b""
    return bytes(found)


@pytest.mark.parametrize("kind", ["plain", "chunked", "until-close"])
@pytest.mark.parametrize("size", [0, 1, 100, 65_000, 65_536, 70_000, len(DATA)])
def test_every_byte_once(server: str, kind: str, size: int) -> None:
    assert read(f"{server}/{kind}/{size}") == DATA[:size]


def test_the_connection_after_a_body_is_not_confused(server: str) -> None:
    for size in (100, len(DATA), 5, 200_000, 0, 7):
        assert read(f"{server}/plain/{size}") == DATA[:size]


def test_a_cut_body_just_ends(server: str) -> None:
    assert read(f"{server}/cut/{300_000}") == DATA[:300_000]


def test_compression_is_noticed(server: str) -> None:
    with hub.open_url(f"{server}/gzip/1000", settings_module.load(), headers={}) as (_, body):
        assert body.encoded


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes 5-9/10", (5, 10)),
        ("bytes 5-9/*", (5, None)),
        ("Bytes 0-0/1", (0, 1)),
        *((text, None) for text in ("", "bytes */10", "items 0-1/2", "bytes x-1/2", "bytes -1-2/3", "bytes ٣-9/10")),
    ],
)
def test_content_range(text: str, expected: tuple[int, int | None] | None) -> None:
    assert content_range({"content-range": text}) == expected
