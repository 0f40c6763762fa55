"""The words of a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.cli.pull_view import headline, plan_text, remarks
from llmcli.engine.pull_fit import fit_of
from llmcli.hardware.memory import Memory
from llmcli.models.pull_plan import PlannedFile, PullPlan, State

GIB = 1 << 30


def plan(*files: tuple[str, int | None, State, int], folder: Path = Path("/"), problem: str | None = None) -> PullPlan:
    planned = tuple(PlannedFile(n, size, "0" * 64, folder / n, state, have) for n, size, state, have in files)
    return PullPlan(
        "o/r", "o/r", "o/r", "main", "a" * 40, "Q8_0", planned, (), folder, "HF_HOME", None, problem, "it is the best"
    )


MEMORY = Memory(8 * GIB, 4 * GIB, None, None, 0, 0)


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ([("m.gguf", GIB, "new", 0)], "o/r at aaaaaaa: m.gguf, 1.0 GiB"),
        ([("m.gguf", GIB, "half", GIB // 4)], "o/r at aaaaaaa: m.gguf, 1.0 GiB, 768.0 MiB to go"),
        ([("m.gguf", GIB, "here", GIB)], "o/r at aaaaaaa: m.gguf is here already; checking it"),
        ([("m.gguf", None, "new", 0)], "o/r at aaaaaaa: m.gguf, size not stated"),
        (
            [("m-1", GIB, "new", 0), ("m-2", GIB, "here", GIB)],
            "o/r at aaaaaaa: m-1 and 1 more part, 2.0 GiB, 1.0 GiB to go",
        ),
    ],
)
def test_the_headline(files: list[tuple[str, int | None, State, int]], line: str) -> None:
    assert headline(plan(*files)) == line


def test_remarks_and_the_dry_run(tmp_path: Path) -> None:
    found = plan(("m.gguf", 9 * GIB, "new", 0), folder=tmp_path, problem="an unknown architecture")
    fit = fit_of(found.size_bytes, None, MEMORY)
    assert list(remarks(found, fit)) == [
        "it is the best",
        "warning: an unknown architecture",
        f"warning: it does not fit this machine: it needs {fit.words}; it will be slow, or fail",
    ]
    text = plan_text(found, fit)
    assert "it does not fit" in text
    assert "but     an unknown architecture" in text
    assert "m.gguf  9.0 GiB  to be fetched" in text
