"""Choosing the next token: llama.cpp's own sampler chain, in the order its command-line tools use.

logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature, then a seeded draw; with
temperature 0 the greatest logit right after DRY; with mirostat, temperature and mirostat alone.
A grammar stands beside the chain: the chain's choice is taken if the grammar allows it, and only otherwise is the
grammar applied to the whole vocabulary (the way llama.cpp's tools do it; first-all is ten times slower on 50,000
tokens).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.records import dataclass
from llmcli.engine import native
from llmcli.engine.context import Context
from llmcli.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llmcli.engine.grammar import Grammar

_RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED: "draw one"; never passed on, since the seed used must be reported
_FORBIDDEN = float("-inf")
_MIROSTAT_M = 100  # tokens behind the estimate of s_hat, as in the paper (arxiv.org/abs/2007.14966)
_DRY_BREAKERS = ("\n", ":", '"', "*")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. The defaults are llama.cpp's; 0, or 1 for repeat_penalty and top_p, switches a
    part off.
    """

    seed: int = _RANDOM_SEED
    temp: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    top_n_sigma: float = -1.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_breakers: tuple[str, ...] = _DRY_BREAKERS
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    grammar: str | None = None

    @property
    def penalizes(self) -> bool:
        """Whether any part looks at the tokens before the answer."""
        penalties = self.repeat_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        return penalties or self.dry_multiplier != 0.0


def concrete_seed(seed: int | None) -> int:
    """`seed`, or a fresh random one where it is None: 32 bits, never the value that means `random` to llama.cpp."""
    return int.from_bytes(os.urandom(4), "little") % _RANDOM_SEED if seed in (None, _RANDOM_SEED) else seed


def _window(asked: int, n_ctx: int) -> int:
    """The tokens a penalty looks back on: the context at most, because llama.cpp allocates all of them at once."""
    return n_ctx if asked < 0 else min(asked, n_ctx)


