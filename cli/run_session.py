"""`llmcli run --session NAME`: one turn in a saved conversation, from a script.

Printed as any other run; the conversation can be gone on with by `llmcli chat --session NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmcli.base.errors import UsageError
from llmcli.base.settings import Settings
from llmcli.cli.cmd_chat import opened
from llmcli.cli.inputs import gather_parts
from llmcli.cli.prefill_line import PrefillLine
from llmcli.cli.reporter import StderrReporter
from llmcli.engine.chat_reply import Reply
from llmcli.engine.prompt import joined_text
from llmcli.sessions.library import Library

# What makes a prompt that is no turn of a conversation.
_STRANGERS = ("raw", "prefix")


def run_turn(
    values: Mapping[str, Any],
    settings: Settings,
    reporter: StderrReporter,
    show: Callable[[Reply, Mapping[str, Any], StderrReporter], None],
    finish: Callable[[Reply, Mapping[str, Any], StderrReporter], int],
) -> int:
    """Ask the prompt of `run` in the session, with `show` and `finish` of `run`. Raises LlmcliError."""
    for name in _STRANGERS:
        if values[name]:
            raise UsageError(f"--{name} is no turn of a conversation, so --session cannot go with it")
    if values["on_overflow"] == "middle":
        raise UsageError("--on-overflow middle cuts a prompt, so --session cannot go with it", hint="error, or shift")
    parts = gather_parts(
        prompt=values["prompt"],
        words=values["words"],
        files=values["file"],
        use_stdin=not values["no_stdin"],
        notify=reporter.notify,
        example='llmcli run --session notes "Why is the sky blue?"',
    )
    with Library(settings.sessions_dir).open(values["session"], create=True) as log:
        chat_values = {**values, "switch_model": False}
        with (
            PrefillLine(shown=reporter.draws) as line,
            opened(chat_values, settings, reporter, log, at_terminal=False) as conversation,
        ):
            conversation.on_progress = line.tell
            reply = conversation.say(joined_text(parts, raw=False))
            show(reply, values, reporter)
            conversation.require_saved()
            conversation.settle()
    return finish(reply, values, reporter)
