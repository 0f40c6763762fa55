"""From scores to figures, by hand and by the textbook."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmcli.quant.quality_score import Scores
from llmcli.quant.quality_stats import join, perplexity, versus


def scores(nll: list[float], base: list[float], kld: list[float], dp: list[float], same: list[bool]) -> Scores:
    return Scores(np.array(nll), np.array(base), np.array(kld), np.array(dp), np.array(same))


def test_perplexity_and_its_error() -> None:
    found = perplexity(np.array([1.0, 2.0, 3.0]))
    assert found.ppl == pytest.approx(math.exp(2))
    assert found.ppl_error == pytest.approx(math.exp(2) * math.sqrt((2 / 3) / 2))
    assert found.n_scored == 3


def test_one_token_has_no_error() -> None:
    assert perplexity(np.array([1.5])).ppl_error == 0
    assert perplexity(np.array([2.0, 2.0])).ppl_error == 0


def test_figures_against_the_base() -> None:
    found = versus(
        scores([2, 4, 3, 5], [1, 4, 3, 4], [0.1, 0.2, 0.3, 0.6], [0.0, 0.3, -0.4, 0.0], [True, True, False, True])
    )
    assert found.ppl_base == pytest.approx(math.exp(3))
    assert found.ppl_ratio == pytest.approx(math.exp(0.5))
    assert found.ppl_delta == pytest.approx(math.exp(3.5) - math.exp(3))
    assert (found.kld_mean, found.kld_median, found.kld_max) == pytest.approx((0.3, 0.25, 0.6))
    assert found.kld_p90 == pytest.approx(0.3 + 0.7 * 0.3)
    assert found.kld_p99 == pytest.approx(0.3 + 0.97 * 0.3)
    assert found.rms_dp_percent == pytest.approx(25)
    assert found.mean_dp_percent == pytest.approx(-2.5)
    assert found.same_top_percent == 75
    assert found.same_top_error_percent == pytest.approx(100 * math.sqrt(0.75 * 0.25 / 3))


def test_what_both_share_is_no_error_of_the_ratio() -> None:
    """The model is worse by the same factor everywhere: that is certain, however unsure both perplexities are."""
    base = [1.0, 2.0, 3.0, 4.0]
    found = versus(scores([x + 0.1 for x in base], base, [0.1] * 4, [0.0] * 4, [True] * 4))
    assert found.ppl_ratio == pytest.approx(math.exp(0.1))
    assert found.ppl_ratio_error == pytest.approx(0, abs=1e-7)
    assert found.kld_error == pytest.approx(0, abs=1e-7)
    assert (found.rms_dp_percent, found.rms_dp_error_percent) == (0, 0)


def test_the_error_of_the_ratio_is_that_of_the_differences() -> None:
    rng = np.random.default_rng(3)
    nll, base = rng.random(200) * 3, rng.random(200) * 3
    found = versus(scores(nll.tolist(), base.tolist(), [0.1] * 200, [0.0] * 200, [True] * 200))
    spread = np.std(nll - base) / math.sqrt(199)
    assert found.ppl_ratio_error == pytest.approx(found.ppl_ratio * spread)


def test_join_keeps_the_order() -> None:
    a = scores([1], [2], [3], [4], [True])
    b = scores([5, 6], [7, 8], [9, 10], [11, 12], [False, True])
    whole = join([a, b])
    assert whole.nll.tolist() == [1, 5, 6]
    assert whole.kld.tolist() == [3, 9, 10]
    assert whole.same_top.tolist() == [True, False, True]
