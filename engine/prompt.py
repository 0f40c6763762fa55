"""From what the user gave to the token ids that are decoded, and what happens when they do not fit.

In a chat the parts form one user message, rendered by the model's template; with --raw they are the text itself.
Nothing is ever cut in silence: the policy `error` refuses, `middle` and `shift` cut the user's text and say how much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from llmcli.base.errors import ContextOverflowError, UsageError
from llmcli.base.records import dataclass
from llmcli.base.units import format_count
from llmcli.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llmcli.engine.chat_template import ChatTemplate, RenderedPrompt

Overflow = Literal["error", "shift", "middle"]
PartKind = Literal["file", "stdin", "argument"]
# What `middle` puts where text was taken out, so that the model can see the gap.
_GAP = "\n[…]\n"
# Share of the context kept for the answer when a prompt is cut and -n does not say how much it will be.
_ANSWER_SHARE = 4
_MOST_TRIES = 8


@dataclass(frozen=True, slots=True)
class PromptPart:
    """One piece of the prompt and where it came from."""

    kind: PartKind
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """What is to be asked. `template` None is raw completion: no roles, no system prompt, special tokens parsed."""

    parts: tuple[PromptPart, ...]
    system: str | None
    template: ChatTemplate | None


@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """The prompt as token ids, and what the reader of the answer must know about it.

    text   the same as text, without a BOS that the tokenizer adds
    ends   offsets in `text` behind which another prompt is likely to differ: end of the system prompt, of each part
    """

    ids: tuple[int, ...]
    reasoning_opened: bool
    notes: tuple[str, ...]
    text: str = ""
    ends: tuple[int, ...] = ()

    def boundaries(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """`ends` as numbers of tokens: how many lie wholly before each."""
        wanted = sorted(len(self.text[:end].encode("utf-8", "surrogatepass")) for end in self.ends)
        found: list[int] = []
        nbytes = 0
        start = 1 if tokenizer.adds_bos and not self.text.startswith(tokenizer.text_of(self.ids[0])) else 0
        for position, token in enumerate(self.ids[start:], start):
            nbytes += len(tokenizer.piece(token, special=True))
            while len(found) < len(wanted) and nbytes > wanted[len(found)]:
                found.append(position)
        return tuple(dict.fromkeys(found))


def fit_prompt(
    request: PromptRequest,
    tokenizer: Tokenizer,
    *,
    n_ctx: int,
    n_ctx_train: int,
    max_tokens: int | None,
    policy: Overflow | None,
    longest_token_bytes: int,
) -> BuiltPrompt:
    """The prompt, such that it leaves at least one place in a context of `n_ctx` tokens.

    policy                None: as "error", where the command has no --on-overflow to advise
    longest_token_bytes   the most text one token of this vocabulary stands for: tells a hopeless prompt without
                          tokenizing megabytes
    Raises ContextOverflowError naming both numbers where it does not fit and is not to be cut, or where the text around
    the user's own leaves no room.
    """
    body = _body(request)
    least = len(body.encode("utf-8", "surrogatepass")) // max(longest_token_bytes, 1)
    uncut = policy in (None, "error")
    if least >= n_ctx and uncut:
        raise _overflow(f"at least {format_count(least, 'token')}", n_ctx, n_ctx_train, None, policy)
    if least < n_ctx:
        built = _build(request, body, tokenizer)
        if not built.ids:  # llama.cpp would end the process: without a token there are no logits
            raise UsageError("the prompt has no tokens: the chat template, or the text with --raw, gives none")
        if len(built.ids) < n_ctx:
            return built
        if uncut:
            raise _overflow(format_count(len(built.ids), "token"), n_ctx, n_ctx_train, len(built.ids), policy)
    return _cut(request, body, tokenizer, n_ctx=n_ctx, max_tokens=max_tokens, policy=policy)


def joined_text(parts: Sequence[PromptPart], *, raw: bool) -> str:
    """The parts as one text: joined by blank lines; a single part of a raw prompt stays as it is.

    The one trailing newline that is taken from a raw file or stdin is the shell's and not the text's:
    `echo "Once upon a time" | llmcli run --raw`.
    """
    texts = [part.text for part in parts]
    if raw and len(texts) == 1:
        return texts[0] if parts[0].kind == "argument" else texts[0].removesuffix("\n")
    return "\n\n".join(text.rstrip("\n") for text in texts)


def _body(request: PromptRequest) -> str:
    return joined_text(request.parts, raw=request.template is None)


def _build(request: PromptRequest, body: str, tokenizer: Tokenizer) -> BuiltPrompt:
    if request.template is None:
        text = body if request.system is None else f"{request.system}\n\n{body}"
        ids = tokenizer.with_bos(tokenizer.tokenize(text, parse_special=True))
        return BuiltPrompt(tuple(ids), reasoning_opened=False, notes=(), text=text, ends=_part_ends(request, text))
    from llmcli.engine.chat_template import Message, prepare  # not for --raw

    messages = [Message("user", body)]
    if request.system is not None:
        messages.insert(0, Message("system", request.system))
    rendered = prepare(request.template, messages, tokenizer.control_texts)
    ids = tokenizer.tokenize_fragments((f.text, f.parse_special) for f in rendered.fragments)
    notes = ("this model's template has no system role: the system prompt went into the first user turn",)
    return BuiltPrompt(
        tuple(tokenizer.with_bos(ids)),
        reasoning_opened=rendered.reasoning_opened,
        notes=notes if rendered.system_merged else (),
        text=rendered.text,
        ends=_ends(request, rendered),
    )


def _ends(request: PromptRequest, rendered: RenderedPrompt) -> tuple[int, ...]:
    system = [rendered.message_ends[0]] if len(rendered.message_ends) > 1 else []
    return (*(end for end in system if end is not None), *_part_ends(request, rendered.text))


def _part_ends(request: PromptRequest, text: str) -> tuple[int, ...]:
    """Where each part but the last ends in `text`; those that are not found there, one after the other, are
    left out.
    """
    ends, position = [], 0
    for part in request.parts[:-1]:
        body = part.text.strip()
        if (found := text.find(body, position)) >= 0:
            position = found + len(body)
            ends.append(position)
    return tuple(ends)


def _overflow(
    count: str, n_ctx: int, n_ctx_train: int, exact: int | None, policy: Overflow | None
) -> ContextOverflowError:
    if exact is not None and exact < n_ctx_train:
        wanted = min(n_ctx_train, (exact + exact // 4 + 255) // 256 * 256)
        hint = f"-c {wanted}"
    else:
        hint = "shorten it"
    hint += ", or --on-overflow middle to cut it" if policy else ""
    return ContextOverflowError(f"the prompt has {count} and the context {n_ctx:,}", hint=hint)


def _cut(
    request: PromptRequest,
    body: str,
    tokenizer: Tokenizer,
    *,
    n_ctx: int,
    max_tokens: int | None,
    policy: Overflow | None,
) -> BuiltPrompt:
    """Take text out of the body, in the middle or at its start, until the rest leaves room for an answer."""
    answer = n_ctx // _ANSWER_SHARE if max_tokens is None else min(max_tokens, n_ctx // 2)
    frame, gap_tokens = len(_build(request, "", tokenizer).ids), len(tokenizer.tokenize(_GAP, parse_special=False))
    allowed = n_ctx - max(answer, 1) - frame
    for _ in range(_MOST_TRIES):
        if allowed < 1:
            break
        # The mark of the gap takes room itself; where there is none for it, the end is worth more than the beginning.
        middle = policy == "middle" and allowed > gap_tokens + 1
        kept = (_without_middle if middle else _tail)(body, allowed - gap_tokens * middle, tokenizer)
        built = _build(request, kept, tokenizer)
        if len(built.ids) <= n_ctx - max(answer, 1):
            lost = len(body) - len(kept) + len(_GAP) * middle
            where = "middle" if middle else "start"
            note = f"the prompt did not fit: {lost:,} of its {len(body):,} characters were dropped from the {where}"
            return replace(built, notes=(*built.notes, note))
        allowed -= len(built.ids) - (n_ctx - max(answer, 1))
    raise ContextOverflowError(
        f"the system prompt and the template alone have {frame:,} tokens, and the context {n_ctx:,}",
        hint="a larger -c, or a shorter -sys",
    )


def _without_middle(body: str, count: int, tokenizer: Tokenizer) -> str:
    """Beginning and end of at most `count` tokens together (at least 2), and the mark of the gap between them."""
    head = _longest(lambda n: body[:n], len(body), count // 2, tokenizer)
    return head + _GAP + _tail(body[len(head) :], count - count // 2, tokenizer)


def _tail(body: str, count: int, tokenizer: Tokenizer) -> str:
    return _longest(lambda n: body[len(body) - n :], len(body), count, tokenizer)


def _longest(take: Callable[[int], str], most: int, count: int, tokenizer: Tokenizer) -> str:
    """The longest `take(n characters)` of at most `count` tokens, within 1%: doubling, then halving the interval."""
    low, high = 0, min(most, count)
    while len(tokenizer.tokenize(take(high), parse_special=False)) <= count:
        if high == most:
            return take(high)
        low, high = high, min(most, high * 2)
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        if len(tokenizer.tokenize(take(middle), parse_special=False)) <= count:
            low = middle
        else:
            high = middle
    return take(low)
