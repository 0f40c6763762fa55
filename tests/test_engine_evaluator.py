"""Windows of tokens through a model: the logits that come out, stops, and how a model is opened for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llmcli.base.errors import LlmcliError, UserInterruptError
from llmcli.base.settings import load
from llmcli.engine import evaluator as module
from llmcli.engine.context import AbortedError
from llmcli.engine.evaluator import Evaluator, open_evaluator
from llmcli.engine.interrupt import StopFlag
from llmcli.engine.model import Model
from llmcli.engine.plan import Request
from llmcli.engine.preflight import EngineBuild
from tests.fixtures.engines import open_session, tiny_plan
from tests.fixtures.notes import Notes
from tests.fixtures.text_models import write_text_model

TOKENS = [(i * 31) % 250 + 3 for i in range(96)]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("models") / "dense.gguf")


def test_logits_are_those_of_a_session(dense: Path) -> None:
    plan = tiny_plan(n_ubatch=64)
    with Model.load(dense, plan) as model, Evaluator(model, plan) as evaluator:
        evaluator.decode(TOKENS[:64], 0, wanted=0)
        evaluator.decode(TOKENS[64:], 64, wanted=32)
        found = np.array(evaluator.logits())
    with open_session(dense, n_ubatch=64) as session:
        session.prefill(TOKENS)
        expected = np.array(session.context.logits())
    assert found.shape == (32, 261)
    np.testing.assert_allclose(found[-1], expected, atol=1e-5)


def test_only_the_wanted_rows_come_out_and_are_the_same(dense: Path) -> None:
    plan = tiny_plan(n_ubatch=96)
    with Model.load(dense, plan) as model, Evaluator(model, plan) as evaluator:
        evaluator.decode(TOKENS, 0, wanted=96)
        all_rows = np.array(evaluator.logits())
        evaluator.clear()
        evaluator.decode(TOKENS, 0, wanted=10)
        some = np.array(evaluator.logits())
    assert some.shape == (10, 261)
    np.testing.assert_allclose(some, all_rows[-10:], atol=1e-4)


def test_a_cleared_window_knows_nothing_of_the_last(dense: Path) -> None:
    plan = tiny_plan(n_ubatch=96)
    with Model.load(dense, plan) as model, Evaluator(model, plan) as evaluator:
        evaluator.decode(TOKENS[:50], 0, wanted=1)
        first = np.array(evaluator.logits())
        evaluator.clear()
        evaluator.decode(TOKENS[50:], 0, wanted=1)
        evaluator.clear()
        evaluator.decode(TOKENS[:50], 0, wanted=1)
        assert np.array_equal(np.array(evaluator.logits()), first)


def test_a_set_flag_ends_the_work(dense: Path) -> None:
    plan, stop = tiny_plan(n_ubatch=96), StopFlag()
    with Model.load(dense, plan) as model, Evaluator(model, plan, stop=stop) as evaluator:
        stop.set()
        with pytest.raises(AbortedError, match="interrupted"):
            evaluator.decode(TOKENS, 0, wanted=1)


def test_a_window_longer_than_the_context_is_an_error(dense: Path) -> None:
    plan = tiny_plan(n_ctx=256, n_ubatch=96)
    with Model.load(dense, plan) as model, Evaluator(model, plan) as evaluator:
        evaluator.decode(TOKENS, 0, wanted=1)
        evaluator.decode(TOKENS, 96, wanted=1)
        with pytest.raises(LlmcliError, match="failed to decode"):
            evaluator.decode(TOKENS, 192, wanted=1)


def test_closing_twice_is_harmless(dense: Path) -> None:
    plan = tiny_plan()
    with Model.load(dense, plan) as model:
        evaluator = Evaluator(model, plan)
        evaluator.close()
        evaluator.close()


class TestOpen:
    @pytest.fixture(autouse=True)
    def _known_build(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "check_build", lambda settings: EngineBuild("0" * 64))

    def test_the_piece_is_the_one_asked_for(self, dense: Path) -> None:
        request = Request(n_ctx=128, n_threads=1)
        with open_evaluator(str(dense), request, load(), Notes(), piece_tokens=128) as opened:
            assert (opened.evaluator.n_piece, opened.plan.n_ctx) == (128, 128)
            assert opened.resolved.name == "dense"
            assert opened.load_s > 0

    def test_minus_ub_beats_it(self, dense: Path) -> None:
        request = Request(n_ctx=128, n_ubatch=48, n_threads=1)
        with open_evaluator(str(dense), request, load(), Notes(), piece_tokens=128) as opened:
            assert opened.evaluator.n_piece == 48

    def test_a_stop_before_it_is_loaded(self, dense: Path) -> None:
        stop = StopFlag()
        stop.set()
        opening = open_evaluator(
            str(dense), Request(n_ctx=128, n_threads=1), load(), Notes(), piece_tokens=128, stop=stop
        )
        with pytest.raises(UserInterruptError), opening:
            pytest.fail("it opened")


@pytest.mark.parametrize(
    ("n_vocab", "most", "expected"), [(32_000, 512, 512), (152_064, 512, 384), (262_144, 512, 256), (10**7, 512, 64)]
)
def test_a_large_vocabulary_makes_smaller_pieces(n_vocab: int, most: int, expected: int) -> None:
    assert module._piece(n_vocab, most) == expected
