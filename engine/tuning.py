"""Settings that `llmcli bench sweep --save` found best for a model on this machine, used where the user asks for
nothing else.

They stand in config.toml, in a table for each model, and count below everything that is given by flag, environment or
config; on another machine they do not count at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmcli.base.settings import Settings
from llmcli.engine.plan import Request
from llmcli.hardware.cores import Cores, read_cores
from llmcli.hardware.cpu import read_cpu

SECTION = "tuned"
_ID_DIGITS = 16
# Key of the table -> field of the request. The last three have a default that can be asked for, too: a request says in
# `settled` which of them the user gave.
FIELDS = {
    "threads": "n_threads",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "n_gpu_layers": "n_gpu_layers",
    "flash_attn": "flash_attn",
    "cache_type_k": "type_k",
    "cache_type_v": "type_v",
}
_NUMBERS = ("threads", "batch_size", "ubatch_size", "n_gpu_layers")


def table_name(content_id: str) -> str:
    """What the table of a model is called."""
    return content_id[:_ID_DIGITS]


def machine_name(cpu: str, cores_usable: int, cores_physical: int) -> str:
    """A machine in a few words: which one settings or rates were found on."""
    return f"{cpu}, {cores_usable} of {cores_physical} cores"


def tuned(request: Request, settings: Settings, content_id: str, cores: Cores | None = None) -> Request:
    """The request, with what was found best for this model in the places that the user left open."""
    table = settings.tuned.get(table_name(content_id))
    if not isinstance(table, Mapping):
        return request
    here = cores or read_cores()
    if table.get("machine") != machine_name(read_cpu().model_name, here.usable, here.physical):
        return request
    return replace(request, **_open_fields(request, table))


def _open_fields(request: Request, table: Mapping[str, Any]) -> dict[str, Any]:
    usual, found = Request(), {}
    for key, field in FIELDS.items():
        value = table.get(key)
        fits = isinstance(value, int) and not isinstance(value, bool) if key in _NUMBERS else isinstance(value, str)
        is_open = getattr(request, field) == getattr(usual, field) and field not in request.settled
        if fits and is_open:
            found[field] = value
    # Types are a pair: a V cache that was found beside another K cache is another setting.
    if "type_k" in request.settled or "type_v" in request.settled:
        found.pop("type_k", None)
        found.pop("type_v", None)
    return found
