"""`llmcli cache save`, `restore` and `warm`: prefixes and a model at work."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count, format_seconds
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.names import require_name
from llmcli.cli import output
from llmcli.cli.cache_options import bench_request, cache_dir_option, context_for, made_with, open_store, store_options
from llmcli.cli.complete import complete_file, complete_prefix
from llmcli.cli.engine_options import engine_options
from llmcli.cli.inputs import gather_parts, system_prompt
from llmcli.cli.options import model_option, option, require_file, verbosity_options
from llmcli.cli.reporter import StderrReporter
from llmcli.engine import native
from llmcli.engine.chat_template import load_template
from llmcli.engine.prefix_admin import Filled, open_bench
from llmcli.engine.prefix_recipe import Recipe
from llmcli.engine.prompt import PromptPart

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.command(
    "save",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache save contract -sys "You are a lawyer." -f contract.txt
  llmcli run --prefix contract "Who may end it?"
  git diff | llmcli cache save review -sysf reviewer.txt
  llmcli cache save keep-this --key 3fa2b1c0

\b
Exit status: 0 done, 2 usage, 3 no such model, 4 it does not fit the context,
6 it cannot be kept, 130 interrupted, 1 anything else.""",
)
@click.argument("name")
@model_option
@option("-f", "--file", multiple=True, metavar="FILE", help="Text of the prefix; may be repeated. '-' is stdin.")
@option("-sys", "--system-prompt", metavar="TEXT", help="The system prompt.")
@option("-sysf", "--system-prompt-file", metavar="FILE", help="The system prompt, from a file.")
@option("--raw", is_flag=True, help="Plain text, without a chat template.")
@option("--chat-template", metavar="NAME|FILE", help="A template to use in place of the model's own.")
@option("--key", metavar="KEY", help="Name a prefix that is stored already, by the first digits of its key.")
@option("--no-stdin", is_flag=True, help="Do not read stdin, even if it is a pipe.")
@option("--json", is_flag=True, help="One JSON object.")
@engine_options
@store_options
@verbosity_options
@click.pass_obj
def save(settings: Settings, /, **values: Any) -> None:
    """Store the beginning of a prompt under NAME, and pin it: it is never evicted.

    The beginning is what `llmcli run` makes of the same -sys, -f and stdin, up to where the question starts. What of
    it is stored already is not computed again. `llmcli run --prefix NAME QUESTION` goes on from it.
    """
    reporter = _reporter(settings, values)
    require_name(values["name"])
    if values["key"] is not None:
        _name_stored(settings, values, reporter)
        return
    recipe = _recipe(values, reporter)
    with open_bench(bench_request(values, settings), settings, reporter) as bench:
        filled, end = bench.save(recipe)
    _give_name(end, settings, values, reporter)
    if values["json"]:
        output.write_json({"name": values["name"], "key": end.key.hex(), **_filled_json(filled)})
    else:
        output.write(f"{printable(values['name'])}: {_filled_text(filled)}\n")


def _name_stored(settings: Settings, values: Mapping[str, Any], reporter: StderrReporter) -> None:
    if values["file"] or values["system_prompt"] is not None or values["system_prompt_file"] is not None:
        raise UsageError("--key names what is stored, so -f and -sys cannot go with it")
    with open_store(values, settings, reporter.notify) as store:
        end = store.keeper().chain(values["key"])[-1]
    _give_name(end, settings, values, reporter)
    if values["json"]:
        output.write_json({"name": values["name"], "key": end.key.hex(), "tokens": end.end_tokens})
    else:
        output.write(f"{printable(values['name'])}: {format_count(end.end_tokens, 'token')}\n")


def _give_name(end: BlockRef, settings: Settings, values: Mapping[str, Any], reporter: StderrReporter) -> None:
    with open_store(values, settings, reporter.notify) as store:
        keeper, name = store.keeper(), values["name"]
        if any(known.name == name and known.key != end.key for known in keeper.names()):
            reporter.notify(f"{name} stood for another prefix, which is not pinned any more")
        keeper.name(end, name, pin=True)


def _recipe(values: Mapping[str, Any], reporter: StderrReporter) -> Recipe:
    system = system_prompt(values, reporter.notify)
    parts = gather_parts(
        prompt=None,
        words=(),
        files=values["file"],
        use_stdin=not values["no_stdin"],
        notify=reporter.notify,
        example='llmcli cache save NAME -sys "Be brief." -f FILE',
        may_be_empty=system is not None,
    )
    return _make_recipe(parts, system, values)


def _make_recipe(parts: Sequence[PromptPart], system: str | None, values: Mapping[str, Any]) -> Recipe:
    if values["raw"] and values["chat_template"]:
        raise UsageError("--raw uses no template, so --chat-template cannot go with it")
    template = None
    if values["chat_template"]:
        source, name = load_template(values["chat_template"])
        template = (name, source)
    now = datetime.now().astimezone().replace(tzinfo=None)  # naive, as templates get it
    return Recipe(tuple(parts), system, values["raw"], template, now)


