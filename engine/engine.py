"""A model opened and ready to answer: found, checked, planned, loaded, freed for certain.

The one place where references, facts, hardware and the native layer meet; commands call `open_engine` and nothing
below.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from llmcli.base.errors import ResourceError, UserInterruptError
from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.engine import native
from llmcli.engine.context import Context, Rope
from llmcli.engine.interrupt import StopFlag, stop_on_interrupt
from llmcli.engine.lora import Lora
from llmcli.engine.model import Model
from llmcli.engine.plan import Request, RunPlan, make_plan
from llmcli.engine.preflight import EngineBuild, check_build
from llmcli.engine.session import Session
from llmcli.engine.special_tokens import recall_special_ids
from llmcli.hardware.cores import read_cores
from llmcli.hardware.devices import find_gpus
from llmcli.hardware.memory import read_memory
from llmcli.models.facts import ModelFacts
from llmcli.models.identity import Inspected, inspect_model
from llmcli.models.progress import ProgressFactory
from llmcli.models.resolve import ResolvedModel, resolve


class Reporter(Protocol):
    """Who is told what happens on the way."""

    def notify(self, line: str) -> None:
        """One line that the user should read."""

    @property
    def progress(self) -> ProgressFactory:
        """Shows work of known or unknown length."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An open model. Everything is valid inside the `with open_engine(…)` block alone."""

    build: EngineBuild
    resolved: ResolvedModel
    inspected: Inspected
    plan: RunPlan
    model: Model
    context: Context
    session: Session
    stop: StopFlag
    rope: Rope
    loras: tuple[Lora, ...]
    load_s: float


@contextlib.contextmanager
def open_engine(
    reference: str | None,
    request: Request,
    settings: Settings,
    reporter: Reporter,
    *,
    rope: Rope | None = None,
    loras: Sequence[Lora] = (),
    stop: StopFlag | None = None,
) -> Iterator[Engine]:
    """Find the model, check its file, plan, load. Raises the LlmcliError of whichever step fails, UserInterruptError
    where `stop` is set, or Ctrl-C pressed, while llama.cpp loads.
    """
    flag = stop or StopFlag()
    build = check_build(settings)
    resolved, inspected = find_model(reference, settings, reporter)
    plan = plan_for(_tuned(request, settings, inspected), inspected.facts)
    for note in plan.notes:
        reporter.notify(note)
    _check_loras(loras, inspected.facts)
    begun = time.perf_counter()
    with contextlib.ExitStack() as stack:
        # A KeyboardInterrupt is lost where llama.cpp calls Python (progress, log). Only here: what comes before, a
        # download or a hash of gigabytes, polls no flag and is ended by a KeyboardInterrupt.
        with stop_on_interrupt(flag):
            model = stack.enter_context(load_model(resolved, inspected, plan, reporter, flag))
            model.add_loras(loras)
            context = stack.enter_context(Context(model, plan, rope=rope, stop=flag))
        if flag.is_set():
            raise UserInterruptError
        recall_special_ids(model.tokenizer, settings, inspected.content_id, build)
        load_s = time.perf_counter() - begun
        yield Engine(
            build=build,
            resolved=resolved,
            inspected=inspected,
            plan=plan,
            model=model,
            context=context,
            session=Session(context),
            stop=flag,
            rope=rope or Rope(),
            loras=tuple(loras),
            load_s=load_s,
        )


def _tuned(request: Request, settings: Settings, inspected: Inspected) -> Request:
    if not settings.tuned:
        return request
    from llmcli.engine.tuning import tuned  # for those who have such settings

    return tuned(request, settings, inspected.content_id)


def plan_for(request: Request, facts: ModelFacts) -> RunPlan:
    """The run plan, with the sliding window kept in full where that fits.

    A full window is what lets a prefix be restored exactly, and it is used with the prefix store off too: a window that
    wraps around sums in another order, so the two would give different bits.
    """
    hardware = read_cores(), read_memory(), native.devices(), find_gpus()
    if facts.sliding_window and not request.swa_full:
        with contextlib.suppress(ResourceError):
            return make_plan(replace(request, swa_full=True), facts, *hardware)
    return make_plan(request, facts, *hardware)


def find_model(
    reference: str | None, settings: Settings, reporter: Reporter, *, need_vocabulary: bool = True
) -> tuple[ResolvedModel, Inspected]:
    """Resolve the reference and check the file, with progress where its hash is not known yet."""
    resolved = resolve(reference, settings, notify=reporter.notify, progress=reporter.progress)
    with contextlib.ExitStack() as stack:
        tell: Callable[[int], None] | None = None

        def on_hash(done_bytes: int, total_bytes: int) -> None:
            nonlocal tell
            if tell is None:
                title = f"checking {resolved.name}, once"
                tell = stack.enter_context(reporter.progress(title, total_bytes)).update
            tell(done_bytes)

        found = inspect_model(resolved.path, settings, on_hash=on_hash, need_vocabulary=need_vocabulary)
        return resolved, found


def _check_loras(loras: Sequence[Lora], facts: ModelFacts) -> None:
    if loras:
        from llmcli.models.check_lora import check_lora  # 20 ms, for those who use one

        for lora in loras:
            check_lora(lora.path, facts)


def load_model(
    resolved: ResolvedModel, inspected: Inspected, plan: RunPlan, reporter: Reporter, stop: StopFlag
) -> Model:
    """Load the weights as planned, with progress. Raises UserInterruptError where `stop` is set meanwhile."""
    total = plan.weights_bytes
    with reporter.progress(f"loading {resolved.name}", total) as task:

        def on_progress(share: float) -> bool:
            task.update(int(share * total))
            return not stop.is_set()

        return Model.load(inspected.path, plan, n_layer=inspected.facts.n_layer, on_progress=on_progress)
