"""What the commands of a chat show: prompt, parameters, model, context, tokens, sessions, times, cache. Lines only."""

from __future__ import annotations

from llmcli.base.errors import UsageError
from llmcli.base.text import printable
from llmcli.cli.chat_settings import setting_lines
from llmcli.cli.chat_shell import ChatShell
from llmcli.cli.session_table import info_lines
from llmcli.engine.conversation import Conversation
from llmcli.sessions.library import Library

SHOWN = ("prompt", "params", "model", "context")


def show_lines(shell: ChatShell, what: str) -> tuple[str, ...]:
    """What /show shows; all but the prompt where nothing is named. Raises UsageError."""
    conversation = shell.conversation
    if what == "all":
        return (*_model(conversation), *_context(conversation), *setting_lines(conversation))
    if what == "prompt":
        return _prompt(conversation)
    if what == "params":
        return setting_lines(conversation)
    if what == "model":
        return _model(conversation)
    if what == "context":
        return _context(conversation)
    raise UsageError(f"/show knows no {printable(what)}", hint=", ".join(SHOWN))


def _prompt(conversation: Conversation) -> tuple[str, ...]:
    text = conversation.given_text()
    if text is None:
        return ("this model was given nothing yet",)
    return tuple(printable(line) for line in text.split("\n"))


def _model(conversation: Conversation) -> tuple[str, ...]:
    engine = conversation.engine
    return (
        f"  model      {printable(engine.resolved.name)}",
        f"  file       {printable(str(engine.resolved.path))}",
        f"  template   {printable(conversation.template_name)}",
        f"  threads    {engine.plan.n_threads}",
    )


def _context(conversation: Conversation) -> tuple[str, ...]:
    use = conversation.use()
    session = "not saved" if conversation.name is None else conversation.name
    dropped = f", {use.dropped_turns:,} of them no longer seen by the model" if use.dropped_turns else ""
    return (
        f"  session    {printable(session)}",
        f"  context    {use.used_tokens:,} of {use.n_ctx:,} tokens ({use.percent}%)",
        f"  turns      {use.turns:,}{dropped}",
    )


def token_lines(conversation: Conversation) -> tuple[str, ...]:
    """The tokens of each turn."""
    use, rows, before = conversation.use(), list[str](), 0
    for number, turn in enumerate(conversation.history.turns, 1):
        shown = printable(" ".join(turn.user.split()))[:40]
        asked = max(0, len(turn.prompt_ids) - before)
        rows.append(f"  {number:>3}  {asked:>6,} asked  {len(turn.completion_ids):>6,} answered  {shown}")
        before = len(turn.ids)
    return (*rows, f"{use.used_tokens:,} of {use.n_ctx:,} tokens are used")


def session_lines(library: Library, columns: int | None) -> tuple[str, ...]:
    """The saved conversations, the last used first."""
    infos = library.infos()
    return tuple(info_lines(infos, columns)) if infos else ("nothing is saved",)


def stats_lines(conversation: Conversation) -> tuple[str, ...]:
    """Times and rates of the last answer."""
    reply = conversation.last_reply
    if reply is None:
        return ("nothing was answered yet",)
    return tuple(f"  {part}" for part in reply.stats_line().split("; "))


def cache_lines(conversation: Conversation) -> tuple[str, ...]:
    """What of the last prompt was not computed again, and what was saved."""
    from llmcli.cli.cache_view import report_lines

    reply = conversation.last_reply
    if reply is None:
        return (f"--cache {conversation.cache_mode}; nothing was asked yet",)
    whence = (
        f"{reply.kept_tokens:,} kept in memory, {reply.restored_tokens:,} restored from disk, "
        f"{reply.computed_tokens:,} computed"
    )
    return (
        f"--cache {conversation.cache_mode}",
        f"last prompt: {reply.prompt_tokens:,} tokens, {whence}",
        *report_lines(reply.cache_report),
    )
