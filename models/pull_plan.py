"""What a pull will do, worked out before the first byte of a model is fetched: which files, from where, to where.

The plan is a value; `pull` carries it out. Which of several quantizations is best is not known here: that takes the
machine's memory, so the caller brings a chooser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from llmcli.base.errors import ModelError
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.models import hub, hub_cache
from llmcli.models.check import check_headers
from llmcli.models.facts import ModelFacts
from llmcli.models.gguf_header import GgufHeader
from llmcli.models.hub_errors import RefusedError, TransientError
from llmcli.models.hub_fetch import MOVE_WITH, no_checksum
from llmcli.models.hub_listing import Repository
from llmcli.models.kind import check_companion
from llmcli.models.reference import SUFFIX, HubReference
from llmcli.models.remote_header import remote_headers
from llmcli.models.remote_models import RemoteModel, find, models_of, require_complete, table

# The time a pull gives the hub to answer: more than a run that can do without it.
REACH_S = 15.0

State = Literal["here", "half", "new"]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of a plan.

    digest   what its bytes are held against, None where nothing states it
    url      its address, where it does not come from the hub
    """

    name: str
    size_bytes: int | None
    digest: str | None
    path: Path
    state: State
    have_bytes: int
    url: str | None = None

    @property
    def missing_bytes(self) -> int:
        """What is still to be fetched, as far as that is known."""
        return max(0, (self.size_bytes or 0) - self.have_bytes)


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What to fetch for one reference.

    source     where it comes from, for people: `owner/repo` or a host
    repo_id, commit, revision   of a hub's file; None for a plain address
    digests    what the repository holds now; half files of anything else are removed when this model is whole
    folder, move_with   the disk that must have room, and the setting that moves it
    facts      from the model's header on the server; None where it could not be had, and `problem` says why
    reason     why this quantization, where nobody named one
    """

    reference: str
    source: str
    repo_id: str | None
    revision: str | None
    commit: str | None
    quant: str | None
    files: tuple[PlannedFile, ...]
    digests: tuple[str, ...]
    folder: Path
    move_with: str
    facts: ModelFacts | None
    problem: str | None
    reason: str | None

    @property
    def size_bytes(self) -> int:
        """Of all files, as far as it is known."""
        return sum(file.size_bytes or 0 for file in self.files)

    @property
    def missing_bytes(self) -> int:
        """What is still to be fetched."""
        return sum(file.missing_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Quantizations of one model, smallest first, and the facts of one of them (None: not to be had)."""

    repo_id: str
    models: tuple[RemoteModel, ...]
    facts: ModelFacts | None
    table: str


# The model to take, and why.
Chooser: TypeAlias = Callable[[Candidates], tuple[RemoteModel, str]]


def plan_from_hub(
    asked: str,
    reference: HubReference,
    revision: str,
    settings: Settings,
    *,
    choose: Chooser,
    notify: Callable[[str], None],
) -> PullPlan:
    """The plan for a model of the hub. Raises ModelError: not to be had, no such quantization, several that fit."""
    repository = hub.list_repository(reference.repo_id, revision, settings, reach_s=REACH_S)
    if repository.refused:
        names = ", ".join(repository.refused[:3])
        notify(f"{repository.repo_id} names files that lead elsewhere, which are left alone: {names}")
    models = models_of(repository.files, reference.repo)
    reason: str | None = None
    if reference.selector:
        model = _selected(reference.selector, repository, models, reference.repo, settings)
    elif len(models) == 1:
        model = models[0]
    else:
        model, reason = _chosen(repository, models, settings, choose)
    require_complete(model, repository.repo_id)
    by_file_name = (reference.selector or "").lower().endswith(SUFFIX)
    facts, problem = _facts(repository, model, settings, companions=by_file_name)
    return _plan(asked, repository, revision, model, settings, facts, problem, reason)


def _selected(
    selector: str, repository: Repository, models: Sequence[RemoteModel], repo: str, settings: Settings
) -> RemoteModel:
    found = find(selector, repository.files, repo)
    if len(found) == 1:
        return found[0]
    _require_models(repository, models)
    if found:
        problem, shown = f"{printable(selector)} fits {len(found)} models of {repository.repo_id}", found
    else:
        problem, shown = f"{repository.repo_id} has no {printable(selector)}", list(models)
    raise ModelError(problem, hint="add :QUANT or :FILE, one of:\n" + _table(repository, shown, settings))


