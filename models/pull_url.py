"""A model from a plain web address, into our own folder. Nothing states its bytes there, unless the user does.

What a half file is worth is decided by the server's validator (a strong ETag, else the date), which is kept beside it
and sent back with If-Range: a file that changed in between comes whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from llmcli.base.bounded_file import read_bounded
from llmcli.base.errors import LlmcliError, ModelError, UsageError
from llmcli.base.files import atomic_write, file_lock
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.models import hub
from llmcli.models.checksum import file_has
from llmcli.models.http_body import Body, content_range, read_span
from llmcli.models.hub_cache import PART_SUFFIX
from llmcli.models.hub_errors import RefusedError, TransientError, broke_off, in_trouble
from llmcli.models.hub_listing import is_safe_name
from llmcli.models.library import own_folder
from llmcli.models.place import as_disk_error, disk_errors
from llmcli.models.progress import ProgressFactory
from llmcli.models.reach import (
    causes,
    class_names,
    leads_nowhere,
    proxy_for,
    reason_of,
    unreachable,
    untrusted,
    without_credentials,
)
from llmcli.models.reference import SUFFIX, shard_of
from llmcli.models.shards import MAX_SHARDS
from llmcli.models.transfer import Wanted, fetch

MOVE_WITH = "LLMCLI_HOME"
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_MEMO_BYTES = 4096


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file at an address. The size is what the server says, None where it says nothing."""

    url: str
    name: str
    size_bytes: int | None


def is_address(text: str) -> bool:
    """Whether the text is a web address at all."""
    return text.lower().startswith(("https://", "http://"))


def require_well_formed(url: str) -> None:
    """Raise UsageError for an address that cannot even be taken apart."""
    try:
        parts = urlsplit(url)
        is_right = parts.port is None or parts.port > 0
    except ValueError:
        is_right = False
    if not is_right or not url.isprintable():
        raise UsageError(f"{without_credentials(printable(url))} is not an address", hint="https://HOST/PATH/NAME.gguf")


def addresses_of(url: str, *, trusted: bool) -> tuple[str, ...]:
    """The addresses of a model's files: of any part of a split model, those of all parts.

    trusted   the user states the digest, so that the way it comes does not matter
    Raises UsageError for an address that names no .gguf file, or would be fetched without any protection.
    """
    parts, name = urlsplit(url), _file_name(url)
    is_name = is_safe_name(name) and "/" not in name and not name.startswith(".")
    if not parts.hostname or not name.lower().endswith(SUFFIX) or not is_name:
        raise UsageError(f"{_shown(url)} is not the address of a .gguf file", hint="https://HOST/PATH/NAME.gguf")
    if parts.scheme.lower() == "http" and parts.hostname not in _LOOPBACK and not trusted:
        raise UsageError(
            f"{_shown(url)} is plain http: anybody on the way could change the file", hint="use https, or --sha256"
        )
    shard = shard_of(name)
    if shard is None or not 0 < shard.number <= shard.count <= MAX_SHARDS:
        return (url,)
    folder = parts.path.rpartition("/")[0]
    number = f"-{shard.number:05d}-of-"
    raw = parts.path.rpartition("/")[2]
    if number not in raw:
        return (url,)
    names = (raw.replace(number, f"-{n:05d}-of-") for n in range(1, shard.count + 1))
    return tuple(parts._replace(path=f"{folder}/{one}").geturl() for one in names)


def look(url: str, settings: Settings) -> WebFile:
    """What the server says of the file. Raises ModelError: out of reach, refused, missing."""
    name = _file_name(url)
    if settings.offline:
        raise ModelError("the network is switched off", hint="unset HF_HUB_OFFLINE and LLMCLI_OFFLINE")
    with _opened(url, name, settings, {"Range": "bytes=0-0"}) as body:
        span = content_range(body.headers) if body.status == 206 else None
        return WebFile(url, name, span[1] if span else body.length)


def read_range(file: WebFile, settings: Settings, start: int, count: int) -> bytes:
    """Up to `count` bytes of the file from `start` on. Raises ModelError."""
    with _opened(file.url, file.name, settings, {"Range": f"bytes={start}-{start + count - 1}"}) as body:
        return read_span(body, start, count)


def target_of(file: WebFile, settings: Settings) -> Path:
    """Where the file will be."""
    return own_folder(settings) / file.name


def part_of(target: Path) -> Path:
    """Where its half is kept."""
    return target.with_name(target.name + PART_SUFFIX)


