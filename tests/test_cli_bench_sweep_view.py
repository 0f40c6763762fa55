"""What a sweep shows: the candidates with and without a time, after an interruption and a failed final."""

from __future__ import annotations

from typing import Any

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.bench.sweep import Candidate, SweepOptions, Tried, Verdict
from llmcli.cli.bench_sweep_view import sweep_chart, sweep_json, sweep_text

USUAL = Tried(Candidate(), [2.0, 1.5], [1.5] * 4)
FAST = Tried(Candidate(1, n_ubatch=64), [1.0, 0.5], [0.5] * 4)
BROKEN = Tried(Candidate(2, n_ubatch=128), [3.0], error=LlmcliError("no memory"))
UNTRIED = Tried(Candidate(3))


class Swept:
    tried = (USUAL, FAST, BROKEN, UNTRIED)
    was_cut = True


def text(verdict: Verdict | None) -> list[str]:
    swept: Any = Swept()
    return sweep_text(swept, verdict, SweepOptions()).splitlines()


def test_candidates_with_and_without_a_time() -> None:
    lines = text(Verdict(FAST, USUAL, 0.6, 0.01))
    assert [line.split() for line in lines[2:6]] == [
        ["-t", "1", "-ub", "64", "2", "1.00", "s", "500", "ms", "500", "ms"],
        ["as", "it", "is", "2", "2.00", "s", "1.50", "s", "1.50", "s"],
        ["-t", "2", "-ub", "128", "1", "3.00", "s", "3.00", "s,", "then", "no", "memory"],
        ["-t", "3", "0"],
    ]
    assert "-t   1: 1.00 s, 2: 3.00 s" in lines
    assert lines[-1] == (
        "in the final, 4 times in turns, -t 1 -ub 64 took 60.0% less time than the settings as they are: "
        "500 ms against 1.50 s, p 0.010"
    )


@pytest.mark.parametrize(
    ("verdict", "last"),
    [
        (None, "interrupted: there is no winner"),
        (Verdict(USUAL, USUAL, 0.0, None), "the settings as they are answer soonest of the 3 that were measured"),
        (Verdict(BROKEN, USUAL, 0.0, None), "-t 2 -ub 128: the final failed: no memory"),
        (
            Verdict(USUAL, FAST, -2.0, 0.4),
            (
                "in the final, 4 times in turns, as it is took 200.0% more time than the settings as they are: "
                "1.50 s against 500 ms, p 0.400; the samples do not show that it is faster"
            ),
        ),
    ],
)
def test_what_follows(verdict: Verdict | None, last: str) -> None:
    assert text(verdict)[-1] == last


def test_json_and_chart_after_an_interruption() -> None:
    swept: Any = Swept()
    found = sweep_json(swept, None, None)
    assert (found["interrupted"], found["winner"], found["is_better"]) == (True, None, False)
    assert [one["request_s"] for one in found["tried"]] == [1.5, 0.5, 3.0, None]
    assert [line.label for line in sweep_chart(Swept.tried).series] == ["-t 1 -ub 64", "as it is", "-t 2 -ub 128"]