class Sampler:
    """A sampler chain for one answer. Use as a context manager, or call `close`."""

    def __init__(self, settings: Sampling, tokenizer: Tokenizer, n_ctx: int) -> None:
        """Build the chain. Raises UsageError where llama.cpp refuses the grammar."""
        self._lib, self._tokenizer, self.settings = native.lib(), tokenizer, settings
        self._grammar = None if settings.grammar is None else _grammar(settings.grammar, tokenizer)
        self._chain = self._lib.llama_sampler_chain_init(self._lib.llama_sampler_chain_default_params())
        for part in self._parts(n_ctx):
            self._lib.llama_sampler_chain_add(self._chain, part)

    def _parts(self, n_ctx: int) -> list[Any]:
        s, lib = self.settings, self._lib
        seed = concrete_seed(s.seed)
        head = [*self._bias(), *self._penalties(n_ctx)]
        if s.temp <= 0:
            return [*head, lib.llama_sampler_init_greedy()]
        if s.mirostat == 1:
            tail = lib.llama_sampler_init_mirostat(
                self._tokenizer.n_vocab, seed, s.mirostat_tau, s.mirostat_eta, _MIROSTAT_M
            )
            return [*head, lib.llama_sampler_init_temp(s.temp), tail]
        if s.mirostat == 2:
            tail = lib.llama_sampler_init_mirostat_v2(seed, s.mirostat_tau, s.mirostat_eta)
            return [*head, lib.llama_sampler_init_temp(s.temp), tail]
        return [*head, *self._filters(seed), lib.llama_sampler_init_temp(s.temp), lib.llama_sampler_init_dist(seed)]

    def _filters(self, seed: int) -> list[Any]:
        s, lib = self.settings, self._lib
        wanted: tuple[tuple[bool, Callable[[], Any]], ...] = (
            (s.top_n_sigma > 0, lambda: lib.llama_sampler_init_top_n_sigma(s.top_n_sigma)),
            (s.top_k > 0, lambda: lib.llama_sampler_init_top_k(s.top_k)),
            (s.typical_p < 1, lambda: lib.llama_sampler_init_typical(s.typical_p, 1)),
            (s.top_p < 1, lambda: lib.llama_sampler_init_top_p(s.top_p, 1)),
            (s.min_p > 0, lambda: lib.llama_sampler_init_min_p(s.min_p, 1)),
            (s.xtc_probability > 0, lambda: lib.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 1, seed)),
        )
        return [make() for on, make in wanted if on]

    def _bias(self) -> list[Any]:
        bias = dict(self.settings.logit_bias)
        if strangers := [token for token in bias if not 0 <= token < self._tokenizer.n_vocab]:
            most = self._tokenizer.n_vocab - 1
            raise UsageError(f"-l {strangers[0]}: this model's token ids end at {most:,}", hint="see llmcli tokenize")
        if self.settings.ignore_eos:
            bias.update(dict.fromkeys(self._tokenizer.end_ids, float("-inf")))
        if not bias:
            return []
        rows = (self._lib.llama_logit_bias * len(bias))(*bias.items())
        return [self._lib.llama_sampler_init_logit_bias(self._tokenizer.n_vocab, len(bias), rows)]

    def _penalties(self, n_ctx: int) -> list[Any]:
        s, lib, parts = self.settings, self._lib, []
        if s.repeat_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0:
            last_n = _window(s.repeat_last_n, n_ctx)
            parts.append(
                lib.llama_sampler_init_penalties(
                    self._tokenizer.n_vocab, last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
                )
            )
        if s.dry_multiplier != 0.0:
            breakers = [text.encode("utf-8") for text in s.dry_breakers]
            last_n = _window(s.dry_penalty_last_n, n_ctx)
            parts.append(
                lib.llama_sampler_init_dry(
                    self._tokenizer.handle,
                    s.dry_multiplier,
                    s.dry_base,
                    s.dry_allowed_length,
                    last_n,
                    (ctypes.c_char_p * len(breakers))(*breakers),
                    len(breakers),
                )
            )
        return parts

    def see_prompt(self, tokens: Sequence[int]) -> None:
        """Let the penalties count the prompt's tokens too; does nothing where no penalty is on."""
        if self.settings.penalizes:
            for token in tokens:
                self._lib.llama_sampler_accept(self._chain, token)

    def sample(self, context: Context) -> int | None:
        """The next token after the last decoded one, accepted into penalties and grammar.

        None where the grammar is complete and the settings forbid the token that would say so.
        Raises LlmcliError where the grammar allows nothing that this vocabulary has.
        """
        if self._grammar is None:
            return int(self._lib.llama_sampler_sample(self._chain, context.handle, -1))
        token = self._choose(context, self._grammar)
        if token is not None:
            self._lib.llama_sampler_accept(self._chain, token)
            self._grammar.accept(token)
        return token

    def _choose(self, context: Context, grammar: Grammar) -> int | None:
        from llmcli.engine.grammar import apply_sampler, candidates

        chosen = apply_sampler(self._chain, candidates(context))
        if chosen is not None and grammar.allows(chosen[0]):
            return chosen[0]
        rows = candidates(context)
        grammar.restrict(rows)
        chosen = apply_sampler(self._chain, rows)
        if chosen is not None and chosen[1] != _FORBIDDEN:
            return chosen[0]
        if grammar.is_complete():
            return None
        raise LlmcliError("the grammar allows no further token of this model's vocabulary")

    def close(self) -> None:
        """Free the chain and the grammar."""
        if self._chain:
            self._lib.llama_sampler_free(self._chain)
            self._chain = None
        if self._grammar:
            self._grammar.close()

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # an instance whose __init__ failed
            self.close()


def _grammar(text: str, tokenizer: Tokenizer) -> Grammar:
    from llmcli.engine.grammar import Grammar  # with its checker 10 ms, for those who use one

    return Grammar(text, tokenizer)
