"""`llmcli chat`: a conversation, at the terminal or through a pipe, that is saved and comes back at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cli import output
from llmcli.cli.cache_options import cache_from, cache_options
from llmcli.cli.chat_shell import ChatShell, FrontOptions
from llmcli.cli.complete import complete_session
from llmcli.cli.engine_options import engine_options, request_from, rope_from
from llmcli.cli.inputs import system_prompt
from llmcli.cli.options import (
    chat_template_option,
    length_options,
    model_option,
    option,
    system_prompt_options,
    verbosity_options,
    without_weaker_rivals,
)
from llmcli.cli.params import Utf8, Whole
from llmcli.cli.reporter import StderrReporter
from llmcli.cli.sampling_options import sampling_from, sampling_options
from llmcli.engine import native
from llmcli.engine.chat_open import open_conversation
from llmcli.engine.conversation import ChatRequest, Conversation
from llmcli.sessions.file import SessionLog
from llmcli.sessions.library import Library

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_MOST_SHOWN_CHARS = 60
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\0": "\0", r"\r": "\r"}
_EPILOG = """\b
Examples:
  llmcli chat
  llmcli chat -m smollm2 --session holidays
  llmcli chat --continue
  printf 'Name a colour.\\nAnother one.\\n' | llmcli chat --temp 0
  llmcli chat --json --session log < questions.txt > answers.jsonl

