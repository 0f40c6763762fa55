"""`llmcli show`: what a model is, from its header; of one on the hub without fetching it."""

from __future__ import annotations

from typing import Any

import click

from llmcli.base.errors import ModelError
from llmcli.base.settings import Settings
from llmcli.cli import output
from llmcli.cli.complete import complete_model
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.params import Whole
from llmcli.cli.reporter import StderrReporter
from llmcli.engine.context import KV_TYPES
from llmcli.engine.plan import past_training
from llmcli.engine.template_lint import TemplateLint, lint_template
from llmcli.models.described import describe_reference
from llmcli.models.description import Description

_EPILOG = """\b
Examples:
  llmcli show smollm2
  llmcli show -c 32768 owner/repo:Q4_K_M
  llmcli show --template model.gguf > template.jinja
  llmcli show --json model.gguf | jq '.layers.kv_bytes_per_token'

\b
Exit status: 0 done, 2 usage, 3 no such model or no GGUF file,
1 anything else."""
_DEFAULT_CTX = 4096
_KV_TYPE = click.Choice(list(KV_TYPES), case_sensitive=False)


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", metavar="MODEL", shell_complete=complete_model)
@option(
    "-c",
    "--ctx-size",
    type=Whole(0),
    metavar="N",
    help="Context of the estimate; 0: the model's own maximum. [default: 4096, or the model's if smaller]",
)
@option("-np", "--parallel", type=Whole(1, 256), default=1, show_default=True, metavar="N", help="Sequences in it.")
@option("-ctk", "--cache-type-k", type=_KV_TYPE, default="f16", show_default=True, help="Type of the keys.")
@option("-ctv", "--cache-type-v", type=_KV_TYPE, default="f16", show_default=True, help="Type of the values.")
@option("--revision", metavar="REV", help="Look on the hub, at this branch, tag or commit.")
@option("--tensors", is_flag=True, help="The list of tensors; with --json beside the rest.")
@option("--template", is_flag=True, help="The chat template alone, as it is in the file.")
@option("--json", is_flag=True, help="One JSON object.")
@verbosity_options
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> None:
    """Show what MODEL is: a file, a name as in `llmcli ls`, or owner/repo:QUANT on the hub.

    Of a model on the hub only the header is read, some megabytes. The chat template is tried out within its limits.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    shown = describe_reference(values["model"], settings, revision=values["revision"], notify=reporter.notify)
    about = shown.description
    if values["template"]:
        if about.chat_template is None:
            if about.problem:
                raise ModelError(f"there is no chat template: {about.problem}")
            raise ModelError("this model has no chat template", hint="a base model? llmcli run --raw completes text")
        output.write(about.chat_template)
        return
    from llmcli.cli import show_json, show_view
    from llmcli.cli.slow_types import slow_types

    if values["tensors"] and not values["json"]:
        output.write("".join(f"{line}\n" for line in show_view.tensor_lines(about)))
        return
    lint = _lint(about)
    estimate, slow = _estimate(about, values), slow_types(about.types, settings)
    if values["json"]:
        output.write_json({**show_json.as_json(shown, lint, estimate, tensors=values["tensors"]), "slow_types": slow})
    else:
        note = past_training(estimate.n_ctx, about.facts) if estimate and about.facts else None
        output.write("".join(f"{line}\n" for line in show_view.lines(shown, lint, estimate, slow, note)))


def _lint(about: Description) -> TemplateLint | None:
    if about.chat_template is None:
        return None
    texts = {token.role: token.text or "" for token in about.vocabulary.special}
    return lint_template(about.chat_template, bos_text=texts.get("bos", ""), eos_text=texts.get("eos", ""))


def _estimate(about: Description, values: dict[str, Any]) -> Any:
    """What a run as `llmcli run` makes it would take; None for a model that cannot be run."""
    from llmcli.cli.show_view import Estimate
    from llmcli.engine.fit import run_need
    from llmcli.hardware.memory import read_memory

    facts = about.facts
    if facts is None:
        return None
    trained = facts.n_ctx_train or _DEFAULT_CTX
    n_ctx = min(_DEFAULT_CTX, trained) if values["ctx_size"] is None else values["ctx_size"] or trained
    types = values["cache_type_k"], values["cache_type_v"]
    need = run_need(facts, n_ctx, *types, n_parallel=values["parallel"])
    memory = read_memory()
    available = memory.available_bytes if memory.total_bytes else None
    return Estimate(n_ctx, values["parallel"], *types, need, available)
