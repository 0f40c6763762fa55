"""Pulling a model: from what the user typed to a plan, and from the plan to checked files that every command finds.

The parts of a split model come side by side; all of them are known to exist before the first byte is fetched. What
was fetched is remembered by its digest, so that the first run does not have to hash it again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from llmcli.base.errors import LlmcliError, ModelError, UsageError
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.models import default_model, hub_cache, hub_fetch, pull_url
from llmcli.models.catalogue import CATALOGUE, well_known
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_header import read_header_from
from llmcli.models.hub_listing import RemoteFile
from llmcli.models.identity import remember_digests
from llmcli.models.library import own_folder
from llmcli.models.place import require_free
from llmcli.models.progress import ProgressFactory
from llmcli.models.pull_plan import (
    Chooser,
    PlannedFile,
    PullPlan,
    State,
    facts_or_problem,
    plan_from_hub,
    problem_of,
)
from llmcli.models.pull_url import WebFile
from llmcli.models.reference import HubReference, parse_hub, quant_of
from llmcli.models.remote_header import RemoteSource
from llmcli.models.resolve import without_aliases
from llmcli.models.side_by_side import side_by_side

SHA256_DIGITS = 64
_HUB_HOSTS = ("huggingface.co", "hf.co")


@dataclass(frozen=True, slots=True)
class PullOptions:
    """What holds for every reference of one call. None: not given."""

    revision: str | None = None
    quant: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is here now. `received`: the names of the files that were fetched, the others were here already."""

    path: Path
    received: tuple[str, ...]


def make_plan(
    asked: str, options: PullOptions, settings: Settings, *, choose: Chooser, notify: Callable[[str], None]
) -> PullPlan:
    """The plan for one reference: a path of the hub, an address, an alias or a short name.

    Raises UsageError (no such form, options that do not go with it), ModelError (not to be had).
    """
    meant = without_aliases(asked, settings)
    if built_in := default_model.BUILT_IN.get(meant):
        return _plan_built_in(asked, built_in, options, settings)
    meant = well_known(meant) or meant
    if pull_url.is_address(meant):
        pull_url.require_well_formed(meant)
    hub = _on_the_hub(meant, settings)
    if hub is None and pull_url.is_address(meant):
        return _plan_from_web(asked, meant, options, settings)
    reference = hub[0] if hub else parse_hub(meant)
    if reference is None:
        raise _no_reference(asked, settings)
    if options.sha256:
        raise UsageError("--sha256 is for plain addresses: the hub states the digest of every file")
    revision = options.revision or (hub[1] if hub else None) or "main"
    return plan_from_hub(asked, _with_quant(reference, options.quant), revision, settings, choose=choose, notify=notify)


def carry_out(
    plan: PullPlan, settings: Settings, *, progress: ProgressFactory, notify: Callable[[str], None]
) -> Pulled:
    """Fetch what is missing of the plan's files. Raises what its parts raise; what came so far is kept."""
    if plan.source in default_model.BUILT_IN:
        model = default_model.BUILT_IN[plan.source]
        was_here = plan.missing_bytes == 0
        path = default_model.ensure(model, settings, notify=notify, progress=progress)
        return Pulled(path, () if was_here else (model.file,))
    stop = threading.Event()
    received = side_by_side(partial(_fetch_one, plan, settings, progress, notify, stop), plan.files, stop=stop)
    if plan.repo_id and plan.commit and plan.revision:
        cache = settings.hub_cache_dir
        hub_cache.write_ref(cache, plan.repo_id, plan.revision, plan.commit)
        hub_cache.remove_outdated_parts(cache, plan.repo_id, plan.digests)
    digests = [file.digest for file in plan.files if file.digest and len(file.digest) == SHA256_DIGITS]
    if len(digests) == len(plan.files):
        remember_digests(plan.files[0].path, settings, digests)
    return Pulled(plan.files[0].path, tuple(f.name for f, new in zip(plan.files, received, strict=True) if new))


def require_room(plans: Sequence[PullPlan]) -> None:
    """Raise ResourceError where a disk has less room than what all plans together still fetch to it."""
    needed: dict[tuple[Path, str], int] = {}
    for plan in plans:
        key = (plan.folder, plan.move_with)
        needed[key] = needed.get(key, 0) + plan.missing_bytes
    for (folder, move_with), count in needed.items():
        if count:
            require_free(folder, count, move_with=move_with)


def _fetch_one(
    plan: PullPlan,
    settings: Settings,
    progress: ProgressFactory,
    notify: Callable[[str], None],
    stop: threading.Event,
    file: PlannedFile,
) -> bool:
    if plan.repo_id and plan.commit:
        remote = RemoteFile(file.name, file.size_bytes or 0, file.digest)
        return hub_fetch.fetch_file(
            plan.repo_id, plan.commit, remote, settings, progress=progress, notify=notify, stop=stop
        ).received
    web = WebFile(file.url or "", file.name, file.size_bytes)
    return pull_url.fetch_web_file(web, file.digest, settings, progress=progress, notify=notify, stop=stop)


