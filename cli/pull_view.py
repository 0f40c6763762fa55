"""What a pull says of its plans and results: lines for people, objects for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.cli.table import table_lines
from llmcli.engine.pull_fit import Fit
from llmcli.models.hub_cache import free_bytes
from llmcli.models.pull import Pulled
from llmcli.models.pull_plan import PlannedFile, PullPlan

_HERE = {"here": "is here already", "half": "half of it is here", "new": "to be fetched"}


def headline(plan: PullPlan) -> str:
    """One line: what is about to be fetched."""
    at = f" at {printable(plan.commit[:7])}" if plan.commit else ""
    first = printable(plan.files[0].name)
    more = len(plan.files) - 1
    parts = f" and {format_count(more, 'more part')}" if more else ""
    if plan.missing_bytes == 0 and all(file.state == "here" for file in plan.files):
        return f"{plan.source}{at}: {first}{parts} is here already; checking it"
    known = all(file.size_bytes is not None for file in plan.files)
    size = format_bytes(plan.size_bytes) if known else "size not stated"
    left = f", {format_bytes(plan.missing_bytes)} to go" if known and plan.missing_bytes != plan.size_bytes else ""
    return f"{plan.source}{at}: {first}{parts}, {size}{left}"


def remarks(plan: PullPlan, fit: Fit) -> Iterator[str]:
    """What there is to know before it is fetched: why this one, and whether it will run here."""
    if plan.reason:
        yield plan.reason
    if plan.problem:
        yield f"warning: {plan.problem}"
    if not fit.fits:
        yield f"warning: it does not fit this machine: it needs {fit.words}; it will be slow, or fail"
    if any(file.digest is None for file in plan.files):
        yield "warning: nothing states what its bytes should be; --sha256 would"


def plan_text(plan: PullPlan, fit: Fit) -> str:
    """The answer to --dry-run."""
    rows = [(printable(f.name), _size(f.size_bytes), _HERE[f.state]) for f in plan.files]
    free = free_bytes(plan.folder)
    enough = "" if free is None or free > plan.missing_bytes else ", which is too little"
    needs = f"{fit.words}: {'it fits' if fit.fits else 'it does not fit'}"
    lines = [
        f"from    {plan.source}" + (f" at {plan.commit}" if plan.commit else ""),
        f"to      {printable(str(plan.folder))}",
        *(f"file    {line}" for line in table_lines(rows, right={1})),
        f"fetch   {format_bytes(plan.missing_bytes)}, {'?' if free is None else format_bytes(free)} free{enough}",
        f"memory  {needs}",
    ]
    lines += [f"why     {printable(plan.reason)}"] if plan.reason else []
    lines += [f"but     {printable(plan.problem)}"] if plan.problem else []
    return "\n".join(lines) + "\n"


def plan_json(plan: PullPlan, fit: Fit) -> dict[str, Any]:
    """The plan as one object."""
    return {
        **_common(plan, fit),
        "files": [{**_file(f), "state": f.state, "have_bytes": f.have_bytes} for f in plan.files],
        "missing_bytes": plan.missing_bytes,
        "free_bytes": free_bytes(plan.folder),
    }


def result_json(plan: PullPlan, pulled: Pulled, fit: Fit) -> dict[str, Any]:
    """What is here now, as one object."""
    files = [{**_file(f), "received": f.name in pulled.received} for f in plan.files]
    return {**_common(plan, fit), "path": str(pulled.path), "files": files}


def _common(plan: PullPlan, fit: Fit) -> dict[str, Any]:
    return {
        "reference": plan.reference,
        "source": plan.source,
        "revision": plan.revision,
        "commit": plan.commit,
        "quant": plan.quant,
        "size_bytes": plan.size_bytes,
        "reason": plan.reason,
        "problem": plan.problem,
        "memory": fit.as_json(),
    }


def _file(file: PlannedFile) -> dict[str, Any]:
    return {"name": file.name, "path": str(file.path), "size_bytes": file.size_bytes, "digest": file.digest}


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else format_bytes(size_bytes)