@click.command(
    "restore",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache restore contract
  llmcli cache restore 3fa2b1c0 -m smollm2 --json

\b
Exit status: 0 done, 2 usage, 3 no such model or not this one, 4 it does not
fit the context, 6 not enough memory, 1 no such prefix, or it cannot be
restored.""",
)
@click.argument("prefix", metavar="NAME|KEY", shell_complete=complete_prefix)
@model_option
@option("--json", is_flag=True, help="One JSON object.")
@engine_options
@cache_dir_option
@verbosity_options
@click.pass_obj
def restore(settings: Settings, /, **values: Any) -> None:
    """Load a prefix into its model, whole, to see that it works and how long it takes; to go on from it, run.

    Without -m it is the model that it was computed with, where that one was last. `llmcli run --prefix NAME` loads it
    to answer a question. Afterwards its bytes are in the system's page cache.
    """
    reporter = _reporter(settings, values)
    with open_store(values, settings, reporter.notify) as store:
        chain = store.keeper().chain(values["prefix"])
        fingerprint, model = made_with(store, chain[-1])
    values["model"] = values["model"] or model
    values["ctx_size"] = context_for(chain[-1].end_tokens + 1, values)
    with open_bench(bench_request(values, settings), settings, reporter) as bench:
        if fingerprint is not None:
            bench.require_fits(fingerprint, printable(values["prefix"]))
        loaded = bench.load(chain)
    if values["json"]:
        fields = {"tokens": loaded.tokens, "read_bytes": loaded.read_bytes, "restore_s": loaded.restore_s}
        output.write_json({"key": chain[-1].key.hex(), **fields})
    else:
        took = format_seconds(loaded.restore_s)
        tokens = format_count(loaded.tokens, "token")
        output.write(f"{printable(values['prefix'])}: {tokens}, {format_bytes(loaded.read_bytes)} in {took}\n")


@click.command(
    "warm",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache warm docs/*.md
  llmcli cache warm -sys "Answer from the text." chapter1.txt chapter2.txt
  llmcli cache warm --json *.txt | jq -r 'select(.error) | .file'

\b
Exit status: 0 all are stored, 2 usage, 3 no such model, 130 interrupted,
6 not enough memory or disk, 1 some could not be stored.""",
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, shell_complete=complete_file, callback=require_file
)
@model_option
@option("-sys", "--system-prompt", metavar="TEXT", help="The system prompt.")
@option("-sysf", "--system-prompt-file", metavar="FILE", help="The system prompt, from a file.")
@option("--raw", is_flag=True, help="Plain text, without a chat template.")
@option("--chat-template", metavar="NAME|FILE", help="A template to use in place of the model's own.")
@option("--json", is_flag=True, help="One JSON object per file, on a line of its own.")
@engine_options
@store_options
@verbosity_options
@click.pass_obj
def warm(settings: Settings, /, **values: Any) -> int:
    """Store what `llmcli run -f FILE` with some question will look for, one prefix for each FILE.

    A file that cannot be read or does not fit is told and passed over. Nothing is pinned: what is not used is evicted
    in its turn.
    """
    reporter = _reporter(settings, values)
    system = system_prompt(values, reporter.notify)
    failed = 0
    with open_bench(bench_request(values, settings), settings, reporter) as bench:
        for number, name in enumerate(values["files"], 1):
            reporter.notify(f"{number} of {len(values['files'])}: {name}")
            begun = time.perf_counter()
            try:
                parts = gather_parts(
                    prompt=None, words=(), files=(name,), use_stdin=name == "-", notify=reporter.notify,
                    example="llmcli cache warm FILE",
                )  # fmt: skip
                filled = bench.fill(_make_recipe(parts, system, values))
            except LlmcliError as error:
                if _ends_all(error):
                    raise
                failed += 1
                _tell_failure(name, error, json=values["json"])
                continue
            if values["json"]:
                fields = {**_filled_json(filled), "total_s": time.perf_counter() - begun}
                output.write_json({"file": name, "error": None, **fields})
            else:
                output.write(f"{printable(name)}: {_filled_text(filled)}\n")
    return 1 if failed else 0


def _ends_all(error: LlmcliError) -> bool:
    """Whether the next file would fare no better: interrupted, or no room."""
    return error.exit_code in (6, 130)


def _tell_failure(name: str, error: LlmcliError, *, json: bool) -> None:
    hint = f" ({error.hint})" if error.hint else ""
    of_file = "" if error.message.startswith(f"cannot read {printable(name)}:") else f"{printable(name)}: "
    output.stderr_line(f"error: {of_file}{printable(error.message + hint)}")
    if json:
        output.write_json({"file": name, "error": error.message})


def _reporter(settings: Settings, values: Mapping[str, Any]) -> StderrReporter:
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    return reporter


def _filled_json(filled: Filled) -> dict[str, Any]:
    report = filled.report
    return {
        "tokens": filled.tokens,
        "stored_tokens": filled.stored_tokens,
        "restored_tokens": report.restored_tokens,
        "computed_tokens": filled.computed_tokens,
        "read_bytes": report.read_bytes,
        "written_bytes": report.written_bytes,
        "restore_s": report.restore_s,
        "prefill_s": filled.prefill_s,
    }


def _filled_text(filled: Filled) -> str:
    computed = f"{filled.computed_tokens:,} computed in {format_seconds(filled.prefill_s)}"
    restored = f"{filled.report.restored_tokens:,} restored, {computed}"
    return f"{format_count(filled.tokens, 'token')}, {restored}, {format_bytes(filled.report.written_bytes)} written"
