"""What llmcli finds around it: versions, folders, the default model, environment and config. Facts, no judgement.

Nothing here touches the network. Secrets stay where they are: the value of a variable or config key whose
name speaks of one is never part of a result.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.version import VERSION
from llmcli.models.default_model import BUILT_IN, SMOLLM2
from llmcli.models.library import list_models
from llmcli.models.reach import without_credentials
from llmcli.models.resolve import resolve

ENGINE, HUB = "llama-cpp-python", "huggingface-hub"
HIDDEN = "(set, not shown)"
# Variables that change what llmcli does, by the start of their name or whole; compared in upper case, since proxies
# are usually set in lower case.
_PREFIXES = ("LLMCLI_", "HF_", "HUGGING", "XDG_", "LLAMA_", "GGML_", "OMP_", "LC_")
_NAMES = {
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    *("NO_COLOR", "TERM", "LANG", "PYTHONUTF8", "PYTHONIOENCODING", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}
# A name with `tokens` counts them.
_SECRET = re.compile(r"token(?!s|iz)|secret|salt|password|passwd|credential|api_?key", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Versions:
    """None for a package that is not installed; …_wanted is the version that llmcli was made for."""

    llmcli: str
    python: str
    llama_cpp_python: str | None
    llama_cpp_python_wanted: str | None
    huggingface_hub: str | None


@dataclass(frozen=True, slots=True)
class Folder:
    """writable and free_bytes are those of the nearest folder that exists: where it would be made."""

    name: str
    path: str
    exists: bool
    writable: bool
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class DefaultModelState:
    """The model of `llmcli run` without -m.

    configured    what LLMCLI_MODEL or config.toml names, None where neither does
    path          the file, None where it is not here
    fetchable     it is not here, and will be fetched on first use
    problem, hint  why it cannot be used
    """

    configured: str | None
    path: str | None
    fetchable: bool
    problem: str | None
    hint: str | None
    models_here: int


def read_versions() -> Versions:
    """The versions of everything that matters to an answer."""
    return Versions(VERSION, platform.python_version(), _installed(ENGINE), _wanted(ENGINE), _installed(HUB))


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _wanted(name: str) -> str | None:
    """The exact version that llmcli's own metadata asks for."""
    try:
        lines = requires("llmcli") or []
    except PackageNotFoundError:
        return None
    found = (re.match(rf"{re.escape(name)}\s*==\s*([^\s;,]+)", line) for line in lines)
    return next((match[1] for match in found if match), None)


def read_folders(settings: Settings) -> tuple[Folder, ...]:
    """Our folders and the Hugging Face cache."""
    places = (
        ("config", settings.config_dir),
        ("cache", settings.cache_dir),
        ("state", settings.state_dir),
        ("data", settings.data_dir),
        ("hub_cache", settings.hub_cache_dir),
    )
    return tuple(_folder(name, path) for name, path in places)


def _folder(name: str, path: Path) -> Folder:
    # What stands at the path counts even where it is no folder: a file in the way is not writable as one.
    nearest = next(place for place in (path, *path.parents) if os.path.lexists(place) or place == place.parent)
    usable = os.path.isdir(nearest) and os.access(nearest, os.W_OK | os.X_OK)
    try:
        free = shutil.disk_usage(nearest).free
    except OSError:
        free = None
    return Folder(name, str(path), os.path.isdir(path), usable, free)


def read_default_model(settings: Settings) -> DefaultModelState:
    """Look the default model up, without fetching it."""
    value = settings.flag_default("model")
    configured = None if value is None else str(value)
    offline = replace(settings, environment={**settings.environment, "LLMCLI_OFFLINE": "1"})
    count = len(list_models(settings))
    try:
        found = resolve(None, offline, notify=lambda _line: None)
    except LlmcliError as error:
        built_in = configured is None or settings.aliases.get(configured, configured) in BUILT_IN
        if built_in and not settings.offline:
            return DefaultModelState(configured, None, True, None, None, count)
        return DefaultModelState(configured, None, False, error.message, error.hint, count)
    return DefaultModelState(configured, str(found.path), False, None, None, count)


def default_title() -> tuple[str, int]:
    """Name and bytes of the model that is fetched on first use."""
    return SMOLLM2.title, SMOLLM2.size_bytes


def environment_in_force(settings: Settings) -> dict[str, str]:
    """The variables that change what llmcli does, by name; secrets and credentials in addresses hidden."""
    wanted = (name for name in settings.environment if name.upper().startswith(_PREFIXES) or name.upper() in _NAMES)
    return {name: _shown(name, settings.environment[name]) for name in sorted(wanted)}


def config_in_force(settings: Settings) -> dict[str, Any]:
    """The values of config.toml, secrets hidden."""
    return {name: _shown_value(name, value) for name, value in sorted(settings.values.items())}


def _shown(name: str, value: str) -> str:
    return HIDDEN if _SECRET.search(name) else printable(without_credentials(value))


def _shown_value(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _shown_value(key, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shown_value(name, inner) for inner in value]
    if isinstance(value, (bool, int, float)) and not _SECRET.search(name):
        return value
    return _shown(name, str(value))  # a date of TOML becomes text
