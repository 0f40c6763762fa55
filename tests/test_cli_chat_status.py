"""The line at the bottom of a chat."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from llmcli.cli.chat_status import Status
from llmcli.engine.conversation import ContextUse
from llmcli.engine.generate import Timings

USE = ContextUse(used_tokens=1024, n_ctx=4096, turns=3, dropped_turns=0, system_tokens=0)


@dataclass
class Answer:
    prompt_tokens: int = 1000
    kept_tokens: int = 0
    restored_tokens: int = 0
    timings: Timings = field(default_factory=lambda: Timings(decode_s=2.0, decode_tokens=50))


def test_nothing_known_is_nothing_said() -> None:
    assert Status().line() == ""


@pytest.mark.parametrize(
    ("answer", "reused"),
    [
        (Answer(restored_tokens=960), " · 960 of 1,000 tokens restored"),
        (Answer(kept_tokens=900), " · 900 of 1,000 tokens kept"),
        (Answer(kept_tokens=64, restored_tokens=896), " · 896 of 1,000 tokens restored"),
        (Answer(), ""),
    ],
    ids=["restored", "kept", "both", "neither"],
)
def test_an_answer(answer: Answer, reused: str) -> None:
    status = Status(model="tiny", session="trip", use=USE)
    status.saw(answer)  # type: ignore[arg-type]
    assert status.line() == f"context 1,024/4,096 (25%) · 25 tok/s{reused} · tiny · session trip"


def test_what_is_done_comes_first_and_dropped_turns_are_told() -> None:
    use = ContextUse(used_tokens=10, n_ctx=100, turns=9, dropped_turns=2, system_tokens=0)
    status = Status(model="m", use=use, doing="answering")
    assert status.line() == "answering · context 10/100 (10%), 2 turns left out · m"


@pytest.mark.parametrize(("used", "percent"), [(191, 5), (20, 0), (21, 1), (4096, 100)])
def test_the_share_of_the_context_is_rounded_once(used: int, percent: int) -> None:
    use = ContextUse(used_tokens=used, n_ctx=4096, turns=1, dropped_turns=0, system_tokens=0)
    assert use.percent == percent
    assert Status(use=use).line() == f"context {used:,}/4,096 ({percent}%)"


def test_a_rate_stays_where_an_answer_has_none() -> None:
    status = Status(tok_s=12.0)
    status.saw(Answer(timings=Timings()))  # type: ignore[arg-type]
    assert status.line() == "12 tok/s"


def test_hostile_names_are_shown() -> None:
    assert Status(model="a\x1b]0;x\x07", session="\x9b2J").line() == "a\\x1b]0;x\\x07 · session \\x9b2J"
