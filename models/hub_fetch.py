"""One file of the hub into the Hugging Face cache: once for however many processes ask, and only the right bytes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from llmcli.base.errors import ModelError
from llmcli.base.files import file_lock
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.models import hub, hub_cache
from llmcli.models.checksum import file_has
from llmcli.models.http_body import Body
from llmcli.models.hub import HubFile
from llmcli.models.hub_cache import Slot
from llmcli.models.hub_listing import RemoteFile, is_digest
from llmcli.models.identity import known_content_id
from llmcli.models.place import disk_errors, require_free
from llmcli.models.progress import ProgressFactory
from llmcli.models.reach import without_credentials
from llmcli.models.transfer import Wanted, fetch

MOVE_WITH = "HF_HOME"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file in the cache. `received` is False where it was there already, whoever had put it there."""

    path: Path
    received: bool


def download(
    wanted: HubFile,
    settings: Settings,
    *,
    progress: ProgressFactory,
    notify: Callable[[str], None] = lambda _: None,
    reach_s: float = hub.REACH_S,
) -> Path:
    """Fetch a file whose bytes are known beforehand into the cache; its path in there.

    Raises ModelError (out of reach within `reach_s`, refused, missing, other or wrong bytes), ResourceError (no
    room), LlmcliError (the cache cannot be written).
    """
    stated = hub.ask(wanted, settings, reach_s=reach_s)
    _compare(wanted, stated, settings)
    if stated.size_bytes is None or stated.digest is None:
        raise no_checksum(wanted.repo_id, wanted.file)
    cache = settings.hub_cache_dir
    file = RemoteFile(wanted.file, stated.size_bytes, stated.digest)
    slot = hub_cache.slot_of(cache, wanted.repo_id, stated.commit, file.name, stated.digest)
    if slot.present is None:
        require_free(cache, file.size_bytes - slot.half_bytes, move_with=MOVE_WITH)
    fetched = fetch_file(wanted.repo_id, stated.commit, file, settings, progress=progress, notify=notify)
    hub_cache.write_ref(cache, wanted.repo_id, wanted.revision, stated.commit)
    return fetched.path


def fetch_file(
    repo_id: str,
    commit: str,
    file: RemoteFile,
    settings: Settings,
    *,
    progress: ProgressFactory,
    notify: Callable[[str], None],
    stop: threading.Event | None = None,
) -> Fetched:
    """Put the file into its slot, unless its right bytes are there. Raises what `fetch` raises."""
    hub.check_name(repo_id, file.name)
    if file.digest is None:
        raise no_checksum(repo_id, file.name)
    slot = hub_cache.slot_of(settings.hub_cache_dir, repo_id, commit, file.name, file.digest)
    wanted = Wanted(file.name, file.size_bytes, file.digest, MOVE_WITH)
    source = HubFile(repo_id, file.name, commit)

    def opener(offset: int) -> contextlib.AbstractContextManager[Body]:
        return _checked_body(source, file, settings, offset)

    with disk_errors(settings.hub_cache_dir, move_with=MOVE_WITH):
        if hub_cache.is_linked(slot) and _has_right_bytes(slot.blob, file, settings):
            return Fetched(slot.pointer, received=False)  # nothing to write, also where nothing can be written
        hub_cache.make_folders(slot)
        waiting = f"waiting for another process that fetches {printable(file.name)}"
        with file_lock(slot.lock, on_wait=lambda: notify(waiting)):
            if _is_here(slot, file, settings, notify):
                return Fetched(slot.pointer, received=False)
            with progress(file.name, file.size_bytes) as task:
                fetch(wanted, slot.part, opener, task=task, notify=notify, stop=stop)
            hub_cache.place(slot)
    return Fetched(slot.pointer, received=True)


def no_checksum(repo_id: str, file: str) -> ModelError:
    """For a file that could not be checked."""
    return ModelError(f"the hub states no checksum for {printable(file)} of {printable(repo_id)}: refused")


def _is_here(slot: Slot, file: RemoteFile, settings: Settings, notify: Callable[[str], None]) -> bool:
    """True with the link in place where the bytes are there; wrong ones (another tool's, unchecked) are taken out.

    They are hashed, unless it is remembered what they are and nothing touched the file since.
    """
    found = slot.present
    if found is None:
        return False
    if _has_right_bytes(found, file, settings):
        hub_cache.link(slot)
        return True
    notify(f"{file.name} in the cache has wrong bytes: fetching it again")
    hub_cache.drop(slot)
    return False


def _has_right_bytes(path: Path, file: RemoteFile, settings: Settings) -> bool:
    return known_content_id(path, settings) == file.digest or file_has(path, file.digest, file.size_bytes)


@contextlib.contextmanager
def _checked_body(source: HubFile, file: RemoteFile, settings: Settings, offset: int) -> Iterator[Body]:
    with hub.open_file(source, settings, offset=offset) as body:
        etag = body.headers.get("etag", "").removeprefix("W/").strip('"')
        # A storage host behind the hub has ETags of its own kind; one of the hub's kind must be this file's.
        if is_digest(etag) and len(etag) == len(file.digest or "") and etag != file.digest and body.status != 416:
            raise ModelError(
                f"{printable(file.name)} changed on the hub meanwhile: {etag}, expected {file.digest}", hint="try again"
            )
        yield body


def _compare(wanted: HubFile, stated: hub.Stated, settings: Settings) -> None:
    """Raise ModelError where the hub holds another file under the name than the one that is wanted."""
    for what, ours, theirs in (
        ("bytes", wanted.size_bytes, stated.size_bytes),
        ("sha256", wanted.sha256, stated.digest),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            raise ModelError(
                f"{without_credentials(settings.hub_endpoint)} has another {wanted.file} in {wanted.repo_id}: "
                f"{what} {theirs}, expected {ours}"
            )
