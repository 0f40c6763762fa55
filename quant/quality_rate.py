"""How fast a model reads and writes, measured beside its quality: one run by the clock, on this machine, as it is."""

from __future__ import annotations

import time
from dataclasses import dataclass

from llmcli.engine.evaluator import Evaluator

_PROMPT_TOKENS, _DECODE_TOKENS = 128, 32


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second: a prompt at once, and each by itself as in an answer."""

    prefill_tok_s: float
    decode_tok_s: float


def measure_rates(evaluator: Evaluator, tokens: list[int]) -> Rates:
    """Read and write the first of `tokens`, those of a window; the model has worked before, and is warm."""
    n_prompt = min(_PROMPT_TOKENS, len(tokens) // 2, evaluator.n_piece)
    n_decoded = min(_DECODE_TOKENS, len(tokens) - n_prompt)
    evaluator.clear()
    begun = time.perf_counter()
    evaluator.decode(tokens[:n_prompt], 0, wanted=1)
    evaluator.settle()
    read = time.perf_counter()
    for position in range(n_prompt, n_prompt + n_decoded):
        evaluator.decode(tokens[position : position + 1], position, wanted=1)
    evaluator.settle()
    written = time.perf_counter()
    return Rates(n_prompt / (read - begun), n_decoded / (written - read))
