"""`llmcli run`: one answer to one prompt, at the terminal or in a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from llmcli.base.errors import LimitMissedError, UsageError, UserInterruptError
from llmcli.base.settings import Settings
from llmcli.base.units import format_count
from llmcli.cli import output
from llmcli.cli.cache_options import cache_from, cache_options, saved_prefix
from llmcli.cli.complete import complete_prefix, complete_session
from llmcli.cli.engine_options import engine_options, request_from, rope_from
from llmcli.cli.inputs import gather_parts, system_prompt
from llmcli.cli.options import (
    chat_template_option,
    length_options,
    model_option,
    option,
    system_prompt_options,
    verbosity_options,
    without_weaker_rivals,
)
from llmcli.cli.params import Utf8
from llmcli.cli.prefill_line import PrefillLine
from llmcli.cli.reporter import StderrReporter
from llmcli.cli.sampling_options import sampling_from, sampling_options
from llmcli.engine import native
from llmcli.engine.answer import Answer, AnswerRequest, answer
from llmcli.engine.generate import Part

if TYPE_CHECKING:
    from llmcli.engine.chat_reply import Reply

_EPILOG = """\b
Examples:
  llmcli run "Why is the sky blue?"
  git log -5 | llmcli run "Summarise"
  llmcli run -f a.txt -f b.txt "Where do these disagree?" > answer.txt
  llmcli run --raw -n 40 --temp 0 "Once upon a time"
  llmcli run --json "Name three colours" | jq -r .text
  llmcli run --prefix contract "Who may end it?"
  llmcli run --session notes "And what follows from that?"

\b
Exit status: 0 done, 2 usage, 3 no such model, 4 the prompt does not fit,
5 --fail-on-length, 6 not enough memory or disk, 130 interrupted,
1 anything else."""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", metavar="[PROMPT]...", nargs=-1)
@model_option
@option("-p", "--prompt", metavar="TEXT", help="The prompt; the same as the argument. '-' is stdin.")
@option(
    "-f",
    "--file",
    multiple=True,
    metavar="FILE",
    help="Text put before the prompt; may be repeated. '-' is stdin.",
)
@system_prompt_options
@option(
    "--prefix",
    metavar="NAME",
    shell_complete=complete_prefix,
    help="Go on from a prefix that `llmcli cache save` named.",
)
@option(
    "--session",
    type=Utf8(),
    metavar="NAME",
    shell_complete=complete_session,
    help="Ask in a saved conversation, new or old, and save the answer.",
)
@length_options
@option("--raw", is_flag=True, help="Continue the text as it is, without a chat template.")
@chat_template_option
@option(
    "--reasoning",
    type=click.Choice(["hide", "show", "only"]),
    default="show",
    show_default=True,
    help="Thinking: not shown, on stderr, or in place of the answer.",
)
@option(
    "--on-overflow",
    type=click.Choice(["error", "shift", "middle"]),
    default="error",
    show_default=True,
    help="Prompt or answer too long: refuse, drop the oldest, or cut the middle of the prompt.",
)
@option("--fail-on-length", is_flag=True, help="Exit 5 if the answer was cut by -n or the context.")
@option("--no-stdin", is_flag=True, help="Do not read stdin, even if it is a pipe.")
@option("--no-stream", is_flag=True, help="Print the answer when it is whole.")
@option("--json", is_flag=True, help="One JSON object on stdout in place of the text.")
@option("--stats", is_flag=True, help="One line of statistics on stderr.")
@engine_options
@cache_options
@sampling_options
@verbosity_options
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> int:
    """Answer one PROMPT, given as argument, with -p, from files (-f) or through a pipe.

    The prompt is made of the files, then stdin, then the argument, joined by blank lines. The answer goes to stdout,
    and nothing else does. Several words are one prompt, with blanks between them.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    if values["session"] is not None:
        from llmcli.cli.run_session import run_turn  # what few runs need

        return run_turn(without_weaker_rivals(values), settings, reporter, _print_answer, _finish)
    request = _request(without_weaker_rivals(values), settings, reporter)
    with PrefillLine(shown=reporter.draws) as line, answer(request, settings, reporter, line.tell) as result:
        _print_answer(result, values, reporter)
    if values["verbose"]:
        _tell_more(result, reporter)
    return _finish(result, values, reporter)