def _with_quant(reference: HubReference, quant: str | None) -> HubReference:
    if quant is None or reference.selector is None:
        return replace(reference, selector=quant or reference.selector)
    if quant.casefold() != reference.selector.casefold():
        raise UsageError(f"{reference.repo_id}:{printable(reference.selector)} and --quant {quant} are two wishes")
    return reference


def _on_the_hub(text: str, settings: Settings) -> tuple[HubReference, str | None] | None:
    """A page or file of the hub, by its address: (reference, revision). None for any other text."""
    own = settings.hub_endpoint.partition("://")[2].partition("/")[0]
    hosts = {own, *_HUB_HOSTS, *(f"www.{host}" for host in _HUB_HOSTS)}
    rest = text.partition("://")[2] if pull_url.is_address(text) else text
    host, _, path = rest.partition("/")
    if host.casefold() not in hosts:
        return None
    words = path.partition("#")[0].partition("?")[0].strip("/").split("/")
    if len(words) > 4 and words[2] in {"resolve", "blob", "raw"}:
        found = parse_hub("/".join(words[:2]))
        return (replace(found, selector=unquote("/".join(words[4:]))), unquote(words[3])) if found else None
    if len(words) == 2 or (len(words) > 3 and words[2] == "tree"):
        found = parse_hub("/".join(words[:2]))
        return (found, unquote(words[3]) if len(words) > 3 else None) if found else None
    return None


def _plan_built_in(asked: str, model: default_model.DefaultModel, options: PullOptions, settings: Settings) -> PullPlan:
    for flag, value in (("--revision", options.revision), ("--quant", options.quant), ("--sha256", options.sha256)):
        if value is not None:
            raise UsageError(f"{flag} does not go with {model.name}: that is one file", hint=model.repo_id)
    path = default_model.find(model, settings)
    state: State = "here" if path else "new"
    own = own_folder(settings)
    folder = own if path and path.parent == own else settings.hub_cache_dir
    target = path or settings.hub_cache_dir
    file = PlannedFile(model.file, model.size_bytes, model.sha256, target, state, model.size_bytes if path else 0)
    return PullPlan(
        reference=asked,
        source=model.name,
        repo_id=model.repo_id,
        revision=model.revision,
        commit=model.revision,
        quant=quant_of(model.file),
        files=(file,),
        digests=(),
        folder=folder,
        move_with=hub_fetch.MOVE_WITH,
        facts=model.facts,
        problem=None,
        reason=None,
    )


def _plan_from_web(asked: str, url: str, options: PullOptions, settings: Settings) -> PullPlan:
    for flag, value in (("--revision", options.revision), ("--quant", options.quant)):
        if value is not None:
            raise UsageError(f"{flag} is for repositories of the hub, not for a plain address")
    urls = pull_url.addresses_of(url, trusted=options.sha256 is not None)
    if options.sha256 and len(urls) > 1:
        raise UsageError("--sha256 is the digest of one file, and this model has several parts")
    found = [pull_url.look(one, settings) for one in urls]
    facts, problem = _facts_from_web(found, settings)
    return PullPlan(
        reference=asked,
        source=printable(urlsplit(url).hostname or ""),
        repo_id=None,
        revision=None,
        commit=None,
        quant=quant_of(found[0].name),
        files=tuple(_planned(file, options.sha256, settings) for file in found),
        digests=(),
        folder=pull_url.target_of(found[0], settings).parent,
        move_with=pull_url.MOVE_WITH,
        facts=facts,
        problem=problem,
        reason=None,
    )


def _facts_from_web(files: Sequence[WebFile], settings: Settings) -> tuple[ModelFacts | None, str | None]:
    """The facts of the model, or why there are none; a server that does not tell sizes leaves both open."""
    sized = [(file, file.size_bytes) for file in files if file.size_bytes]
    if len(sized) < len(files):
        return None, None
    try:
        return facts_or_problem(
            [
                read_header_from(RemoteSource(file.name, size, partial(pull_url.read_range, file, settings)))
                for file, size in sized
            ]
        )
    except ModelError as error:
        return None, problem_of(error)


def _planned(file: WebFile, sha256: str | None, settings: Settings) -> PlannedFile:
    target = pull_url.target_of(file, settings)
    state: State = "here" if target.is_file() else "half" if pull_url.part_of(target).is_file() else "new"
    have = 0
    with contextlib.suppress(FileNotFoundError):
        have = (target if state == "here" else pull_url.part_of(target)).stat().st_size
    size = file.size_bytes
    return PlannedFile(file.name, size, sha256, target, state, min(have, size) if size is not None else have, file.url)


def _no_reference(asked: str, settings: Settings) -> LlmcliError:
    import difflib

    if not asked.strip():
        return ModelError("the name of the model is empty", hint="owner/repo, owner/repo:QUANT, or a short name")
    known = [*default_model.BUILT_IN, *CATALOGUE, *settings.aliases]
    near = difflib.get_close_matches(asked.casefold(), known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "owner/repo, owner/repo:QUANT, an address, or a short name"
    return ModelError(f"{printable(asked)} is no short name and no repository", hint=hint)
