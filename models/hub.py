"""The Hugging Face hub over HTTP: what a repository holds, what is stated of a file, and its bytes from an offset on.

The only importer of huggingface_hub: its session knows proxies, certificates and tokens, and its errors say what a
refusal means. Its downloads are not used. They neither resume nor check (2.4 reports success for wrong bytes and for
a web page), and a hub that cannot be reached costs 24 s of name look-ups; here it is given up within 3 s.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from llmcli.base.errors import ModelError
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.models.http_body import Body, read_span
from llmcli.models.hub_errors import as_llmcli_error, not_a_hub
from llmcli.models.hub_listing import Repository, is_digest, is_safe_name, parse_repository
from llmcli.models.reach import connect, within

# Time on the network until the hub is known to answer, in all: name look-up, connection, TLS, the first answer. With
# the client's import (about 0.5 s) this stays under the 3 s after which a hub counts as out of reach.
REACH_S = 2.4
_MAX_LISTING_BYTES = 64 << 20
_OF_THE_BODY = {"content-encoding", "content-length", "transfer-encoding"}
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository at a revision (branch, tag or commit), and what is known of it beforehand."""

    repo_id: str
    file: str
    revision: str = "main"
    size_bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Stated:
    """What the hub says of a file before sending it. `digest` is its ETag where that is a sha256 or git's sha1."""

    size_bytes: int | None
    digest: str | None
    commit: str


def list_repository(repo_id: str, revision: str, settings: Settings, *, reach_s: float = REACH_S) -> Repository:
    """What the repository holds at `revision`. Raises ModelError: out of reach, refused, missing, no such answer."""
    client, ends_at = _reached(settings, reach_s)
    path = f"{settings.hub_endpoint}/api/models/{repo_id}/revision/{quote(revision, safe='')}?blobs=true"
    with _translated(HubFile(repo_id, "", revision), settings, fetching=False):
        session, headers = client.get_session(), _headers(client)
        timeout = _timeout(client)
        # The first bytes within the time for reaching the hub; a long list may take longer.
        answer = within(ends_at + timeout, lambda: _listing(client, session, path, headers, timeout))
    try:
        return parse_repository(json.loads(answer or b""), repo_id)
    except (ValueError, RecursionError):
        raise not_a_hub(settings) from None


def _listing(client: Any, session: Any, path: str, headers: Mapping[str, str], timeout: float) -> bytes | None:
    """The answer; None for one without end."""
    with session.stream("GET", path, headers=headers, timeout=timeout, follow_redirects=True) as response:
        _raise_for_status(client, response)
        data = bytearray()
        for piece in response.iter_bytes():
            data += piece
            if len(data) > _MAX_LISTING_BYTES:
                return None
        return bytes(data)


def ask(wanted: HubFile, settings: Settings, *, reach_s: float = REACH_S) -> Stated:
    """What the hub states of the file. Raises ModelError, after `reach_s` seconds on the network at most."""
    check_name(wanted.repo_id, wanted.file)
    client, ends_at = _reached(settings, reach_s)

    def head() -> tuple[Stated, str]:
        left_s = max(0.1, ends_at - time.monotonic())
        found = client.get_hf_file_metadata(file_url(wanted, settings), timeout=left_s, endpoint=settings.hub_endpoint)
        if not found.commit_hash or not is_digest(found.commit_hash) or not found.etag:
            raise not_a_hub(settings)
        location = settings.hub_endpoint if found.xet_file_data is not None else found.location
        return Stated(found.size, found.etag if is_digest(found.etag) else None, found.commit_hash), location

    with _translated(wanted, settings, fetching=False):
        stated, location = within(ends_at, head)
        if urlsplit(location).netloc != urlsplit(settings.hub_endpoint).netloc:
            connect(location, ends_at)
    return stated


def check_name(repo_id: str, file: str) -> None:
    """Raise ModelError for a file name that leaves the repository's folder, or drives a terminal."""
    if not is_safe_name(file):
        raise ModelError(f"refused: {printable(repo_id)} names a file {printable(file)!r}")


def file_url(wanted: HubFile, settings: Settings) -> str:
    """The address of the file's bytes."""
    name, revision = quote(wanted.file), quote(wanted.revision, safe="")
    return f"{settings.hub_endpoint}/{wanted.repo_id}/resolve/{revision}/{name}"


@contextlib.contextmanager
def open_file(wanted: HubFile, settings: Settings, *, offset: int = 0, end: int | None = None) -> Iterator[Body]:
    """The file's bytes from `offset` on (up to, not including, `end`). Raises what `as_llmcli_error` makes of it."""
    client = _client()
    _trust_bundle(client, settings)
    headers = {**_headers(client), **_range(offset, end)}
    with (
        _translated(wanted, settings, fetching=True),
        open_url(file_url(wanted, settings), settings, headers=headers) as (response, body),
    ):
        if body.status not in {200, 206, 416}:
            _raise_for_status(client, response)
            raise not_a_hub(settings)
        yield body


