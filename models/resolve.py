"""From what the user typed to one model file on this machine.

Only the default model is ever fetched; a model that the user names has to be here. What the file is worth is for
`check` to say: here only names, sizes and the first bytes are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from llmcli.base.errors import ModelError, UsageError
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes
from llmcli.models import default_model, library
from llmcli.models.catalogue import CATALOGUE, well_known
from llmcli.models.library import LocalModel, ModelFile
from llmcli.models.progress import ProgressFactory
from llmcli.models.reference import (
    SUFFIX,
    HubReference,
    is_half_name,
    looks_like_path,
    model_name,
    parse_hub,
    select,
    shard_of,
)

_MAX_ALIASES = 8
_TABLE_ROWS = 12


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model to run. `path` is its file, of a split model the first shard; `reference` is what was asked for."""

    path: Path
    name: str
    reference: str


def resolve(
    reference: str | None,
    settings: Settings,
    *,
    notify: Callable[[str], None],
    progress: ProgressFactory | None = None,
) -> ResolvedModel:
    """The model that `reference` means; None: LLMCLI_MODEL or the config, the only model here, else the default.

    In this order: a path that exists, an alias, `owner/repo[:QUANT|:FILE]` in the Hugging Face cache, the name of a
    model in the library. A bare word is an alias before it is a file: `./word` is always the file.
    Raises ModelError with what there is instead.
    """
    asked = _configured(settings) if reference is None else reference
    if asked is None:
        return _unnamed(settings, notify, progress)
    meant = without_aliases(asked, settings)
    if built_in := default_model.BUILT_IN.get(meant):
        path = default_model.ensure(built_in, settings, notify=notify, progress=progress)
    else:
        path = _find(meant, settings)
    return ResolvedModel(path, model_name(path.name), asked)


def resolve_here(reference: str, settings: Settings) -> ResolvedModel:
    """The same for a model that the user named, and nothing is ever fetched, not even the default model."""
    meant = without_aliases(reference, settings)
    if built_in := default_model.BUILT_IN.get(meant):
        path = default_model.find(built_in, settings)
        if path is None:
            raise ModelError(
                f"{built_in.title} is not here yet", hint=f"llmcli pull {built_in.name}, or the first llmcli run"
            )
    else:
        path = _find(meant, settings)
    return ResolvedModel(path, model_name(path.name), reference)


def _configured(settings: Settings) -> str | None:
    value = settings.flag_default("model")
    if value is not None and not isinstance(value, str):
        raise UsageError(f"model in {settings.config_file} must be a text", hint='for example: model = "smollm2"')
    return value or None


def _unnamed(settings: Settings, notify: Callable[[str], None], progress: ProgressFactory | None) -> ResolvedModel:
    default, here = default_model.SMOLLM2, library.list_models(settings)
    # A file of the default's name goes the default's way, which checks its bytes.
    if len(here) == 1 and here[0].path.name != default.file:
        return ResolvedModel(here[0].path, here[0].name, here[0].reference)
    path = default_model.ensure(default, settings, notify=notify, progress=progress)
    return ResolvedModel(path, model_name(path.name), default.name)


def without_aliases(reference: str, settings: Settings) -> str:
    """What the user's alias stands for; any other text as it is. Raises UsageError for a circle of aliases."""
    for _ in range(_MAX_ALIASES):
        if reference not in settings.aliases:
            return reference
        reference = settings.aliases[reference]
    raise UsageError(
        f"the alias {printable(reference)!r} leads back to itself", hint=f"correct [alias] in {settings.config_file}"
    )


def _find(reference: str, settings: Settings) -> Path:
    path = _as_path(reference)
    if os.path.isdir(path):
        return _in_folder(path)
    if os.path.lexists(path):
        return _from_file(path)
    hub = parse_hub(reference)
    if hub and (repo := library.cached_repo(settings, hub.repo_id)):
        return _in_repo(hub, repo)
    if looks_like_path(reference):
        raise _no_such_file(reference, path, settings)
    if hub:
        raise _not_cached(hub, settings)
    return _by_name(reference, settings)


def _as_path(text: str) -> Path:
    if not text.strip():
        # Which as a path would be the current folder: what a shell makes of a variable that is not set.
        raise ModelError("the name of the model is empty", hint="llmcli ls shows what there is")
    try:
        return Path(os.path.abspath(os.path.expanduser(text)))
    except ValueError:  # a NUL in it
        raise ModelError(f"no such file: {printable(text)}") from None


def _from_file(path: Path) -> Path:
    shown = printable(str(path))
    if not os.path.exists(path):
        raise ModelError(f"{shown} is a link to a file that is gone", hint="pull the model again")
    if not os.path.isfile(path):
        raise ModelError(f"{shown} is not a regular file")
    if is_half_name(path.name):
        raise ModelError(f"{shown} is half a download", hint="pull it again: what is there is gone on from")
    shard = shard_of(path.name)
    if shard is None or shard.number == 1:
        return path
    first = path.with_name(shard.sibling(1))
    if not os.path.exists(first):
        raise ModelError(
            f"{shown} is shard {shard.number} of {shard.count}, and the first is missing: {printable(first.name)}",
            hint=f"put all {shard.count} shards into one folder",
        )
    return first


