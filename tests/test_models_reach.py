"""Giving up in time, proxies, and messages that hold no password."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.reach import causes, class_names, connect, proxy_for, unreachable, within, without_credentials


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def open_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def soon() -> float:
    return time.monotonic() + 0.3


def test_an_open_port(open_port: int) -> None:
    connect(f"http://127.0.0.1:{open_port}/path", soon())


def test_a_closed_port(closed_port: int) -> None:
    with pytest.raises(ModelError, match=r"cannot reach 127\.0\.0\.1: Connection refused"):
        connect(f"http://127.0.0.1:{closed_port}", soon())


def test_a_name_look_up_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: hang.wait(5))
    began = time.monotonic()
    with pytest.raises(ModelError, match=r"cannot reach hub\.invalid: no answer in time"):
        connect("https://hub.invalid", soon())
    assert time.monotonic() - began < 0.6
    hang.set()


@pytest.mark.parametrize("url", ["", "hub", "ftp://x", "http://", "https://x:port", "file:///etc"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ModelError, match="is not the address of a hub"):
        connect(url, soon())


def test_the_proxy_is_what_is_connected_to(open_port: int, closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{open_port}")
    connect("https://hub.invalid", soon())
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{closed_port}")
    with pytest.raises(ModelError) as caught:
        connect("https://hub.invalid", soon())
    assert caught.value.message == (
        f"cannot reach hub.invalid through the proxy http://127.0.0.1:{closed_port}: Connection refused"
    )


def test_proxy_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_for("https", "hub.invalid") is None
    monkeypatch.setenv("https_proxy", "proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "intern.invalid")
    assert proxy_for("https", "hub.invalid") == "http://proxy.invalid:3128"
    assert proxy_for("http", "hub.invalid") is None
    assert proxy_for("https", "a.intern.invalid") is None
    monkeypatch.setenv("all_proxy", "socks5://proxy.invalid")
    assert proxy_for("http", "hub.invalid") == "socks5://proxy.invalid"


def test_within_passes_results_and_errors_on() -> None:
    assert within(soon(), lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(soon(), lambda: 1 / 0)
    with pytest.raises(TimeoutError):
        within(time.monotonic() + 0.05, lambda: time.sleep(0.5))


def test_untrusted_certificates_have_their_own_message() -> None:
    outer = RuntimeError("connection failed")
    outer.__cause__ = OSError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed")
    error = unreachable("hub.invalid", None, outer)
    assert error.message.startswith("the certificate of hub.invalid is not trusted: ")
    assert "SSL_CERT_FILE" in str(error.hint)


def test_without_credentials() -> None:
    assert without_credentials("at http://me:pass@host/x and //t@h") == "at http://host/x and //h"
    assert without_credentials("for 'https://cdn/x?sig=secret' at 5") == "for 'https://cdn/x' at 5"


def test_causes_ends_in_a_circle() -> None:
    first, second = ValueError("a"), OSError("b")
    first.__cause__, second.__cause__ = second, first
    assert list(causes(first)) == [first, second]
    assert {"OSError", "Exception"} <= class_names(second)
