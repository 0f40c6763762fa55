"""Does a host answer in time, and what to say where it does not. Knows proxies; knows nothing of what is fetched.

The standard library only, so that a hub out of reach is found out before the hub client is imported.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import urlsplit

from llmcli.base.errors import ModelError
from llmcli.base.text import printable

_CREDENTIALS = re.compile(r"(//)[^/@\s]*@")
_QUERY = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")
_NO_ADDRESS = {"TooManyRedirects", "UnsupportedProtocol", "InvalidURL"}
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
T = TypeVar("T")


def connect(url: str, ends_at: float) -> None:
    """Raise ModelError unless the host of `url`, or the proxy in front of it, takes a connection in time."""
    try:
        target = urlsplit(url)
        host, port = target.hostname, target.port or (443 if target.scheme == "https" else 80)
    except ValueError:
        host, port = None, 0
    if not host or target.scheme not in {"http", "https"}:
        shown = without_credentials(printable(url))
        raise ModelError(f"{shown!r} is not the address of a hub", hint="correct or unset HF_ENDPOINT")
    proxy = proxy_for(target.scheme, host)
    via = urlsplit(proxy) if proxy else None
    try:
        address = (via.hostname or "", via.port or 80) if via else (host, port)
        within(ends_at, lambda: socket.create_connection(address, max(0.1, ends_at - time.monotonic())).close())
    except (OSError, ValueError) as error:
        raise unreachable(host, proxy, error) from None


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy that the environment (or, on macOS and Windows, the system) sets for `host`; None for none."""
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    found = proxies.get(scheme) or proxies.get("all")
    if not found or proxy_bypass(host):
        return None
    return found if "://" in found else f"http://{found}"


def within(ends_at: float, job: Callable[[], T]) -> T:
    """The result of `job`, raising what it raises, or TimeoutError at `ends_at` (monotonic clock).

    It runs in a thread that is left behind when time is up: a name look-up takes no time limit and no interruption.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(job())
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(0.0, ends_at - time.monotonic()))
    if failures:
        raise failures[0]
    if not results:
        raise TimeoutError("no answer in time")
    return results[0]


def unreachable(host: str, proxy: str | None, error: BaseException) -> ModelError:
    """The ModelError for a hub that gave no answer: through a proxy, for want of trust, or at all."""
    reason = reason_of(error)
    if untrusted(error):
        return ModelError(
            f"the certificate of {host} is not trusted: {reason}",
            hint="where a proxy signs for it, set SSL_CERT_FILE to the file with its CA certificate",
        )
    if proxy:
        return ModelError(
            f"cannot reach {host} through the proxy {without_credentials(printable(proxy))}: {reason}",
            hint="check HTTPS_PROXY and HTTP_PROXY, or add the host to NO_PROXY",
        )
    return ModelError(f"cannot reach {host}: {reason}", hint="check the network, then try again")


def leads_nowhere(error: BaseException, proxy: str | None) -> bool:
    """Whether a server answered with an address that is none, or with one after the other: again does not help.

    A ValueError is about an address too, and where there is a proxy about the proxy's.
    """
    names = class_names(error)
    return bool(names & _NO_ADDRESS) or (proxy is None and isinstance(error, ValueError))


def untrusted(error: BaseException) -> bool:
    """Whether a certificate was refused: trying again does not help."""
    return any(_UNTRUSTED in str(link) for link in causes(error))


def without_credentials(text: str) -> str:
    """`text` with the user name, the password and the query of every address in it taken out: any may be a secret."""
    return _QUERY.sub(r"\1", _CREDENTIALS.sub(r"\1", text))


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what led to it, outermost first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def class_names(error: BaseException) -> set[str]:
    """The names of the error's classes, base classes included."""
    return {cls.__name__ for cls in type(error).__mro__}


def reason_of(error: BaseException) -> str:
    """The first line of the innermost error that says anything, safe to print, without passwords."""
    for link in reversed(list(causes(error))):
        if isinstance(link, TimeoutError) or "TimeoutException" in class_names(link):
            return "no answer in time"
        text = (link.strerror if isinstance(link, OSError) else None) or str(link).strip()
        if text:
            return without_credentials(printable(text.splitlines()[0]))
    return type(error).__name__