def _tell_more(result: Answer, reporter: StderrReporter) -> None:
    from llmcli.cli.cache_view import report_lines  # with the store's lists behind it 20 ms

    for line in report_lines(result.cache_report):
        reporter.detail(line)


def _request(values: Mapping[str, Any], settings: Settings, reporter: StderrReporter) -> AnswerRequest:
    if values["raw"] and values["chat_template"]:
        raise UsageError("--raw uses no template, so --chat-template cannot go with it")
    request = _own_request(values, settings, reporter)
    if values["prefix"] is None:
        return request
    recipe, model = saved_prefix(values, settings, reporter.notify)
    for option_name in ("system_prompt", "system_prompt_file", "chat_template"):
        if values[option_name] is not None:
            flag = "--" + option_name.replace("_", "-")
            raise UsageError(f"the prefix {values['prefix']!r} settles that already, so {flag} cannot go with it")
    if values["raw"] and not recipe.raw:
        raise UsageError(f"the prefix {values['prefix']!r} was saved as a chat, so --raw cannot go with it")
    return replace(
        request,
        reference=request.reference or model,
        parts=(*recipe.parts, *request.parts),
        system=recipe.system,
        raw=recipe.raw,
        recipe=recipe,
    )


def _own_request(values: Mapping[str, Any], settings: Settings, reporter: StderrReporter) -> AnswerRequest:
    predict = values["predict"]
    return AnswerRequest(
        reference=values["model"],
        plan=request_from(values),
        rope=rope_from(values),
        loras=values["lora"],
        sampling=sampling_from(values),
        parts=gather_parts(
            prompt=values["prompt"],
            words=values["words"],
            files=values["file"],
            use_stdin=not values["no_stdin"],
            notify=reporter.notify,
            example='llmcli run "Why is the sky blue?"',
        ),
        system=system_prompt(values, reporter.notify),
        raw=values["raw"],
        template=values["chat_template"],
        max_tokens=None if predict in (None, -1) else predict,
        stops=values["stop"],
        overflow=values["on_overflow"],
        cache=cache_from(values, settings),
    )


def _print_answer(result: Answer | Reply, values: Mapping[str, Any], reporter: StderrReporter) -> None:
    """Stream the parts to where they belong; with --json or --no-stream only when all are there."""
    wanted = "reasoning" if values["reasoning"] == "only" else "text"
    stream = not (values["json"] or values["no_stream"])
    last, thinking = "", ""
    for part in result.parts():
        if part.kind == wanted:
            if thinking and not thinking.endswith("\n"):
                reporter.thinking("\n")
            thinking = ""
            if stream and part.text:
                output.write(part.text)
            last = part.text[-1:] or last
        elif _shows(part, values["reasoning"]):
            reporter.thinking(part.text)
            thinking = part.text
    if thinking and not thinking.endswith("\n"):
        reporter.thinking("\n")
    if values["json"]:
        result.settle()
        output.write_json(result.as_json())
        return
    if wanted == "reasoning" and not result.reasoning:
        reporter.notify("the model wrote no thinking, and --reasoning only shows nothing else")
        return
    whole = "" if stream else (result.reasoning if wanted == "reasoning" else result.text)
    output.write(whole + ("" if last == "\n" else "\n"))


def _shows(part: Part, mode: str) -> bool:
    return part.kind == "reasoning" and mode == "show"


def _finish(result: Answer | Reply, values: Mapping[str, Any], reporter: StderrReporter) -> int:
    if not values["fail_on_length"] and (note := result.full_note):
        reporter.notify(f"the answer is {note}")
    if values["stats"] or values["verbose"]:
        output.stderr_line(result.stats_line())
    if result.finish_reason == "interrupted":
        raise UserInterruptError
    if result.finish_reason == "length" and values["fail_on_length"]:
        raise LimitMissedError(
            f"the answer was cut after {format_count(result.completion_tokens, 'token')}", hint="a larger -n or -c"
        )
    return 0
