"""The arithmetic of perplexity and divergence, against the same in 64-bit floats over the whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax

from llmcli.base.errors import ModelError
from llmcli.quant.quality_score import Scorer

Logits = NDArray[np.float32]


def drawn(seed: int, rows: int = 9, n_vocab: int = 1000, spread: float = 4.0) -> Logits:
    return (np.random.default_rng(seed).standard_normal((rows, n_vocab)) * spread).astype(np.float32)


def followers(seed: int, rows: int = 9, n_vocab: int = 1000) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, n_vocab, rows)


@given(seed=st.integers(0, 10**6), spread=st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]))
@settings(max_examples=30, deadline=None)
def test_nll_is_that_of_a_softmax(seed: int, spread: float) -> None:
    logits, following = drawn(seed, spread=spread), followers(seed)
    expected = -log_softmax(logits.astype(np.float64), axis=1)[np.arange(9), following]
    np.testing.assert_allclose(Scorer(1000).nll(logits, following), expected, rtol=1e-5, atol=1e-5)


def test_two_tokens_by_hand() -> None:
    scorer, logits = Scorer(2), np.array([[0.0, np.log(3)]], np.float32)
    assert scorer.nll(logits, np.array([0])) == pytest.approx([np.log(4)], rel=1e-6)
    base = scorer.encode(np.array([[np.log(3), 0.0]], np.float32), np.array([0]))
    assert base.nll == pytest.approx([np.log(4 / 3)], rel=1e-6)
    scores = scorer.score(logits, np.array([0]), base)
    # p = (3/4, 1/4), q = (1/4, 3/4)
    assert scores.kld == pytest.approx([0.75 * np.log(3) - 0.25 * np.log(3)], rel=1e-4)
    assert scores.dp == pytest.approx([0.25 - 0.75], rel=1e-4)
    assert scores.same_top.tolist() == [False]


def exact_divergence(base: Logits, other: Logits) -> NDArray[np.float64]:
    log_p, log_q = (log_softmax(x.astype(np.float64), axis=1) for x in (base, other))
    kept = log_p > -16
    result: NDArray[np.float64] = (np.exp(log_p) * (log_p - log_q) * kept).sum(axis=1)
    return result


@given(seed=st.integers(0, 10**6), spread=st.sampled_from([0.1, 1.0, 3.0]), noise=st.sampled_from([0.01, 0.1, 1.0]))
@settings(max_examples=30, deadline=None)
def test_divergence_is_that_of_the_definition(seed: int, spread: float, noise: float) -> None:
    base = drawn(seed, spread=spread)
    other = base + drawn(seed + 1, spread=noise)
    scorer, following = Scorer(1000), followers(seed)
    scores = scorer.score(other, following, scorer.encode(base, following))
    np.testing.assert_allclose(scores.kld, exact_divergence(base, other), rtol=2e-3, atol=1e-4)
    p, q = (np.exp(log_softmax(x.astype(np.float64), axis=1))[np.arange(9), following] for x in (base, other))
    np.testing.assert_allclose(scores.dp, q - p, rtol=2e-2, atol=2e-4)
    assert scores.same_top.tolist() == (base.argmax(axis=1) == other.argmax(axis=1)).tolist()


def test_a_model_has_no_distance_from_itself() -> None:
    scorer, logits, following = Scorer(1000), drawn(5), followers(5)
    scores = scorer.score(logits, following, scorer.encode(logits, following))
    np.testing.assert_allclose(scores.kld, 0, atol=5e-5)  # what 16 bits leave of it
    assert scores.same_top.all()


def test_codes_reach_from_the_likeliest_down_to_e_to_minus_16_of_it() -> None:
    logits = np.array([[0.0, -8.0, -16.0, -40.0]], np.float32)
    base = Scorer(4).encode(logits, np.array([3]))
    assert base.codes.tolist() == [[65535, 32768, 0, 0]]
    assert base.nll_coded == pytest.approx([16 + np.log(1 + np.exp(-8))], abs=1e-4)
    assert base.nll == pytest.approx([40 + np.log(1 + np.exp(-8))], abs=1e-4)
    assert base.nbytes == 8


def test_equal_logits_are_an_even_distribution() -> None:
    logits = np.full((1, 8), 2.5, np.float32)
    scorer = Scorer(8)
    base = scorer.encode(logits, np.array([2]))
    assert base.nll_coded == pytest.approx([np.log(8)], rel=1e-6)
    assert scorer.score(logits, np.array([2]), base).kld == pytest.approx([0], abs=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(value: float) -> None:
    logits = drawn(1)
    logits[3, 7] = value
    with np.errstate(invalid="ignore"), pytest.raises(ModelError, match="no finite numbers"):
        Scorer(1000).nll(logits, followers(1))


def test_a_token_that_is_forbidden_is_fine_as_long_as_it_does_not_come() -> None:
    logits = drawn(1)
    logits[:, 7] = -np.inf
    scorer, following = Scorer(1000), np.full(9, 3)
    assert np.isfinite(scorer.nll(logits, following)).all()
    other = drawn(2)
    other[:, 7] = -np.inf
    expected = exact_divergence(np.delete(logits, 7, axis=1), np.delete(other, 7, axis=1))
    found = scorer.score(other, following, scorer.encode(logits, following)).kld
    np.testing.assert_allclose(found, expected, rtol=2e-3)
