"""Fetching one file from the Hugging Face hub into its cache. The only importer of huggingface_hub.

What the client (2.4) does not do is done here: a hub that cannot be reached is given up within 3 s (the client
retries a failed name look-up for 24 s and writes about it); the size and sha256 that the hub states are compared with
what is wanted before a byte is fetched; and the file is checked afterwards, because the client reports success for
wrong bytes and for a web page too. Nothing else is done to the cache.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import ssl
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llmcli.base.errors import ModelError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.models.hub_errors import as_llmcli_error, not_a_hub
from llmcli.models.place import require_free, verify
from llmcli.models.progress import Progress, ProgressFactory
from llmcli.models.reach import connect, within

# Time on the network until the hub is known to answer, in all: name look-up, connection, TLS, the first answer. With
# the client's import (about 0.5 s) this stays under the 3 s after which a hub counts as out of reach.
REACH_S = 2.4
MOVE_WITH = "HF_HOME"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
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
class _Stated:
    """What the hub says of a file before sending it; `location` is the host that would send it."""

    size_bytes: int | None
    sha256: str | None
    location: str


def download(
    wanted: HubFile, settings: Settings, *, progress: ProgressFactory, replace: bool = False, reach_s: float = REACH_S
) -> Path:
    """Fetch `wanted` into the cache, checked; its path in there. `replace` says that what is there has wrong bytes.

    Raises ModelError (out of reach within `reach_s`, refused, missing, other or wrong bytes; what was fetched wrong is
    gone again), ResourceError (no room), LlmcliError (the cache cannot be written).
    """
    if settings.offline:
        raise ModelError("the network is switched off", hint="unset HF_HUB_OFFLINE and LLMCLI_OFFLINE")
    _check_name(wanted)
    stated = _ask_hub(wanted, settings, reach_s)
    _compare(wanted, stated, settings)
    cache = settings.hub_cache_dir
    if stated.size_bytes is not None:
        require_free(cache, stated.size_bytes, move_with=MOVE_WITH)
    with progress(wanted.file, stated.size_bytes) as task, _errors_translated(wanted, settings, fetching=True):
        if replace:
            _drop_cached(wanted, settings)
        path = _fetch(wanted, settings, task)
    try:
        verify(path, size_bytes=stated.size_bytes, sha256=wanted.sha256 or stated.sha256)
    except ModelError:
        _remove(path, cache)
        raise
    return path


def _check_name(wanted: HubFile) -> None:
    """Refuse a file name from outside that leaves its folder: the client joins it to a path."""
    parts = wanted.file.split("/")
    if printable(wanted.file) != wanted.file or "\\" in wanted.file or {"", ".", ".."} & set(parts):
        raise ModelError(f"refused: {printable(wanted.repo_id)} names a file {printable(wanted.file)!r}")


def _ask_hub(wanted: HubFile, settings: Settings, reach_s: float) -> _Stated:
    """What the hub states of the file. Raises ModelError after `reach_s` seconds on the network."""
    ends_at = time.monotonic() + reach_s
    connect(settings.hub_endpoint, ends_at)
    began = time.monotonic()
    client = _client()
    _trust_bundle(client, settings)
    ends_at += time.monotonic() - began  # the import is not the network's fault

    def head() -> _Stated:
        url = client.hf_hub_url(wanted.repo_id, wanted.file, revision=wanted.revision, endpoint=settings.hub_endpoint)
        left_s = max(0.1, ends_at - time.monotonic())
        found = client.get_hf_file_metadata(url, timeout=left_s, endpoint=settings.hub_endpoint)
        if not found.commit_hash or not found.etag:
            raise not_a_hub(settings)
        via_xet = found.xet_file_data is not None
        location = settings.hub_endpoint if via_xet else found.location
        return _Stated(found.size, found.etag if _SHA256.match(found.etag) else None, location)

    with _errors_translated(wanted, settings, fetching=False):
        stated = within(ends_at, head)
    if urlsplit(stated.location).netloc != urlsplit(settings.hub_endpoint).netloc:
        connect(stated.location, ends_at)
    return stated


def _compare(wanted: HubFile, stated: _Stated, settings: Settings) -> None:
    """Raise ModelError where the hub holds another file under the name than the one that is wanted."""
    for what, ours, theirs in (
        ("bytes", wanted.size_bytes, stated.size_bytes),
        ("sha256", wanted.sha256, stated.sha256),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            raise ModelError(
                f"{settings.hub_endpoint} has another {wanted.file} in {wanted.repo_id}: "
                f"{what} {theirs}, expected {ours}"
            )


def _fetch(wanted: HubFile, settings: Settings, task: Progress) -> Path:
    client = _client()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about symlinks and disk space: the one is no news, the other was checked
        path = client.hf_hub_download(
            wanted.repo_id,
            wanted.file,
            revision=wanted.revision,
            cache_dir=settings.hub_cache_dir,
            endpoint=settings.hub_endpoint,
            tqdm_class=_bar_for(task),
        )
    return Path(path)


def _drop_cached(wanted: HubFile, settings: Settings) -> None:
    """Not left to the client's force_download: it keeps a name that is there, also where that is a file of its own."""
    options = {"cache_dir": settings.hub_cache_dir, "revision": wanted.revision}
    found = _client().try_to_load_from_cache(wanted.repo_id, wanted.file, **options)
    if isinstance(found, str):  # else None, or a mark for "known not to exist"
        _remove(Path(found), settings.hub_cache_dir)


def _bar_for(task: Progress) -> type[Any]:
    """A tqdm class that draws nothing and tells `task` the bytes done."""
    from tqdm.std import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        """Switched off, so that every method of tqdm works and none writes."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # The client's second transport shows two bars; only the one for bytes on the disk counts.
            self._counts = "downloading bytes" not in str(kwargs.get("desc"))
            self._done = int(kwargs.get("initial") or 0)
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            self._done += int(n or 0)
            if self._counts:
                task.update(self._done)
            return None

    return Bar


def _remove(path: Path, cache: Path) -> None:
    """Take a file that was fetched wrong out of the cache: first the name, then the bytes it points at."""
    blob = Path(os.path.realpath(path))
    with contextlib.suppress(OSError):
        path.unlink()
    if blob.is_relative_to(os.path.realpath(cache)):
        with contextlib.suppress(OSError):
            blob.unlink()


def _client() -> Any:
    """huggingface_hub, made silent: what goes wrong is reported once, as an error of ours."""
    import huggingface_hub

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL + 1)
    return huggingface_hub


def _trust_bundle(client: Any, settings: Settings) -> None:
    """Take the CA certificates from where other tools are told to: the client knows only SSL_CERT_FILE and _DIR."""
    env = settings.environment
    name = next((n for n in _CA_VARIABLES if env.get(n)), None)
    if name is None or env.get("SSL_CERT_FILE") or env.get("SSL_CERT_DIR"):
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


@contextlib.contextmanager
def _errors_translated(wanted: HubFile, settings: Settings, *, fetching: bool) -> Iterator[None]:
    from huggingface_hub import errors, get_token

    # HTTPError is the base of the HTTP library's errors, under whichever name the client uses that library.
    http_error: type[Exception] = errors.HTTPError  # type: ignore[attr-defined]
    try:
        yield
    except (http_error, OSError, ValueError, RuntimeError, ImportError) as error:
        has_token = get_token() is not None
        raise as_llmcli_error(
            error, wanted.repo_id, wanted.file, settings, has_token=has_token, fetching=fetching
        ) from None