def _chosen(
    repository: Repository, models: Sequence[RemoteModel], settings: Settings, choose: Chooser
) -> tuple[RemoteModel, str]:
    _require_models(repository, models)
    shown = _table(repository, models, settings)
    if len({model.base for model in models}) > 1:
        raise ModelError(
            f"{repository.repo_id} holds {len(models)} models", hint=f"add :QUANT or :FILE, one of:\n{shown}"
        )
    whole = tuple(model for model in models if not model.missing)
    if not whole:
        require_complete(models[0], repository.repo_id)
    facts, _ = _facts(repository, min(whole, key=lambda m: (len(m.files), m.size_bytes)), settings)
    return choose(Candidates(repository.repo_id, whole, facts, shown))


def _require_models(repository: Repository, models: Sequence[RemoteModel]) -> None:
    if models:
        return
    if repository.refused:
        raise ModelError(f"refused: {repository.repo_id} names a file {repository.refused[0]!r}")
    others = any(file.name.endswith(".safetensors") for file in repository.files)
    hint = "it holds the original weights; look for a repository with GGUF files, often NAME-GGUF" if others else None
    raise ModelError(f"{repository.repo_id} holds no GGUF model", hint=hint)


def _table(repository: Repository, models: Sequence[RemoteModel], settings: Settings) -> str:
    """The models with their bits per weight: the weights are counted in one header for each that differs in name."""
    known: dict[str, int | None] = {}
    if len({model.base for model in models}) == 1 and repository.n_params:
        known[models[0].base] = repository.n_params

    def n_params(model: RemoteModel) -> int | None:
        if model.base not in known:
            known[model.base] = _counted(repository, model, settings) if len(known) < 4 else None
        return known[model.base]

    return table(models, n_params)


def _counted(repository: Repository, model: RemoteModel, settings: Settings) -> int | None:
    try:
        headers = remote_headers(repository.repo_id, repository.commit, model.files, settings)
    except ModelError:
        return None
    return sum(tensor.elements for header in headers for tensor in header.tensors) or None


def _facts(
    repository: Repository, model: RemoteModel, settings: Settings, *, companions: bool = False
) -> tuple[ModelFacts | None, str | None]:
    """The facts, or why there are none: a file that cannot be run here is fetched all the same, after a word.

    companions   a projector and the like is wanted too. Else its header gives it away, whatever its name says
    Raises NotAModelError for one that is not, RefusedError where the hub lists the file and will not send it.
    """
    try:
        headers = remote_headers(repository.repo_id, repository.commit, model.files, settings)
    except RefusedError:
        raise
    except ModelError as error:
        return None, problem_of(error)
    if not companions:
        check_companion(headers[0])
    return facts_or_problem(headers)


def facts_or_problem(headers: Sequence[GgufHeader]) -> tuple[ModelFacts | None, str | None]:
    """The facts of a model, or why it would not run here."""
    try:
        return check_headers(headers, need_vocabulary=False), None
    except ModelError as error:
        return None, problem_of(error)


def problem_of(error: ModelError) -> str:
    """What is wrong with a model that can be fetched, as far as its header tells."""
    if isinstance(error, TransientError):
        return f"its header could not be read: {error.message}"
    return f"it would not run here: {error.message}"


def _plan(
    asked: str,
    repository: Repository,
    revision: str,
    model: RemoteModel,
    settings: Settings,
    facts: ModelFacts | None,
    problem: str | None,
    reason: str | None,
) -> PullPlan:
    files = []
    for file in model.files:
        if file.digest is None:
            raise no_checksum(repository.repo_id, file.name)
        if not file.size_bytes:
            raise ModelError(f"{printable(file.name)} of {repository.repo_id} is an empty file")
        slot = hub_cache.slot_of(settings.hub_cache_dir, repository.repo_id, repository.commit, file.name, file.digest)
        here = slot.present is not None
        have = file.size_bytes if here else min(slot.half_bytes, file.size_bytes)
        state: State = "here" if here else "half" if have else "new"
        files.append(PlannedFile(file.name, file.size_bytes, file.digest, slot.pointer, state, have))
    return PullPlan(
        reference=asked,
        source=repository.repo_id,
        repo_id=repository.repo_id,
        revision=revision,
        commit=repository.commit,
        quant=model.quant,
        files=tuple(files),
        digests=tuple(file.digest for file in repository.files if file.digest),
        folder=settings.hub_cache_dir,
        move_with=MOVE_WITH,
        facts=facts,
        problem=problem,
        reason=reason,
    )