\b
Exit status: 0 done, 2 usage or another model than the session's,
3 no such model, 4 a message does not fit, 6 not enough memory or disk,
130 interrupted, 1 anything else."""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@model_option
@system_prompt_options
@option(
    "--session",
    type=Utf8(),
    metavar="NAME",
    shell_complete=complete_session,
    help="The saved conversation to go on with, or to begin.",
)
@option("-C", "--continue", is_flag=True, help="Go on with the conversation that was used last.")
@option("--no-save", is_flag=True, help="Save nothing of this conversation.")
@option("--switch-model", is_flag=True, help="Go on with a session that was with another model.")
@length_options
@chat_template_option
@option(
    "--on-overflow",
    type=click.Choice(["error", "drop", "shift"]),
    default="drop",
    show_default=True,
    help="Context full: refuse, leave out the oldest turns, or also go on inside an answer.",
)
@option(
    "--keep-turns",
    type=Whole(0),
    default=1,
    show_default=True,
    metavar="N",
    help="First turns that are never left out.",
)
@option(
    "--reasoning",
    type=click.Choice(["hide", "show"]),
    default="show",
    show_default=True,
    help="Thinking: not shown, or shown dimmed (on stderr where it is a pipe).",
)
@option("--plain", is_flag=True, help="No Markdown, no colours: the answer as the model wrote it.")
@option("--separator", type=Utf8(), default=r"\n", show_default=True, metavar="TEXT", help="What ends a turn on stdin.")
@option("--commands", is_flag=True, help="Lines of stdin that begin with a slash are commands.")
@option("--json", is_flag=True, help="One JSON object per turn on stdout.")
@option("--stats", is_flag=True, help="One line of statistics behind each answer, on stderr.")
@engine_options
@cache_options
@sampling_options
@verbosity_options
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> int:
    """Talk with a model; the conversation is saved and can be gone on with.

    At a terminal, /help lists the commands. Otherwise each line of stdin is a turn, answers go to stdout, and the end
    of the input ends the chat. Conversations at a terminal are always saved; others where --session or --continue says
    where.
    """
    values = without_weaker_rivals(values)
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    at_terminal = output.is_terminal(_STDIN) and output.is_terminal(_STDOUT) and not values["json"]
    if at_terminal and not settings.dumb_terminal:  # 0.1 s of imports, hidden behind the loading of the model
        threading.Thread(target=_warm_up_terminal, daemon=True).start()
    library = Library(settings.sessions_dir)
    held = contextlib.ExitStack()
    with contextlib.ExitStack() as stack:
        stack.callback(held.close)
        log = _session(values, library, held, at_terminal=at_terminal)
        conversation = stack.enter_context(opened(values, settings, reporter, log, at_terminal=at_terminal))
        shell = ChatShell(conversation, library, settings, reporter.notify, held)
        stack.callback(shell.close)
        try:
            code = _front(shell, values, settings, reporter, at_terminal=at_terminal)
        finally:  # what could not be saved is lost now, or never
            if conversation.log.save_rest():
                reporter.notify("what could not be saved before is saved now")
        if at_terminal and output.is_terminal(_STDERR) and (way_back := shell.way_back()):
            reporter.notify(way_back)
        return code


def _warm_up_terminal() -> None:
    import llmcli.cli.chat_terminal  # noqa: F401


def _session(
    values: Mapping[str, Any], library: Library, held: contextlib.ExitStack, *, at_terminal: bool
) -> SessionLog | None:
    """The saved conversation, open until `held` closes; None: nothing is saved. Raises LlmcliError."""
    name = session_name(values, library)
    try:
        if name is not None:
            return held.enter_context(library.open(name, create=not values["continue"]))
        if at_terminal and not values["no_save"]:
            return held.enter_context(library.open_new())
    except OSError as error:
        hint = "--no-save talks without saving"
        raise output.os_failure(error, "the conversation cannot be saved: ", hint=hint) from None
    return None


def session_name(values: Mapping[str, Any], library: Library) -> str | None:
    """The session that is named, None where none is. Raises UsageError, LlmcliError."""
    named, goes_on = values["session"], values["continue"]
    if named is not None and goes_on:
        raise UsageError("--session names the conversation, so --continue cannot go with it")
    if values["no_save"]:
        if named is not None or goes_on:
            raise UsageError("--no-save keeps nothing, so --session and --continue cannot go with it")
        return None
    if goes_on:
        if (last := library.last()) is None:
            raise LlmcliError("there is no conversation to go on with", hint="llmcli chat --session NAME begins one")
        return last
    if named is not None:
        library.path(named)
    return None if named is None else str(named)


def opened(
    values: Mapping[str, Any],
    settings: Settings,
    reporter: StderrReporter,
    log: SessionLog | None,
    *,
    at_terminal: bool,
) -> contextlib.AbstractContextManager[Conversation]:
    """The conversation that the options ask for."""
    for warning in log.warnings if log else ():
        reporter.notify(f"warning: {warning}")
    takes_commands = at_terminal or values.get("commands", False)
    if log and log.lost_question is not None:
        reporter.notify(_lost(log.lost_question, takes_commands=takes_commands))
    predict = values["predict"]
    request = ChatRequest(
        reference=_given("model", values, log),
        plan=request_from(values),
        rope=rope_from(values),
        loras=values["lora"],
        sampling=sampling_from(values),
        system=_system(values, log, reporter),
        template=_given("chat_template", values, log),
        max_tokens=None if predict in (None, -1) else predict,
        stops=values["stop"],
        overflow=values["on_overflow"],
        keep_turns=values.get("keep_turns", 1),
        takes_commands=takes_commands,
        cache=cache_from(values, settings),
    )

    def may_switch(before: str, now: str) -> bool:
        if values["switch_model"]:
            return True
        if not at_terminal:
            return False
        output.stderr_text(f"this conversation is with {printable(before)}; go on with {printable(now)}? [y/N] ")
        return output.read_line().strip().lower() in ("y", "yes")

    return open_conversation(request, settings, reporter, log=log, may_switch=may_switch)


def _lost(question: str, *, takes_commands: bool) -> str:
    shown = printable(" ".join(question.split()))
    shown = shown if len(shown) <= _MOST_SHOWN_CHARS else shown[: _MOST_SHOWN_CHARS - 1] + "…"
    again = " (/retry asks it again)" if takes_commands else ""
    return f"warning: llmcli was ended before it had answered: {shown}{again}"


def _given(name: str, values: Mapping[str, Any], log: SessionLog | None) -> Any:
    """The value of an option; a default from the environment takes no session away from what it was begun with."""
    is_given = click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
    return values[name] if is_given or log is None or log.header is None else None


def _system(values: Mapping[str, Any], log: SessionLog | None, reporter: StderrReporter) -> str | None:
    names = ("system_prompt", "system_prompt_file")
    return system_prompt({name: _given(name, values, log) for name in names}, reporter.notify)


def _front(
    shell: ChatShell, values: Mapping[str, Any], settings: Settings, reporter: StderrReporter, *, at_terminal: bool
) -> int:
    options = FrontOptions(
        settings=settings,
        reporter=reporter,
        plain=values["plain"],
        reasoning=values["reasoning"],
        stats=values["stats"] or values["verbose"],
        quiet=values["quiet"],
    )
    if at_terminal and settings.dumb_terminal:
        from llmcli.cli.chat_dumb import run_dumb

        return run_dumb(shell, options)
    if at_terminal:
        from llmcli.cli.chat_terminal import run_terminal

        return run_terminal(shell, options)
    from llmcli.cli.chat_pipe import PipeOptions, run_pipe

    separator = values["separator"]
    for escape, character in _ESCAPES.items():
        separator = separator.replace(escape, character)
    if not separator:
        raise UsageError("--separator is empty")
    return run_pipe(shell, options, PipeOptions(separator, values["json"], values["commands"]))
