from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import ContextOverflowError
from llmcli.engine.context import AbortedError
from llmcli.engine.interrupt import StopFlag
from llmcli.engine.session import _pieces
from tests.fixtures.engines import open_session

KINDS = ["plain", "iswa", "hybrid", "mamba"]


def prompt(count: int) -> list[int]:
    return [(7 * i * i + 3 * i) % 61 for i in range(count)]


@given(st.integers(0, 5000), st.integers(0, 5000), st.sampled_from([64, 256, 512]))
def test_pieces_cover_the_tokens_and_end_on_the_grid(position: int, count: int, grid: int) -> None:
    pieces = list(_pieces(position, count, grid))
    assert [i for start, end in pieces for i in range(start, end)] == list(range(count))
    assert all((position + end) % 64 == 0 for _, end in pieces[:-1])
    assert all((position + end) % grid == 0 for _, end in pieces[:-2])
    assert all(0 < end - start <= grid for start, end in pieces)
    if count:
        assert pieces[-1][1] - pieces[-1][0] <= 64


@given(st.integers(1, 3000), st.integers(0, 46))
def test_a_prefill_that_begins_on_the_grid_makes_the_same_last_cut(count: int, started: int) -> None:
    position = min(started * 64, (count - 1) // 64 * 64)
    cold = list(_pieces(0, count, 256))
    warm = [(position + start, position + end) for start, end in _pieces(position, count - position, 256)]
    assert warm[-1] == cold[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_in_two_steps_on_the_grid_gives_the_logits_of_one(
    kind: str, random_model: Callable[[str], Path]
) -> None:
    with open_session(random_model(kind)) as session:
        session.prefill(prompt(300))
        whole = bytes(session.context.logits())
        session.cut(0)
        session.prefill(prompt(300)[:192])
        session.prefill(prompt(300)[192:])
        assert session.tokens == prompt(300)
        assert bytes(session.context.logits()) == whole


def test_progress_counts_the_tokens_of_this_prefill(random_model: Callable[[str], Path]) -> None:
    seen: list[tuple[int, int]] = []
    with open_session(random_model("plain"), n_ctx=1024) as session:
        session.prefill(prompt(100))
        session.prefill(prompt(500), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(156, 500), (412, 500), (476, 500), (500, 500)]


def test_what_does_not_fit_is_refused_before_anything_is_computed(random_model: Callable[[str], Path]) -> None:
    with open_session(random_model("plain"), n_ctx=256) as session:
        session.prefill(prompt(200))
        with pytest.raises(ContextOverflowError, match="57 tokens do not fit: 56 are left of a context of 256"):
            session.prefill(prompt(57))
        assert session.tokens == prompt(200)
        session.prefill(prompt(56))
        assert session.room == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_prefill_leaves_a_session_that_can_go_on(kind: str, random_model: Callable[[str], Path]) -> None:
    stop = StopFlag()
    with open_session(random_model(kind), stop=stop) as session:
        with pytest.raises(AbortedError):
            session.prefill(prompt(400), on_progress=lambda done, _: stop.set())
        # Recurrent memory cannot step back from the aborted piece: everything is computed again.
        kept = 256 if kind in ("plain", "iswa") else 0
        assert session.tokens == prompt(kept)
        stop.clear()
        session.prefill(prompt(400)[kept:])
        resumed = bytes(session.context.logits())
        session.cut(0)
        session.prefill(prompt(400))
        assert bytes(session.context.logits()) == resumed


def test_cut_forgets_what_came_after(random_model: Callable[[str], Path]) -> None:
    with open_session(random_model("plain")) as session:
        session.prefill(prompt(64))
        session.prefill([1, 2, 3])
        expected = bytes(session.context.logits())
        session.prefill(prompt(100))
        session.cut(64)
        session.prefill([1, 2, 3])
        assert session.tokens == [*prompt(64), 1, 2, 3]
        assert bytes(session.context.logits()) == expected


def test_recurrent_memory_is_cleared_where_it_cannot_be_cut(random_model: Callable[[str], Path]) -> None:
    with open_session(random_model("mamba")) as session:
        session.prefill(prompt(64))
        session.cut(32)
        assert session.tokens == []


def test_drop_closes_the_gap(random_model: Callable[[str], Path]) -> None:
    with open_session(random_model("plain")) as session:
        session.prefill(prompt(100))
        session.drop(10, 60)
        assert session.tokens == [*prompt(100)[:10], *prompt(100)[60:]]
        session.decode(5)
        assert session.room == 512 - 51


def test_a_session_is_whole_again_when_all_is_forgotten(random_model: Callable[[str], Path]) -> None:
    """What follows a dropped range still knows it; what comes after everything was forgotten does not."""
    with open_session(random_model("plain")) as session:
        session.prefill(prompt(100))
        expected = bytes(session.context.logits())
        assert session.is_whole
        session.drop(10, 60)
        session.cut(20)
        assert not session.is_whole
        session.forget()
        assert (session.is_whole, session.tokens, session.context.length()) == (True, [], 0)
        session.prefill(prompt(100))
        assert bytes(session.context.logits()) == expected
