"""The commands of a chat: one table, from which /help, completion and both fronts live."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from llmcli.base.errors import UsageError
from llmcli.base.text import printable
from llmcli.base.units import format_count
from llmcli.cli.chat_files import load_conversation, save_conversation
from llmcli.cli.chat_read import attach, count_tokens
from llmcli.cli.chat_settings import SETTINGS, change, setting_lines
from llmcli.cli.chat_shell import ChatShell, Outcome
from llmcli.cli.chat_views import SHOWN, cache_lines, session_lines, show_lines, stats_lines, token_lines

_MOST_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """One command.

    names      the first is the usual spelling
    argument   what stands behind it in /help; "" where nothing does
    kind       what completes it: "none", "text", "file", "session", "choice", "setting"
    choices    the words of "choice" and "setting"
    """

    names: tuple[str, ...]
    argument: str
    summary: str
    run: Callable[[ChatShell, str], Outcome]
    kind: str = "none"
    choices: tuple[str, ...] = ()


def help_lines() -> tuple[str, ...]:
    """Every command, one per line."""
    rows = [(", ".join(one.names) + (f" {one.argument}" if one.argument else ""), one.summary) for one in COMMANDS]
    width = max(len(left) for left, _ in rows)
    return tuple(f"  {left:<{width}}  {right}" for left, right in rows)


def find(word: str) -> ChatCommand:
    """The command of this spelling. Raises UsageError that names the nearest one."""
    for command in COMMANDS:
        if word.lower() in command.names:
            return command
    every = [name for command in COMMANDS for name in command.names]
    near = difflib.get_close_matches(word.lower(), every, n=1)
    hint = (f"did you mean {near[0]}? " if near else "") + "/help lists the commands"
    raise UsageError(f"there is no command {printable(word)}", hint=hint)


def _help(_shell: ChatShell, argument: str) -> Outcome:
    if not argument:
        return Outcome(help_lines())
    command = find(argument if argument.startswith("/") else f"/{argument}")
    usage = f"{command.names[0]} {command.argument}".strip()
    choices = (f"  {', '.join(command.choices)}",) if command.choices else ()
    return Outcome((f"{usage}: {command.summary}", *choices))


def _exit(_shell: ChatShell, _argument: str) -> Outcome:
    return Outcome(leave=True)


def _clear(shell: ChatShell, _argument: str) -> Outcome:
    shell.conversation.clear()
    shell.attachments.clear()
    return Outcome(("the conversation begins anew; the system prompt stays",))


def _undo(shell: ChatShell, argument: str) -> Outcome:
    count = _count(argument, default=1)
    text = shell.conversation.last_user_text()
    taken = shell.conversation.undo(count)
    if not taken or text is None:
        raise UsageError("there is nothing to take back")
    what = _shortened(text) if taken == 1 else format_count(taken, "turn")
    return Outcome((f"taken back: {what}",))


def _retry(shell: ChatShell, _argument: str) -> Outcome:
    return Outcome(reply=shell.conversation.retry())


def _edit(shell: ChatShell, argument: str) -> Outcome:
    if argument:
        return Outcome(reply=shell.conversation.edit(argument))
    return Outcome(edit=shell.conversation.last_question("change"))


def _system(shell: ChatShell, argument: str) -> Outcome:
    conversation = shell.conversation
    if not argument:
        system = conversation.history.system
        return Outcome(("there is no system prompt",) if system is None else _lines(system))
    conversation.set_system(None if argument == "-" else argument)
    return Outcome(("the system prompt is gone" if argument == "-" else "the system prompt is set",))


def _set(shell: ChatShell, argument: str) -> Outcome:
    if not argument:
        return Outcome(setting_lines(shell.conversation))
    return Outcome((change(shell.conversation, argument),))


def _show(shell: ChatShell, argument: str) -> Outcome:
    return Outcome(show_lines(shell, argument or "all"))


def _tokens(shell: ChatShell, argument: str) -> Outcome:
    if argument:
        return Outcome((format_count(count_tokens(shell, argument), "token"),))
    return Outcome(token_lines(shell.conversation))


def _read(shell: ChatShell, argument: str) -> Outcome:
    name = _required(argument, "/read FILE")
    count = attach(shell, name)
    return Outcome((f"{printable(name)} ({format_count(count, 'token')}) goes with your next message",))


def _save(shell: ChatShell, argument: str) -> Outcome:
    return Outcome((save_conversation(shell.conversation, _required(argument, "/save FILE")),))


def _load(shell: ChatShell, argument: str) -> Outcome:
    return Outcome((load_conversation(shell, _required(argument, "/load FILE")),))


def _fork(shell: ChatShell, argument: str) -> Outcome:
    name = _required(argument, "/fork NAME")
    shell.open_fork(name)
    return Outcome((f"this is session {name} now; the other one stays as it is",))


def _sessions(shell: ChatShell, _argument: str) -> Outcome:
    return Outcome(session_lines(shell.library, shell.columns()))


def _stats(shell: ChatShell, _argument: str) -> Outcome:
    return Outcome(stats_lines(shell.conversation))


def _cache(shell: ChatShell, _argument: str) -> Outcome:
    return Outcome(cache_lines(shell.conversation))


def _required(argument: str, usage: str) -> str:
    if not argument:
        raise UsageError(f"it is {usage}")
    return argument


def _count(argument: str, *, default: int) -> int:
    if not argument:
        return default
    if not argument.isdecimal() or int(argument[:9]) == 0:
        raise UsageError(f"{printable(argument)} is not a number of turns")
    return int(argument[:9])


def _shortened(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= _MOST_SHOWN_CHARS else line[: _MOST_SHOWN_CHARS - 1] + "…"


def _lines(text: str) -> tuple[str, ...]:
    return tuple(printable(line) for line in text.split("\n"))


COMMANDS: tuple[ChatCommand, ...] = (
    ChatCommand(("/help", "/?"), "[COMMAND]", "Show this list, or one command.", _help),
    ChatCommand(("/exit", "/bye", "/quit"), "", "Leave; the conversation is saved already (Ctrl-D).", _exit),
    ChatCommand(("/clear",), "", "Begin anew; the system prompt stays.", _clear),
    ChatCommand(("/undo",), "[N]", "Take the last turn back, or the last N.", _undo),
    ChatCommand(("/retry",), "", "Ask the last question again.", _retry),
    ChatCommand(("/edit",), "[TEXT]", "Change the last question and ask it again.", _edit, "text"),
    ChatCommand(("/system",), "[TEXT]", "Show or set the system prompt; - removes it.", _system, "text"),
    ChatCommand(("/set",), "[NAME VALUE]", "Show or change how tokens are chosen.", _set, "setting", tuple(SETTINGS)),
    ChatCommand(("/show",), f"[{'|'.join(SHOWN)}]", "Show what is in use.", _show, "choice", SHOWN),
    ChatCommand(("/tokens",), "[TEXT]", "Count the tokens of the conversation, or of a text.", _tokens, "text"),
    ChatCommand(("/read",), "FILE", "Put a file's text before your next message.", _read, "file"),
    ChatCommand(("/save",), "FILE", "Write the conversation: .md, .json, else a session file.", _save, "file"),
    ChatCommand(("/load",), "FILE", "Go on from a saved file or a session's name.", _load, "file"),
    ChatCommand(("/fork",), "NAME", "Go on in a copy with this name.", _fork, "text"),
    ChatCommand(("/sessions",), "", "List the saved conversations.", _sessions),
    ChatCommand(("/stats",), "", "Tell times and rates of the last answer.", _stats),
    ChatCommand(("/cache",), "", "Tell what was reused and restored.", _cache),
)
