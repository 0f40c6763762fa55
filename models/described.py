"""From what the user typed to a description of that model: on this machine, else on the hub by its header alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from llmcli.base.errors import ModelError
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.models.default_model import BUILT_IN
from llmcli.models.description import Description, describe
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_header import GgufHeader, read_header
from llmcli.models.reference import HubReference, looks_like_path, parse_hub
from llmcli.models.resolve import resolve_here, without_aliases
from llmcli.models.shards import read_shards


@dataclass(frozen=True, slots=True)
class Described:
    """A description and what it is of.

    name      of the file, without ending and shard number
    path      on this machine; None for a model that is on the hub
    repo_id, commit, files   of a model on the hub; files by name
    """

    reference: str
    name: str
    path: Path | None
    repo_id: str | None
    commit: str | None
    files: tuple[str, ...]
    description: Description


def describe_reference(
    reference: str, settings: Settings, *, revision: str | None, notify: Callable[[str], None]
) -> Described:
    """Look here first, unless a revision asks for the hub's. Raises ModelError where it is in neither place."""
    from llmcli.models.catalogue import well_known

    meant = without_aliases(reference, settings)
    remote = None if looks_like_path(meant) else parse_hub(well_known(meant) or meant)
    if built_in := BUILT_IN.get(meant):
        remote = parse_hub(f"{built_in.repo_id}:{built_in.file}")
    if revision is None:
        try:
            return describe_here(reference, settings)
        except ModelError:
            if remote is None or settings.offline or _is_here(meant, settings):
                raise
    if remote is None:
        raise ModelError(f"{printable(reference)} names no repository of the hub", hint="write it as owner/repo:QUANT")
    return _describe_remote(reference, remote, revision or "main", settings, notify)


def _is_here(meant: str, settings: Settings) -> bool:
    """Whether the reference was found and is at fault: then its own error is the one to show."""
    try:
        resolve_here(meant, settings)
    except ModelError:
        return False
    return True


def describe_here(reference: str, settings: Settings) -> Described:
    """The description of a model on this machine. Raises ModelError."""
    found = resolve_here(reference, settings)
    headers = read_shards(read_header(found.path))
    files = tuple(str(header.path) for header in headers)
    return Described(reference, found.name, found.path, None, None, files, _describe(headers))


def _describe_remote(
    reference: str, hub_reference: HubReference, revision: str, settings: Settings, notify: Callable[[str], None]
) -> Described:
    from llmcli.models.hub import list_repository
    from llmcli.models.reference import model_name
    from llmcli.models.remote_header import remote_headers
    from llmcli.models.remote_models import RemoteModel, find, models_of, require_complete, table

    repository = list_repository(hub_reference.repo_id, revision, settings)
    if repository.refused:
        notify(f"{repository.repo_id} names files that lead elsewhere: {', '.join(repository.refused[:3])}")
    models = models_of(repository.files, hub_reference.repo)
    selector = hub_reference.selector
    fitting: Sequence[RemoteModel] = find(selector, repository.files, hub_reference.repo) if selector else models
    if len(fitting) != 1:
        if not models:
            raise ModelError(f"{printable(repository.repo_id)} has no GGUF model")
        shown = fitting or models
        problem = f"has no {printable(selector)}" if selector and not fitting else f"has {len(shown)} models"
        raise ModelError(
            f"{printable(repository.repo_id)} {problem}",
            hint="add :QUANT or :FILE, one of:\n" + table(shown, lambda _model: repository.n_params),
        )
    model = fitting[0]
    require_complete(model, repository.repo_id)
    headers = remote_headers(repository.repo_id, repository.commit, model.files, settings)
    name = model_name(model.name.rpartition("/")[2])
    files = tuple(file.name for file in model.files)
    return Described(reference, name, None, repository.repo_id, repository.commit, files, _describe(headers))


def _describe(headers: Sequence[GgufHeader]) -> Description:
    """With the facts of a model that can be run, or the reason why it cannot."""
    facts: ModelFacts | None = None
    problem: str | None = None
    from llmcli.models.check import check_headers

    try:
        facts = check_headers(headers, need_vocabulary=False)
    except ModelError as error:
        problem = error.message
    return describe(headers, facts, problem)