@contextlib.contextmanager
def open_url(url: str, settings: Settings, *, headers: Mapping[str, str]) -> Iterator[tuple[Any, Body]]:
    """An answer of any server, through the hub client's session: (the library's response, its body).

    No token is added, and the library takes one off before it follows a redirect to another host. Whatever the
    library raises comes out as it is; so does ModelError where a redirect leads from https to http.
    """
    client = _client()
    _trust_bundle(client, settings)
    timeout = _timeout(client)
    # The bytes as they are: a server that compresses them would make every offset and size another one.
    sent = {"Accept-Encoding": "identity", **headers}
    with client.get_session().stream("GET", url, headers=sent, timeout=timeout, follow_redirects=True) as response:
        if url.startswith("https:") and response.url.scheme != "https":
            raise ModelError(f"{printable(urlsplit(url).hostname or '')} leads from https to plain http: refused")
        yield response, Body(response, timeout_s=timeout)


def _raise_for_status(client: Any, response: Any) -> None:
    """Raise the client's error for a refusal, told by status and headers alone.

    The client would read the body and look into it: a stranger's, which may have no end or be of any shape.
    """
    told = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _OF_THE_BODY]
    client.utils.hf_raise_for_status(type(response)(response.status_code, headers=told, request=response.request))


def read_range(wanted: HubFile, settings: Settings, start: int, count: int) -> bytes:
    """Up to `count` bytes of the file from `start` on, for readers of headers. Raises ModelError."""
    with open_file(wanted, settings, offset=start, end=start + count) as body:
        return read_span(body, start, count)


def transport_errors() -> tuple[type[Exception], ...]:
    """What the session raises when a connection fails or breaks.

    HTTPError is the base of the HTTP library's errors, under whichever name the client uses that library.
    """
    http_error: type[Exception] = _client().errors.HTTPError
    return (http_error, OSError, ValueError, RuntimeError, ImportError)


def has_token() -> bool:
    """Whether the hub client finds a token: HF_TOKEN, or the file that its login writes."""
    return _client().get_token() is not None


def _range(offset: int, end: int | None) -> dict[str, str]:
    if not offset and end is None:
        return {}
    return {"Range": f"bytes={offset}-{'' if end is None else end - 1}"}


def _reached(settings: Settings, reach_s: float) -> tuple[Any, float]:
    """The client, once the hub is known to take a connection, and when the time for reaching it is up."""
    if settings.offline:
        raise ModelError("the network is switched off", hint="unset HF_HUB_OFFLINE and LLMCLI_OFFLINE")
    ends_at = time.monotonic() + reach_s
    connect(settings.hub_endpoint, ends_at)
    began = time.monotonic()
    client = _client()
    _trust_bundle(client, settings)
    return client, ends_at + time.monotonic() - began  # the import is not the network's fault


def _client() -> Any:
    """huggingface_hub, made silent: what goes wrong is reported once, as an error of ours.

    And asking nothing of its own accord: for its telemetry it fetches a list of coding agents from the hub before the
    first request, and names the one it runs under.
    """
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.utils import logging as client_logging  # which sets the level when it is imported

    constants.HF_HUB_DISABLE_TELEMETRY = True
    client_logging.set_verbosity(logging.CRITICAL + 1)
    return huggingface_hub


def _headers(client: Any) -> dict[str, str]:
    """The client's own headers, with the user's token where there is one."""
    from llmcli.base.version import VERSION

    found: dict[str, str] = client.utils.build_hf_headers(library_name="llmcli", library_version=VERSION)
    return found


def _timeout(client: Any) -> float:
    """Seconds without a byte after which a transfer counts as broken: HF_HUB_DOWNLOAD_TIMEOUT, 10 by default."""
    return max(1.0, float(client.constants.HF_HUB_DOWNLOAD_TIMEOUT))


def _trust_bundle(client: Any, settings: Settings) -> None:
    """Take the CA certificates from where other tools are told to: the client knows only SSL_CERT_FILE and _DIR."""
    env = settings.environment
    name = next((n for n in _CA_VARIABLES if env.get(n)), None)
    if name is None or env.get("SSL_CERT_FILE") or env.get("SSL_CERT_DIR") or env[name] in _trusted:
        return
    where = {"capath" if os.path.isdir(env[name]) else "cafile": env[name]}
    try:
        context = ssl.create_default_context(**where)  # type: ignore[arg-type]
    except OSError as error:
        raise ModelError(
            f"cannot read the CA certificates at {printable(env[name])}: {error.strerror}", hint=f"correct {name}"
        ) from None
    made = client.get_session()
    options = {"event_hooks": made.event_hooks, "follow_redirects": True, "timeout": None}
    client.set_client_factory(lambda: type(made)(verify=context, **options))
    _trusted[:] = [env[name]]


_trusted: list[str] = []  # the bundle that the session was made with: once for all requests of a process


@contextlib.contextmanager
def _translated(wanted: HubFile, settings: Settings, *, fetching: bool) -> Iterator[None]:
    try:
        yield
    except transport_errors() as error:
        raise as_llmcli_error(
            error,
            wanted.repo_id,
            wanted.file,
            settings,
            has_token=has_token(),
            fetching=fetching,
            revision=None if wanted.file else wanted.revision,
        ) from None
