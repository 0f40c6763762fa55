"""What the tests of conversations share: one opened on a model file, with its session, and what it said besides."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmcli.base.settings import load
from llmcli.cache_store.policy import Policy
from llmcli.engine.chat_open import open_conversation
from llmcli.engine.conversation import ChatRequest, Conversation
from llmcli.engine.plan import Request
from llmcli.engine.prefix_report import CacheOptions
from llmcli.engine.sampling import Sampling
from llmcli.sessions.library import Library
from tests.fixtures.notes import Notes

# Refuses whatever does not alternate, as the templates of many models do.
STRICT = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Leaves thinking out of earlier answers.
STRIPS = STRICT.replace("m['content'] +", "(m['content'].split('</think>')[-1] | trim) +")
# The same, and opens the thinking itself.
OPENS = STRIPS.replace("assistant\n' }}", "assistant\n<think>\n' }}")


def library() -> Library:
    return Library(load().sessions_dir)


@contextlib.contextmanager
def talk(
    model: Path,
    session: str | None = None,
    *,
    notes: Notes | None = None,
    may_switch: bool = False,
    n_ctx: int | None = None,
    n_ubatch: int | None = None,
    **changes: Any,
) -> Iterator[Conversation]:
    """A conversation, greedy and with one thread; `changes` are fields of the request."""
    request = ChatRequest(
        reference=str(model),
        plan=Request(n_ctx=n_ctx, n_threads=1, n_ubatch=n_ubatch),
        sampling=Sampling(temp=0.0, seed=1),
        cache=CacheOptions(policy=Policy(max_bytes=1 << 30, min_free_bytes=0)),
    )
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(library().open(session, create=True)) if session else None
        yield stack.enter_context(
            open_conversation(
                replace(request, **changes),
                load(),
                notes or Notes(),
                log=log,
                may_switch=lambda _before, _now: may_switch,
            )
        )


def ask(conversation: Conversation, text: str) -> str:
    """The answer, read to its end."""
    return "".join(part.text for part in conversation.say(text).parts() if part.kind == "text")
