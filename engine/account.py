"""What is told about an answer alike by `run` and by a chat: how fast, with which settings, and what cut it off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmcli.base.units import format_count
from llmcli.engine.reasoning import visible_texts
from llmcli.engine.sampling import Sampling

if TYPE_CHECKING:
    from llmcli.engine.context import Context
    from llmcli.engine.generate import FinishReason
    from llmcli.engine.tokenizer import Tokenizer


class ContextLimit:
    """The end of the context as the end of an answer. Made before the answer: afterwards the context may be closed.

    shifts   the answer goes on behind a full context, where the model's memory can
    """

    def __init__(self, context: Context, *, shifts: bool) -> None:
        shift = "" if shifts or not context.can_shift() else ", or --on-overflow shift"
        self._note = f"cut off: the context of {format_count(context.n_ctx, 'token')} is full (a larger -c{shift})"

    def note(self, reason: FinishReason, most: int | None, count: int) -> str | None:
        """That the context ended an answer of `count` tokens, and not the limit `most`, and what moves the context's
        end; None where it did not.
        """
        return self._note if reason == "length" and (most is None or count < most) else None


def visible_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Control tokens whose text marks thinking: they must be seen by the splitter."""
    texts = {token: tokenizer.text_of(token) for token in tokenizer.special.control}
    wanted = visible_texts(texts.values())
    return frozenset(token for token, text in texts.items() if text in wanted)


def sampler_json(sampling: Sampling) -> dict[str, Any]:
    """The settings that decide the choice of tokens, for `--json`."""
    names = ("temp", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "mirostat")
    return {name: getattr(sampling, name) for name in names} | {"grammar": sampling.grammar is not None}


def rate(tokens_per_second: float | None) -> str:
    """The rate in parentheses, ` (123 tok/s)`; nothing where there is none."""
    return f" ({tokens_per_second:.0f} tok/s)" if tokens_per_second else ""
