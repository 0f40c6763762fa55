"""Opening a conversation: the model, the template, the session, in the order in which one decides about the other."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from datetime import datetime

from llmcli.base.errors import UsageError
from llmcli.base.settings import Settings
from llmcli.engine.answer import choose_template
from llmcli.engine.chat_check import ids_trouble
from llmcli.engine.chat_layout import ChatLayout
from llmcli.engine.conversation import ChatRequest, Conversation
from llmcli.engine.engine import Engine, Reporter, open_engine
from llmcli.engine.interrupt import StopFlag
from llmcli.engine.prefix import open_prefix_cache
from llmcli.engine.prefix_turns import TurnCache
from llmcli.sessions.events import Header, ModelNote
from llmcli.sessions.file import SessionLog
from llmcli.sessions.turns import local_now


@contextlib.contextmanager
def open_conversation(
    request: ChatRequest,
    settings: Settings,
    reporter: Reporter,
    *,
    log: SessionLog | None = None,
    may_switch: Callable[[str, str], bool] | None = None,
) -> Iterator[Conversation]:
    """Open the model and go on with `log`, or begin. Raises LlmcliError of whichever step fails.

    log          None: not saved
    may_switch   asked (the session's model, this model) where they are not the same; None: no
    """
    stop = StopFlag()
    threading.Thread(target=_warm_up_templates, daemon=True).start()
    known = log.header if log else None
    reference = request.reference or (_reference(known.model, reporter) if known else None)
    with open_engine(
        reference, request.plan, settings, reporter, rope=request.rope, loras=request.loras, stop=stop
    ) as engine:
        log = log or SessionLog(None)
        loaded = log.header.template if log.header and request.template is None else None
        template = choose_template(engine.model, request.template, reporter, loaded=loaded)
        asked_for = loaded if request.template is None else (template.name, template.source)
        note = ModelNote(engine.resolved.name, engine.inspected.content_id, str(engine.resolved.path.absolute()))
        if log.header is None:
            log.begin(Header(note, asked_for, request.system, local_now().isoformat(timespec="seconds")))
        else:
            _adopt(log, log.header, note, asked_for, may_switch)
            _check_ids(log, engine, reporter)
            if request.system is not None and request.system != log.history.system:
                log.set_system(request.system)
        template.clock = _clock(log.header.created if log.header else "")
        layout = ChatLayout(template, engine.model.tokenizer)
        with open_prefix_cache(engine, request.cache, settings, reporter.notify, TurnCache) as prefix:
            conversation = Conversation(engine, layout, request, log, prefix, reporter.notify)
            yield conversation
            conversation.settle(ahead=False)


def _reference(model: ModelNote, reporter: Reporter) -> str:
    """Where the session's model was last, else what it is called."""
    if os.path.exists(model.path):
        return model.path
    reporter.notify(f"the model of this conversation is no longer at {model.path}; {model.name} is looked for")
    return model.name


def _adopt(
    log: SessionLog,
    header: Header,
    note: ModelNote,
    template: tuple[str, str] | None,
    may_switch: Callable[[str, str], bool] | None,
) -> None:
    """Go on with the session's model; with another one only where that is allowed. Raises UsageError."""
    if header.model.content_id != note.content_id:
        if not (may_switch and may_switch(header.model.name, note.name)):
            raise UsageError(
                f"session {log.name} is with the model {header.model.name}, and this is {note.name}",
                hint="--switch-model goes on with the other one",
            )
        log.change_model(note, template)
    elif header.template != template:
        log.change_model(note, template)


def _check_ids(log: SessionLog, engine: Engine, reporter: Reporter) -> None:
    """A file can hold any numbers and words: only ids that are those of the words are gone on from."""
    header, trouble = log.header, ids_trouble(log.history, engine.model.tokenizer)
    if header and trouble:
        reporter.notify(f"session {log.name} has {trouble}: its words are tokenized again")
        log.change_model(header.model, header.template)


def _clock(created: str) -> Callable[[], datetime]:
    """Templates that print the date print that of the session's first day: another one would change every token."""
    try:
        begun = datetime.fromisoformat(created)
    except ValueError:
        begun = local_now()
    return lambda: begun


def _warm_up_templates() -> None:
    from llmcli.engine.chat_template import warm_up

    warm_up()
