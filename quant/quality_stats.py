"""From scores to figures: perplexity, divergence and the rest with their standard errors, as llama-perplexity does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmcli.quant.quality_score import Doubles, Scores


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log-likelihood, its standard error, and of how many tokens."""

    ppl: float
    ppl_error: float
    n_scored: int


@dataclass(frozen=True, slots=True)
class Versus:
    """A model against a base. The divergences are in natural logarithms, the probabilities in percent."""

    ppl_base: float
    ppl_ratio: float
    ppl_ratio_error: float
    ppl_delta: float
    ppl_delta_error: float
    kld_mean: float
    kld_error: float
    kld_median: float
    kld_p90: float
    kld_p99: float
    kld_p999: float
    kld_max: float
    mean_dp_percent: float
    rms_dp_percent: float
    rms_dp_error_percent: float
    same_top_percent: float
    same_top_error_percent: float


def perplexity(nll: Doubles) -> Perplexity:
    """The perplexity of these log-likelihoods."""
    mean, error = _mean(nll)
    ppl = math.exp(mean)
    return Perplexity(ppl, ppl * error, len(nll))


def versus(scores: Scores) -> Versus:
    """Every figure against the base."""
    mean, error = _mean(scores.nll)
    base_mean, base_error = _mean(scores.nll_base)
    shared = _covariance_of_means(scores.nll, scores.nll_base)
    ratio, ppl, ppl_base = math.exp(mean - base_mean), math.exp(mean), math.exp(base_mean)
    kld, kld_error = _mean(scores.kld)
    square, square_error = _mean(scores.dp**2)
    rms = math.sqrt(square)
    top = float(scores.same_top.mean())
    percentile = _percentiles(scores.kld)
    return Versus(
        ppl_base=ppl_base,
        ppl_ratio=ratio,
        ppl_ratio_error=ratio * _difference_error(error, base_error, shared),
        ppl_delta=ppl - ppl_base,
        ppl_delta_error=_difference_error(ppl * error, ppl_base * base_error, ppl * ppl_base * shared),
        kld_mean=kld,
        kld_error=kld_error,
        kld_median=percentile[0],
        kld_p90=percentile[1],
        kld_p99=percentile[2],
        kld_p999=percentile[3],
        kld_max=float(scores.kld.max()),
        mean_dp_percent=100 * float(scores.dp.mean()),
        rms_dp_percent=100 * rms,
        rms_dp_error_percent=100 * square_error / (2 * rms) if rms else 0.0,
        same_top_percent=100 * top,
        same_top_error_percent=100 * math.sqrt(top * (1 - top) / max(1, len(scores.kld) - 1)),
    )


def join(parts: Sequence[Scores]) -> Scores:
    """The scores of consecutive pieces as one."""
    return Scores(
        nll=np.concatenate([part.nll for part in parts]),
        nll_base=np.concatenate([part.nll_base for part in parts]),
        kld=np.concatenate([part.kld for part in parts]),
        dp=np.concatenate([part.dp for part in parts]),
        same_top=np.concatenate([part.same_top for part in parts]),
    )


def _percentiles(values: Doubles) -> list[float]:
    found: NDArray[np.float64] = np.quantile(values, [0.5, 0.9, 0.99, 0.999])
    return [float(value) for value in found]


def _mean(values: Doubles) -> tuple[float, float]:
    """The mean and its standard error; 0 where there are too few values to tell."""
    mean = float(values.mean())
    spread = float((values * values).mean()) - mean * mean
    return mean, math.sqrt(spread / (len(values) - 1)) if spread > 0 and len(values) > 1 else 0.0


def _covariance_of_means(a: Doubles, b: Doubles) -> float:
    return (float((a * b).mean()) - float(a.mean()) * float(b.mean())) / max(1, len(a) - 1)


def _difference_error(a: float, b: float, shared: float) -> float:
    """Of a - b, where both were measured on the same tokens."""
    return math.sqrt(max(0.0, a * a + b * b - 2 * shared))