def _in_folder(folder: Path) -> Path:
    if folder.name.startswith(library.REPO_PREFIX) and (kept := library.snapshots(folder)):
        folder = kept[0]
    files, shown = library.models_below(folder), printable(str(folder))
    if len(files) == 1:
        return files[0].path
    if files:
        raise ModelError(f"{shown} holds {len(files)} models", hint=f"name one of them:\n{_table(files)}")
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise ModelError(f"cannot read the folder {shown}: {error.strerror}") from None
    others = [n for n in names if is_half_name(n) or n.lower().endswith(SUFFIX)]
    why = f"; these are not whole or not models: {printable(', '.join(others[:5]))}" if others else ""
    raise ModelError(f"no model in the folder {shown}{why}", hint="name a .gguf file or a folder with one in it")


def _in_repo(hub: HubReference, repo: Path) -> Path:
    """The model in the newest snapshot that has it, `main` first: a file that a later commit renamed is not another."""
    repo_id = library.repo_id_of(repo)
    for snapshot in library.snapshots(repo):
        files = library.models_below(snapshot)
        names = [f.relative for f in files]
        fitting = select(hub.selector, names, hub.repo) if hub.selector else names
        if len(fitting) == 1:
            return next(f.path for f in files if f.relative == fitting[0])
        if fitting:
            asked = f"{printable(hub.selector)} fits {len(fitting)}" if hub.selector else f"there are {len(files)}"
            table = _table([f for f in files if f.relative in fitting])
            raise ModelError(f"{repo_id}: {asked} models in the cache", hint=f"add :QUANT or :FILE, one of:\n{table}")
    files = library.repo_models(repo)
    if files and hub.selector:
        raise ModelError(
            f"{repo_id} has no {printable(hub.selector)} in the cache",
            hint=f"there is:\n{_table(files)}\nor fetch it: {_fetch_command(hub)}",
        )
    if library.half_files(repo):
        raise ModelError(f"the download of {repo_id} did not finish", hint=f"go on with it: {_fetch_command(hub)}")
    raise ModelError(f"no model of {repo_id} in the cache", hint=f"fetch it: {_fetch_command(hub)}")


def _not_cached(hub: HubReference, settings: Settings) -> ModelError:
    return ModelError(
        f"{hub.repo_id} is not in the Hugging Face cache ({printable(str(settings.hub_cache_dir))})",
        hint=f"fetch it: {_fetch_command(hub)}; or name a model file: -m FILE",
    )


def _fetch_command(hub: HubReference) -> str:
    """What to type to have it here."""
    return f"llmcli pull {_quoted(hub.repo_id + (f':{hub.selector}' if hub.selector else ''))}"


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(printable(text))


def _no_such_file(reference: str, path: Path, settings: Settings) -> ModelError:
    import difflib

    try:
        siblings = [n for n in os.listdir(path.parent) if not n.startswith(".")]
    except OSError:
        siblings = []
    prefix = reference[: -len(path.name)] if reference.endswith(path.name) else ""
    near = [prefix + n for n in difflib.get_close_matches(path.name, siblings, n=2)]
    near += _near(model_name(path.name), settings)
    return ModelError(f"no such file: {printable(reference)}", hint=_did_you_mean(near))


def _by_name(name: str, settings: Settings) -> Path:
    """A model of the library by its file name or the name it is listed under."""
    here = library.list_models(settings)
    fitting = [m for m in here if name.casefold() in {m.name.casefold(), m.path.name.casefold()}]
    if len(fitting) == 1:
        return fitting[0].path
    if fitting:
        raise ModelError(
            f"{len(fitting)} models are called {printable(name)}", hint=f"name one of them:\n{_references(fitting)}"
        )
    if meant := well_known(name):
        return _well_known(name, meant, settings)
    hint = _did_you_mean(_near(name, settings)) or "name a .gguf file, owner/repo, or an alias such as smollm2"
    raise ModelError(f"no model called {printable(name)}", hint=hint)


def _well_known(name: str, meant: str, settings: Settings) -> Path:
    """The model behind a short name of the catalogue, where it has been pulled."""
    hub = parse_hub(meant)
    if hub and (repo := library.cached_repo(settings, hub.repo_id)) and library.repo_models(repo):
        return _in_repo(hub, repo)
    raise ModelError(f"{printable(name)} ({meant}) is not here", hint=f"fetch it: llmcli pull {name.casefold()}")


def _near(name: str, settings: Settings) -> list[str]:
    """References of models whose name or alias is close to `name`."""
    import difflib

    known = {alias.casefold(): alias for alias in (*default_model.BUILT_IN, *CATALOGUE, *settings.aliases)}
    for model in library.list_models(settings):
        known.setdefault(model.name.casefold(), model.reference)
    return [known[n] for n in difflib.get_close_matches(name.casefold(), known, n=3)]


def _did_you_mean(near: Sequence[str]) -> str | None:
    unique = list(dict.fromkeys(printable(n) for n in near))
    return f"did you mean {' or '.join(unique)}?" if unique else None


def _table(files: Sequence[ModelFile]) -> str:
    return _rows((printable(f.relative), format_bytes(f.size_bytes)) for f in files)


def _references(models: Sequence[LocalModel]) -> str:
    return _rows((printable(m.reference), format_bytes(m.size_bytes)) for m in models)


def _rows(pairs: Iterable[tuple[str, str]]) -> str:
    rows = list(pairs)
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {size:>9}" for name, size in rows[:_TABLE_ROWS]]
    return "\n".join(lines + [f"  … and {len(rows) - _TABLE_ROWS} more"] * (len(rows) > _TABLE_ROWS))