def fetch_web_file(
    file: WebFile,
    sha256: str | None,
    settings: Settings,
    *,
    progress: ProgressFactory,
    notify: Callable[[str], None],
    stop: threading.Event | None = None,
) -> bool:
    """Put the file at its place; False where it is there already. Raises what `fetch` raises."""
    target = target_of(file, settings)
    part, memo = part_of(target), _Memo(target.with_name(f".{target.name}{PART_SUFFIX}.json"), file.url)
    wanted = Wanted(file.name, file.size_bytes, sha256, MOVE_WITH)

    def opener(offset: int) -> contextlib.AbstractContextManager[Body]:
        return _continued(file, memo, settings, offset, trusted=sha256 is not None)

    lock = target.parent / ".locks" / f"{target.name}.lock"
    with disk_errors(target.parent, move_with=MOVE_WITH):
        lock.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another llmcli that fetches {printable(file.name)}"
        with file_lock(lock, on_wait=lambda: notify(waiting)):
            if target.exists():
                _require_same(target, file, sha256)
                return False
            with progress(file.name, file.size_bytes) as task:
                fetch(wanted, part, opener, task=task, notify=notify, stop=stop)
            part.replace(target)
            memo.forget()
    return True


def _require_same(target: Path, file: WebFile, sha256: str | None) -> None:
    """What has the name already must be the same file, as far as can be told."""
    if sha256 is not None and file_has(target, sha256, None):
        return
    if sha256 is None and target.stat().st_size == file.size_bytes:
        return
    raise LlmcliError(
        f"{printable(str(target))} is there already, and is another file", hint="rename or remove it, then pull again"
    )


class _Memo:
    """What the server said of the half file: kept beside it, and never the address itself, which may hold a secret."""

    def __init__(self, path: Path, url: str) -> None:
        self._path, self._url = path, hashlib.sha256(url.encode()).hexdigest()

    def validator(self) -> str | None:
        """The validator that the half file came with, None where there is none for this address."""
        try:
            data = json.loads(read_bounded(self._path, _MEMO_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        found = data.get("validator") if isinstance(data, dict) and data.get("url_sha256") == self._url else None
        return found if isinstance(found, str) and found.isprintable() and found.isascii() else None

    def note(self, headers: Mapping[str, str]) -> None:
        """Keep the validator of an answer that begins at the first byte."""
        etag = headers.get("etag", "").strip()
        found = etag if etag.startswith('"') else headers.get("last-modified", "").strip()
        self.forget()
        if found:
            atomic_write(self._path, json.dumps({"url_sha256": self._url, "validator": found}).encode())

    def forget(self) -> None:
        """There is no half file any more."""
        self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def _continued(file: WebFile, memo: _Memo, settings: Settings, offset: int, *, trusted: bool) -> Iterator[Body]:
    headers: dict[str, str] = {}
    validator = memo.validator() if offset else None
    if offset and (validator or trusted):
        headers["Range"] = f"bytes={offset}-"
    if validator:
        headers["If-Range"] = validator
    with _opened(file.url, file.name, settings, headers) as body:
        etag = body.headers.get("etag", "").strip()
        if body.status == 206 and validator and validator.startswith('"') and etag not in {"", validator}:
            memo.forget()  # the next try asks for the whole file
            raise broke_off(file.name, "it changed on the server meanwhile")
        if body.status == 200:
            memo.note(body.headers)
        yield body


@contextlib.contextmanager
def _opened(url: str, name: str, settings: Settings, headers: Mapping[str, str]) -> Iterator[Body]:
    from llmcli.base.version import VERSION

    sent = {"User-Agent": f"llmcli/{VERSION}", **headers}
    try:
        with hub.open_url(url, settings, headers=sent) as (_, body):
            if body.status not in {200, 206, 416}:
                raise _refusal(body, name)
            yield body
    except hub.transport_errors() as error:
        raise _transport_error(url, name, error) from None


def _transport_error(url: str, name: str, error: Exception) -> Exception:
    if isinstance(error, OSError) and as_disk_error(error, Path(), move_with=MOVE_WITH) and error.filename:
        return error  # of the disk, while the body was being written
    host = urlsplit(url).hostname or ""
    proxy, names = proxy_for(urlsplit(url).scheme, host), class_names(error)
    if any(leads_nowhere(link, proxy) for link in causes(error)):
        return RefusedError(f"{printable(host)} leads on from {printable(name)} to nowhere: {reason_of(error)}")
    if untrusted(error) or names & {"ConnectError", "ConnectTimeout", "ProxyError", "gaierror"}:
        return unreachable(host, proxy, error)
    return broke_off(name, reason_of(error))


def _refusal(body: Body, name: str) -> ModelError:
    host, what = printable(body.host), printable(name)
    if trouble := in_trouble(body.status, host, what, body.headers):
        return (
            trouble
            if body.status != 429
            else TransientError(
                trouble.message, hint=(trouble.hint or "").replace(", or set HF_TOKEN", ""), wait_s=trouble.wait_s
            )
        )
    if body.status in {401, 403, 407}:
        return ModelError(f"{host} refuses {what}: {body.status}", hint="it may need a login, or a newer address")
    if body.status in {404, 410}:
        return ModelError(f"{host} has no {what}: {body.status}", hint="check the address")
    return ModelError(f"{host} answers {body.status} for {what}", hint="check the address")


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _shown(url: str) -> str:
    """An address without user, password and query, any of which may be a secret."""
    parts: Any = urlsplit(url)
    return printable(f"{parts.scheme}://{parts.hostname or ''}{parts.path}")
