"""The body of an HTTP answer, read at the speed of the socket. Knows nothing of hubs, files or retries.

The HTTP library hands a body out in pieces of 64 KiB, each of which passes through its parser: measured on loopback,
that and the checksum reach two thirds of curl's rate. So what follows the first piece is read from the connection's
socket straight into one large buffer, where the answer is plain: HTTP/1.1, a known length, no encoding. The first
piece is always the parser's whole buffer, and the connection is closed afterwards, so nothing is lost or read twice.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

BUFFER_BYTES = 1 << 20
_SPAN_S, _LEAST_RATE = 20.0, 20_000  # of reading a part of a file: seconds, and bytes per second
_PLAIN_CODINGS = {"", "identity"}


class Body:
    """An answer whose headers have come. `length` is the Content-Length, None where the server does not tell."""

    def __init__(self, response: Any, *, timeout_s: float) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.host: str = response.url.host
        self.scheme: str = response.url.scheme
        self.length = _number(self.headers.get("content-length"))
        self._pieces: Iterator[bytes] = response.iter_raw()
        self._response, self._timeout_s = response, timeout_s
        self._left = self.length
        self._buffers: list[memoryview] = []
        self._socket: socket.socket | None = None
        self._begun = False

    @property
    def encoded(self) -> bool:
        """True where the bytes are not those of the file: a server that compresses although it was told not to."""
        return self.headers.get("content-encoding", "").strip().lower() not in _PLAIN_CODINGS

    def read(self) -> memoryview:
        """The next bytes, valid until the call after the next one; empty at the end of the body or of the connection.

        So that one piece may still be looked at while the next one comes.
        """
        if self._left == 0:
            return memoryview(b"")
        if self._socket is None:
            piece = memoryview(next(self._pieces, b""))
            if not self._begun:
                self._begun, self._socket = True, self._straight()
        else:
            buffer = self._next_buffer()[: BUFFER_BYTES if self._left is None else min(BUFFER_BYTES, self._left)]
            piece = buffer[: self._socket.recv_into(buffer)]
        if self._left is not None:
            piece = piece[: self._left]
            self._left -= len(piece)
        return piece

    def _next_buffer(self) -> memoryview:
        if not self._buffers:
            self._buffers = [memoryview(bytearray(BUFFER_BYTES)) for _ in range(2)]
        self._buffers.reverse()
        return self._buffers[0]

    def _straight(self) -> socket.socket | None:
        """The socket to read from after the first piece; None where the library has to do it."""
        if self._left is None or self._response.http_version != "HTTP/1.1":
            return None
        if self.headers.get("transfer-encoding"):
            return None
        stream = self._response.extensions.get("network_stream")
        found = stream.get_extra_info("socket") if stream is not None else None
        # Behind a proxy that is itself reached by TLS, the socket is not where the plain bytes come from.
        if not isinstance(found, socket.socket) or (self.scheme == "https") != isinstance(found, ssl.SSLSocket):
            return None
        found.settimeout(self._timeout_s)
        return found


def read_span(body: Body, start: int, count: int) -> bytes:
    """Up to `count` bytes of a file from `start` on, out of the answer to a request for them.

    Raises ConnectionError for a server that sends another part, or trickles: that breaks no time-out between two bytes.
    """
    if body.status == 416:
        return b""
    if body.status == 206 and (content_range(body.headers) or (None, None))[0] != start:
        raise ConnectionError("the server sent another part than the one asked for")
    skip = start if body.status == 200 else 0  # a server without Range sends the whole file
    data = bytearray()
    ends_at = time.monotonic() + _SPAN_S + (skip + count) / _LEAST_RATE
    while len(data) < skip + count and (piece := body.read()):
        data += piece
        if time.monotonic() > ends_at:
            raise ConnectionError("the server is too slow to wait for")
    return bytes(data[skip : skip + count])


def content_range(headers: Mapping[str, str]) -> tuple[int, int | None] | None:
    """(first byte, size of the whole file) of a Content-Range header; None where there is none that can be read."""
    unit, _, rest = headers.get("content-range", "").strip().partition(" ")
    span, _, total = rest.partition("/")
    start = _number(span.partition("-")[0])
    return None if unit.lower() != "bytes" or start is None else (start, _number(total))


def _number(text: str | None) -> int | None:
    """A number of at most 18 digits; the text is a stranger's."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
