"""How fast a model reads and writes, measured beside its quality: the clock of one run on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

from llmcli.engine.evaluator import Evaluator

_PROMPT_TOKENS, _DECODE_TOKENS = 16, 32


@dataclass(slots=True)
class Stopwatch:
    """Time spent on reading without logits, as a prefill does; the first piece of a run warms up and is left out."""

    n_tokens: int = 0
    seconds: float = 0.0
    is_warm: bool = False

    def add(self, n_tokens: int, seconds: float) -> None:
        """One piece was read."""
        if self.is_warm:
            self.n_tokens += n_tokens
            self.seconds += seconds
        self.is_warm = True

    @property
    def tok_s(self) -> float | None:
        """The prefill rate, None where too little was read."""
        return self.n_tokens / self.seconds if self.seconds else None


def decode_rate(evaluator: Evaluator, tokens: list[int]) -> float:
    """Tokens a second where each is computed by itself, as in an answer; the tokens are those of the text."""
    evaluator.clear()
    evaluator.decode(tokens[:_PROMPT_TOKENS], 0, wanted=1)
    count = min(_DECODE_TOKENS, len(tokens) - _PROMPT_TOKENS)
    begun = time.perf_counter()
    for position in range(_PROMPT_TOKENS, _PROMPT_TOKENS + count):
        evaluator.decode(tokens[position : position + 1], position, wanted=1)
    evaluator.settle()
    return count / (time.perf_counter() - begun)
