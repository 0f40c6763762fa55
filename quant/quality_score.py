"""What a model's logits say about the next token of a text, alone and against another model: llama-perplexity's method.

Of the base model the log-probabilities are kept in 16 bits each, from the likeliest down to e^-16 of it, as
llama-perplexity keeps them; tokens less likely than e^-16 count for nothing in the divergence. Each row of logits is
worked on by itself, in buffers that fit a core's cache: whole-array steps would wait for memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcli.base.errors import ModelError

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
_DEPTH = 16.0  # natural logarithms below the likeliest token
_STEPS = 65535.0
_BYTES_PER_CODE = 2


@dataclass(frozen=True, slots=True)
class BaseScores:
    """The base model's log-probabilities after each scored position of a piece: `least + scale * code`.

    nll         negative log-likelihood of the token that follows
    nll_coded   the same as the codes have it: never more than that of the least likely token that they tell apart
    """

    codes: NDArray[np.uint16]
    scale: Floats
    least: Floats
    nll: Doubles
    nll_coded: Doubles

    @property
    def nbytes(self) -> int:
        """Memory that it takes, near enough."""
        return self.codes.nbytes


@dataclass(frozen=True, slots=True)
class Scores:
    """A model against the base, one value for each scored position.

    nll, nll_base   negative log-likelihood of the token that follows
    kld             divergence from the base's distribution to the model's, in natural logarithms
    dp              probability of the token that follows, the model's less the base's
    same_top        both find the same token likeliest
    """

    nll: Doubles
    nll_base: Doubles
    kld: Doubles
    dp: Doubles
    same_top: NDArray[np.bool_]


class Scorer:
    """Works on rows of `n_vocab` logits, in buffers of its own."""

    def __init__(self, n_vocab: int) -> None:
        self._shifted, self._exps, self._work = (np.empty(n_vocab, np.float32) for _ in range(3))
        self._flags = np.empty(n_vocab, np.bool_)
        self.row_bytes = n_vocab * _BYTES_PER_CODE

    def nll(self, logits: Floats, following: NDArray[np.int64]) -> Doubles:
        """The negative log-likelihood of the token that follows each row."""
        return np.array([self._nll(row, token) for row, token in zip(logits, following, strict=True)])

    def _nll(self, row: Floats, token: int) -> float:
        return self._lse(row) - float(self._shifted[token])

    def _lse(self, row: Floats) -> float:
        """log(sum(exp(row - max))); leaves row - max in _shifted and its exponential in _exps."""
        np.subtract(row, row.max(), out=self._shifted)
        np.exp(self._shifted, out=self._exps)
        lse = float(np.log(np.add.reduce(self._exps)))
        if not np.isfinite(lse):
            raise ModelError("the model computes logits that are no finite numbers")
        return lse

    def encode(self, logits: Floats, following: NDArray[np.int64]) -> BaseScores:
        """The base's side of a comparison."""
        count = len(following)
        codes = np.empty((count, logits.shape[1]), np.uint16)
        scale, least, nll = np.empty(count, np.float32), np.empty(count, np.float32), np.empty(count)
        for i, row in enumerate(logits):
            lse = self._lse(row)
            nll[i] = lse - float(self._shifted[following[i]])
            depth = min(-float(self._shifted.min()), _DEPTH)
            least[i], scale[i] = -depth - lse, depth / _STEPS
            self._write_codes(codes[i], depth)
        chosen = codes[np.arange(count), following]
        return BaseScores(codes, scale, least, nll, -(scale * chosen + least).astype(np.float64))

    def _write_codes(self, out: NDArray[np.uint16], depth: float) -> None:
        if not depth:  # all tokens alike
            out[:] = 0
            return
        work = self._work
        np.multiply(self._shifted, np.float32(_STEPS / depth), out=work)
        np.add(work, np.float32(_STEPS + 0.5), out=work)  # the conversion cuts off, so this rounds
        np.maximum(work, np.float32(0), out=work)
        np.copyto(out, work, casting="unsafe")

    def score(self, logits: Floats, following: NDArray[np.int64], base: BaseScores) -> Scores:
        """The model's side, against what `encode` gave for the same positions."""
        count = len(following)
        nll, kld = np.empty(count), np.empty(count)
        same_top = np.empty(count, np.bool_)
        with np.errstate(invalid="ignore"):
            for i, row in enumerate(logits):
                lse = self._lse(row)
                nll[i] = lse - float(self._shifted[following[i]])
                same_top[i] = row.argmax() == base.codes[i].argmax()
                kld[i] = self._divergence(base, i, lse)
        dp = np.exp(-nll) - np.exp(-base.nll_coded)
        return Scores(nll, base.nll_coded, kld, dp, same_top)

    def _divergence(self, base: BaseScores, i: int, lse: float) -> float:
        """sum(p * (log p - log q)) with p the base's; q's shifted logits are in _shifted."""
        log_p, p = self._work, self._exps
        np.multiply(base.codes[i], base.scale[i], out=log_p)
        np.add(log_p, base.least[i], out=log_p)
        np.exp(log_p, out=p)
        np.greater(log_p, np.float32(-_DEPTH), out=self._flags)
        np.multiply(p, self._flags, out=p)
        np.subtract(log_p, self._shifted, out=log_p)
        # log q = shifted - lse: the constant goes in here, where it cancels most of what is large
        np.add(log_p, np.float32(lse), out=log_p)
        np.multiply(p, log_p, out=p)
        found = float(np.add.reduce(p))
        if np.isnan(found):  # a token that is impossible for both: 0 times infinity
            found = float(np.add.reduce(p, where=self._flags))
        return found


def rows(logits: Any, n_vocab: int) -> Floats:
    """A C array of [positions][n_vocab] floats as numpy sees it, not copied."""
    return np.frombuffer(logits, np.float32).reshape(-1, n_vocab)
