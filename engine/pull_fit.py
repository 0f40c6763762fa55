"""Will it run here, and which quantization is best here: a model's needs against this machine's memory.

Asked before a model is fetched, so the figure is the machine's memory as a whole, not what happens to be free: a model
is kept for longer than today's other programs run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmcli.base.errors import ResourceError
from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.engine.fit import run_need
from llmcli.engine.plan import DEFAULT_CTX_TOKENS
from llmcli.hardware.memory import Memory
from llmcli.models.estimate import MemoryNeed
from llmcli.models.facts import ModelFacts
from llmcli.models.pull_plan import Candidates
from llmcli.models.remote_models import RemoteModel

# For the system and what else runs: a share, and never less than this.
_RESERVED_SHARE, _LEAST_RESERVED_BYTES = 0.15, 512 << 20
# Without a header to read: what a model takes beyond its file, roughly.
_ROUGH_SHARE, _ROUGH_BYTES = 0.1, 256 << 20


@dataclass(frozen=True, slots=True)
class Fit:
    """What a model needs with the default context, and what there is.

    need         None where the model's header could not be read; `needed_bytes` is then a rough figure
    usable_bytes   of the machine's (or the container's) memory, a reserve left out
    """

    need: MemoryNeed | None
    needed_bytes: int
    n_ctx: int
    usable_bytes: int
    total_bytes: int
    available_bytes: int

    @property
    def fits(self) -> bool:
        """Whether it runs without reading parts of the model again and again."""
        return self.needed_bytes <= self.usable_bytes

    @property
    def words(self) -> str:
        """One clause: what it needs of what there is."""
        about = "about " if self.need else "roughly "
        return (
            f"{about}{format_bytes(self.needed_bytes)} with a context of {format_count(self.n_ctx, 'token')}, "
            f"of {format_bytes(self.total_bytes)} memory"
        )

    def as_json(self) -> dict[str, Any]:
        """The figures as JSON values."""
        parts = (
            {}
            if self.need is None
            else {
                "weights_bytes": self.need.weights_bytes,
                "kv_bytes": self.need.kv_bytes,
                "compute_bytes": self.need.compute_bytes,
                "vocabulary_bytes": self.need.vocabulary_bytes,
            }
        )
        return {
            **parts,
            "needed_bytes": self.needed_bytes,
            "n_ctx": self.n_ctx,
            "usable_bytes": self.usable_bytes,
            "total_bytes": self.total_bytes,
            "available_bytes": self.available_bytes,
            "fits": self.fits,
        }


def fit_of(size_bytes: int, facts: ModelFacts | None, memory: Memory) -> Fit:
    """How a model of `size_bytes` fits; `facts` may be those of another quantization of it."""
    total = min(memory.total_bytes, memory.limit_bytes or memory.total_bytes)
    usable = max(0, total - max(_LEAST_RESERVED_BYTES, int(total * _RESERVED_SHARE)))
    if facts is None:
        needed = int(size_bytes * (1 + _ROUGH_SHARE)) + _ROUGH_BYTES
        return Fit(None, needed, DEFAULT_CTX_TOKENS, usable, total, memory.available_bytes)
    n_ctx = min(DEFAULT_CTX_TOKENS, facts.n_ctx_train or DEFAULT_CTX_TOKENS)
    # Quantizations of one model differ in their tensors, hardly in what else the file holds.
    weights = max(0, size_bytes - (facts.file_bytes - facts.tensor_bytes))
    need = replace(run_need(facts, n_ctx), weights_bytes=weights)
    return Fit(need, need.total_bytes, n_ctx, usable, total, memory.available_bytes)


def choose(candidates: Candidates, memory: Memory) -> tuple[RemoteModel, str]:
    """The best quantization that fits, and why. Raises ResourceError where none does.

    Best is largest: among quantizations of one model the bytes tell the quality. Files of 16 and 32 bits count only
    where there is nothing else: they are twice as large as 8 bits, twice as slow, and no better to read.
    """
    models = [model for model in candidates.models if not model.is_float] or list(candidates.models)
    fitting = [model for model in models if fit_of(model.size_bytes, candidates.facts, memory).fits]
    if not fitting:
        raise _none_fits(candidates, models[0], memory)
    best = max(fitting, key=lambda model: model.size_bytes)
    fit = fit_of(best.size_bytes, candidates.facts, memory)
    return best, f"{_name(best)} is {_rank(best, models, fitting)}: {fit.words}; another one with --quant"


def _rank(best: RemoteModel, models: Sequence[RemoteModel], fitting: Sequence[RemoteModel]) -> str:
    if len(models) == 1:
        return "the only quantization"
    if len(fitting) == len(models):
        return f"the largest of {len(models)} quantizations, and it fits"
    larger = min((model for model in models if model.size_bytes > best.size_bytes), key=lambda model: model.size_bytes)
    return f"the largest of {len(models)} quantizations that fits ({_name(larger)} does not)"


def _none_fits(candidates: Candidates, smallest: RemoteModel, memory: Memory) -> ResourceError:
    fit = fit_of(smallest.size_bytes, candidates.facts, memory)
    return ResourceError(
        f"no quantization of {printable(candidates.repo_id)} fits this machine: {_name(smallest)} needs {fit.words}",
        hint=f"a smaller model, or --quant for one of these all the same:\n{candidates.table}",
    )


def _name(model: RemoteModel) -> str:
    return printable(model.quant or model.name)
