"""How quantizing looks: the bar while it runs, and what is printed of plans and outcomes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_seconds
from llmcli.cli import output
from llmcli.cli.reporter import StderrReporter
from llmcli.quant.plan import Plan
from llmcli.quant.report import fallback_line, rule_lines, table_lines
from llmcli.quant.run import Outcome

_STDERR = 2
_BAR_AFTER_S = 0.7


class QuantizeView(StderrReporter):
    """Notes on stderr, and on a terminal a bar with the tensor at hand, the share done and the time left."""

    def __init__(self, settings: Settings, *, quiet: bool = False, verbose: bool = False) -> None:
        super().__init__(settings, quiet=quiet, verbose=verbose)
        self._shows_bars = not quiet and output.is_terminal(_STDERR) and settings.environment.get("TERM") != "dumb"

    @contextlib.contextmanager
    def begin(self, plan: Plan) -> Iterator[Callable[[int], None]]:
        """A bar for one run; what it gives is told how many tensors are done."""
        if not self._shows_bars:
            yield lambda done: None  # noqa: ARG005
            return
        bar = _TensorBar(plan)
        try:
            yield bar.tell
        finally:
            bar.close()


class _TensorBar:
    """Made, and rich imported, only once the run has taken a while."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._begun = plan, time.monotonic()
        self._done_weights, self._stack = 0, contextlib.ExitStack()
        self._bar: Any = None

    def tell(self, done: int) -> None:
        """`done` tensors are finished."""
        self._done_weights += self._plan.tensors[done - 1].elements
        if self._bar is None:
            if time.monotonic() - self._begun < _BAR_AFTER_S:
                return
            self._open()
        following = self._plan.tensors[min(done, len(self._plan.tensors) - 1)]
        self._update(self._done_weights, following.name)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        bar = self._stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        self._task = bar.add_task(self._plan.target.name, total=self._plan.elements)
        self._bar = bar

    def _update(self, done: int, name: str) -> None:
        shown = f"{self._plan.target.name} {printable(name)}"
        self._bar.update(self._task, completed=done, description=shown)

    def close(self) -> None:
        """Take the bar off the screen."""
        self._stack.close()


def tensor_lines(plan: Plan) -> list[str]:
    """One line for each tensor, for -v."""
    return [
        f"{t.name}  {list(t.shape)}  {t.source_type} -> {t.target_type}" + (" (shape)" if t.fell_back else "")
        for t in plan.tensors
    ]


class Account(Protocol):
    """What is to be said of how the types were chosen."""

    def lines(self) -> list[str]:
        """In sentences."""


def outcome_lines(done: Sequence[tuple[Outcome, Account | None]], named: str) -> list[str]:
    """The report of all outputs."""
    lines: list[str] = []
    for outcome, account in done:
        lines += ["", *_one(outcome, account, named)] if lines else _one(outcome, account, named)
    return lines


def _one(outcome: Outcome, account: Account | None, named: str) -> list[str]:
    plan = outcome.plan
    lines = [f"{named} as {_title(plan)}", *table_lines(plan)]
    if line := fallback_line(plan, done=outcome.seconds is not None):
        lines.append(line)
    lines += account.lines() if account else []
    lines += [printable(line) for line in rule_lines(plan)]
    names = ", ".join(printable(str(file)) for file in outcome.target.files)
    if outcome.seconds is None:
        lines.append(f"would write {names}: {format_bytes(outcome.file_bytes)} at most")
    else:
        lines.append(f"{names}: {format_bytes(outcome.file_bytes)} in {format_seconds(outcome.seconds)}")
    return lines


def _title(plan: Plan) -> str:
    """The type, or that each tensor has one of its own."""
    ruled = sum(tensor.elements for tensor in plan.tensors if tensor.rule is not None)
    return "a mix of types" if 2 * ruled > plan.elements else plan.target.name
