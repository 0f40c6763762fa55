"""`llmcli cache why`: where two prompts part. Opens a model's vocabulary and chat template, not its weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from llmcli.base.errors import UsageError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_count
from llmcli.cache_store.policy import DEFAULT_MIN_TOKENS
from llmcli.cli import output
from llmcli.cli.cache_view import difference_lines
from llmcli.cli.complete import complete_file
from llmcli.cli.inputs import gather_parts, system_prompt
from llmcli.cli.options import model_option, option, verbosity_options
from llmcli.cli.params import Whole
from llmcli.cli.reporter import StderrReporter
from llmcli.engine import native
from llmcli.engine.answer import choose_template
from llmcli.engine.engine import find_model
from llmcli.engine.model import Model
from llmcli.engine.prefix_recipe import text_of
from llmcli.engine.prefix_why import Prompt, Why, compare_prompts
from llmcli.engine.prompt import PromptPart, PromptRequest, fit_prompt, joined_text

_NO_LIMIT = 1 << 30  # nothing is computed, so no context has to hold it


@click.command(
    "why",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  llmcli cache why monday.txt tuesday.txt
  llmcli cache why -sys "Be brief." "It is May 1. Hello" "It is May 2. Hello"
  llmcli cache why --json a.txt b.txt | jq .first_difference

\b
Exit status: 0 done, 2 usage, 3 no such model, 1 anything else.""",
)
@click.argument("a", metavar="A", shell_complete=complete_file)
@click.argument("b", metavar="B", shell_complete=complete_file)
@model_option
@option("-sys", "--system-prompt", metavar="TEXT", help="The system prompt of both.")
@option("-sysf", "--system-prompt-file", metavar="FILE", help="The same, from a file.")
@option("--raw", is_flag=True, help="Compare the texts as they are, without a chat template.")
@option("--chat-template", metavar="NAME|FILE", help="A template to use in place of the model's own.")
@option(
    "--cache-min-tokens",
    type=Whole(1),
    default=DEFAULT_MIN_TOKENS,
    show_default=True,
    metavar="N",
    help="What the store restores at least.",
)
@option("--json", is_flag=True, help="One JSON object.")
@verbosity_options
@click.pass_obj
def why(settings: Settings, /, **values: Any) -> None:
    """Compare two prompts as a run would see them. A and B are files where files of that name are, else texts.

    Says how many tokens they share and where they part, what changes there, and what they would share if all that
    changes came last.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    if values["raw"] and values["chat_template"]:
        raise UsageError("--raw uses no template, so --chat-template cannot go with it")
    parts = [_parts(values[name], reporter) for name in ("a", "b")]
    system = system_prompt(values, reporter.notify)
    resolved, _ = find_model(values["model"], settings, reporter)
    with Model.load_vocabulary(resolved.path) as model:
        tokenize = _tokenizer(model, system, values, reporter)
        one, other = (Prompt(joined_text(some, raw=values["raw"]), tokenize(some)) for some in parts)
        found = compare_prompts(
            one,
            other,
            tokenize=lambda text: tokenize((PromptPart("argument", "prompt", text),)),
            text_of=lambda ids: text_of(ids, model.tokenizer),
            min_tokens=values["cache_min_tokens"],
        )
    output.write_json(found.as_json()) if values["json"] else output.write(_told(found, values))


def _parts(word: str, reporter: StderrReporter) -> tuple[PromptPart, ...]:
    is_file = word == "-" or os.path.isfile(word)
    return gather_parts(
        prompt=None if is_file else word,
        words=(),
        files=(word,) if is_file else (),
        use_stdin=word == "-",
        notify=reporter.notify,
        example="llmcli cache why A B",
    )


def _tokenizer(
    model: Model, system: str | None, values: Mapping[str, Any], reporter: StderrReporter
) -> Callable[[tuple[PromptPart, ...]], Sequence[int]]:
    """From the parts of a prompt to the ids of the whole, as `llmcli run` makes them."""
    template = None if values["raw"] else choose_template(model, values["chat_template"], reporter)

    def tokenize(parts: tuple[PromptPart, ...]) -> Sequence[int]:
        return fit_prompt(
            PromptRequest(parts, system, template),
            model.tokenizer,
            n_ctx=_NO_LIMIT,
            n_ctx_train=_NO_LIMIT,
            max_tokens=None,
            policy=None,
            longest_token_bytes=1,
        ).ids

    return tokenize


def _told(found: Why, values: Mapping[str, Any]) -> str:
    names = [_shown(values[name]) for name in ("a", "b")]
    counts = ", ".join(f"{name}: {format_count(n, 'token')}" for name, n in zip(names, found.tokens, strict=True))
    because = f": {found.nothing_because}" if found.nothing_because else ""
    lines = [counts, f"shared: {_shared(found.now.shared_tokens, found.now.restored_tokens)}{because}"]
    if found.difference is None:
        lines.append("the prompts are the same")
    else:
        texts = list(zip(names, (found.difference["a"], found.difference["b"]), strict=True))
        lines += difference_lines(found.difference["position_tokens"], texts)
    lines += [f"advice: {printable(advice)}" for advice in found.advice]
    if found.if_last:
        counted = _shared(found.if_last.shared_tokens, found.if_last.restored_tokens)
        lines.append(f"if what changes came last: {counted}")
    return "".join(line + "\n" for line in lines)


def _shown(word: str) -> str:
    text = printable(word)
    return text if len(text) <= 24 else text[:23] + "…"


def _shared(shared: int, restored: int) -> str:
    return f"{format_count(shared, 'token')}, of which a run restores {f'{restored:,}' if restored else 'none'}"
