"""A GBNF grammar that watches over the tokens: llama.cpp's own grammar sampler, with its traps fenced off.

llama.cpp ends the process when a token is accepted that the grammar does not allow, so nothing is accepted here that
was not tested before. Some ambiguous grammars make one step take minutes and cannot be told beforehand: a step that
takes too long ends the answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import Any

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.engine import native
from llmcli.engine.context import Context
from llmcli.engine.gbnf import check_grammar
from llmcli.engine.tokenizer import Tokenizer

_FORBIDDEN = float("-inf")
_MOST_STEP_S = 5.0


class Grammar:
    """The state of one grammar in one answer. Use `close`, or let the sampler do it."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        """Raises UsageError where the text is no grammar, or names tokens that this vocabulary lacks."""

        def is_token(piece: str) -> bool:
            return len(tokenizer.tokenize(piece, parse_special=True)) == 1

        check_grammar(text, source="the grammar", is_token=is_token, n_vocab=tokenizer.n_vocab)
        self._lib, self._tokenizer = native.lib(), tokenizer
        native.LOG.clear()
        self._handle = self._lib.llama_sampler_init_grammar(tokenizer.handle, text.encode("utf-8"), b"root")
        if not self._handle:
            raise UsageError(f"llama.cpp refuses the grammar: {native.LOG.last_error() or 'no reason given'}")

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        row = (self._lib.llama_token_data * 1)(self._lib.llama_token_data(token, 1.0, 0.0))
        self._apply(row)
        return bool(row[0].logit != _FORBIDDEN)

    def restrict(self, rows: Any) -> None:
        """Set the logit of every candidate that may not come next to minus infinity."""
        self._apply(rows)

    def is_complete(self) -> bool:
        """Whether the text may end here; True for a vocabulary that cannot say so (no end-of-generation token)."""
        ends = self._tokenizer.end_ids
        return not ends or any(self.allows(token) for token in ends)

    def accept(self, token: int) -> None:
        """Go on behind `token`, which must be allowed."""
        begun = time.monotonic()
        self._lib.llama_sampler_accept(self._handle, token)
        _check_time(begun)

    def _apply(self, rows: Any) -> None:
        begun = time.monotonic()
        apply_sampler(self._handle, rows)
        _check_time(begun)

    def close(self) -> None:
        """Free the native grammar."""
        if self._handle:
            self._lib.llama_sampler_free(self._handle)
            self._handle = None

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # an instance whose __init__ failed
            self.close()


def candidates(context: Context) -> Any:
    """Every token with its logit after the last decode: a C array of n_vocab llama_token_data (id, logit, p)."""
    # The import takes 0.1 s and is paid only where a grammar is used; a loop in Python would take 30 ms a token.
    import numpy as np

    logits = context.logits()
    table = np.zeros(len(logits), dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    table["id"] = np.arange(len(logits), dtype=np.int32)
    table["logit"] = np.ctypeslib.as_array(logits)
    return (native.lib().llama_token_data * len(logits)).from_buffer(table)


def apply_sampler(sampler: Any, rows: Any) -> tuple[int, float] | None:
    """Run a sampler over the rows in place; (id, logit) of what it selected, None where it selects nothing."""
    lib = native.lib()
    table = lib.llama_token_data_array(
        data=ctypes.cast(rows, ctypes.POINTER(lib.llama_token_data)), size=len(rows), selected=-1, sorted=False
    )
    lib.llama_sampler_apply(sampler, ctypes.byref(table))
    if not 0 <= table.selected < table.size:
        return None
    chosen = table.data[table.selected]
    return int(chosen.id), float(chosen.logit)


def _check_time(begun: float) -> None:
    if (taken := time.monotonic() - begun) > _MOST_STEP_S:
        raise LlmcliError(
            f"the grammar is too ambiguous: one token took {taken:.0f} s", hint="give each text one way to be read"
        )
