"""The cross product: every test with every combination of settings, in the order of the fewest model loads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llmcli.base.errors import UsageError
from llmcli.bench.sizes import Sizes
from llmcli.engine.plan import Request

Numbers = tuple[int | None, ...]
Names = tuple[str, ...]
MOST_TRIALS = 100_000


@dataclass(frozen=True, slots=True)
class Grid:
    """What is to be tried; None is "as llmcli run would have it". A size of 0 takes that kind of test out."""

    models: tuple[str | None, ...] = (None,)
    n_prompt: tuple[int, ...] = (512,)
    n_gen: tuple[int, ...] = (128,)
    pairs: tuple[tuple[int, int], ...] = ()
    n_depth: tuple[int, ...] = (0,)
    n_gpu_layers: Numbers = (None,)
    n_batch: Numbers = (None,)
    n_ubatch: Numbers = (None,)
    type_k: Names = ("f16",)
    type_v: Names = ("f16",)
    flash_attn: Names = ("auto",)
    n_threads: Numbers = (None,)
    use_mmap: bool = True
    use_mlock: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """One test with one combination of settings. `request` asks for the context that the sizes need."""

    model: str | None
    request: Request
    sizes: Sizes

    @property
    def load_key(self) -> tuple[object, ...]:
        """Trials with the same one can share a loaded model."""
        return self.model, self.request.n_gpu_layers, self.request.use_mmap, self.request.use_mlock


def trials(grid: Grid) -> tuple[Trial, ...]:
    """All of them; empty where every size is 0. Raises UsageError for more than anyone waits for."""
    count = _count(grid)
    if count > MOST_TRIALS:
        raise UsageError(f"that stands for {count:,} tests, and {MOST_TRIALS:,} are the most", hint="shorter lists")
    return tuple(_trials(grid))


def _count(grid: Grid) -> int:
    sizes = len(grid.pairs) + sum(map(bool, grid.n_prompt)) + sum(map(bool, grid.n_gen))
    return sizes * math.prod(len(axis) for axis in _axes(grid))


def _axes(grid: Grid) -> tuple[Sequence[Any], ...]:
    """What is crossed, the outermost first: where a model is loaded again comes before where it is not."""
    loads = grid.models, grid.n_gpu_layers
    contexts = grid.n_batch, grid.n_ubatch, grid.type_k, grid.type_v, grid.flash_attn
    return *loads, *contexts, grid.n_threads, grid.n_depth


def _trials(grid: Grid) -> Iterator[Trial]:
    for model, layers, batch, ubatch, type_k, type_v, flash, threads, depth in itertools.product(*_axes(grid)):
        for sizes in _sizes(grid, depth):
            request = Request(
                n_ctx=sizes.total_tokens,
                n_threads=threads,
                n_batch=batch,
                n_ubatch=ubatch,
                n_gpu_layers=layers,
                flash_attn=flash,
                type_k=type_k,
                type_v=type_v,
                use_mmap=grid.use_mmap,
                use_mlock=grid.use_mlock,
                rope_scaled=True,  # the positions past the trained context are deliberate: a rate does not read them
            )
            yield Trial(model, request, sizes)


def _sizes(grid: Grid, depth: int) -> Iterator[Sizes]:
    yield from (Sizes(n_prompt=count, n_depth=depth) for count in grid.n_prompt if count)
    yield from (Sizes(n_gen=count, n_depth=depth) for count in grid.n_gen if count)
    yield from (Sizes(n_prompt, n_gen, depth) for n_prompt, n_gen in grid.pairs)
