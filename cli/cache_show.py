"""`llmcli cache show`: one stored prefix, block by block, and its text. At most a model's vocabulary is opened."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from llmcli.base.errors import LlmcliError, ModelError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_age, format_bytes, format_count
from llmcli.cache_store.catalog import Entry
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.store import PrefixStore
from llmcli.cli import output
from llmcli.cli.cache_options import cache_dir_option, model_of_this_call, open_store
from llmcli.cli.cache_view import KEY_DIGITS, Models, entry_json
from llmcli.cli.complete import complete_prefix
from llmcli.cli.options import model_option, option, verbosity_options
from llmcli.cli.reporter import StderrReporter
from llmcli.engine.engine import Reporter, find_model
from llmcli.engine.prefix_recipe import RECIPE_PART, Recipe, text_of

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.command(
    "show",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache show contract
  llmcli cache show 3fa2b1c0 -m smollm2 --text
  llmcli cache show contract --json | jq .block_list

\b
Exit status: 0 done, 2 usage, 3 not this model (-m), 1 no such prefix.""",
)
@click.argument("prefix", metavar="NAME|KEY", shell_complete=complete_prefix)
@model_option
@option("--text", is_flag=True, help="The text alone.")
@option("--json", is_flag=True, help="One JSON object.")
@cache_dir_option
@verbosity_options
@click.pass_obj
def show(settings: Settings, /, **values: Any) -> None:
    """Show one prefix, by name or by the first digits of its key: blocks, bytes, text.

    The store holds token ids, not text. What `llmcli cache save` made has its text with it; of anything else the
    beginnings of its blocks are shown, and the whole text with -m MODEL.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    with open_store(values, settings, reporter.notify) as store:
        keeper, models = store.keeper(), Models(store)
        chain = keeper.chain(values["prefix"])
        entry = keeper.entry(chain[-1].key)
        if entry is None:
            raise LlmcliError(
                f"{printable(values['prefix'])!r} is not in the index", hint="llmcli cache verify --repair"
            )
        recipe = _recipe(store, chain)
        text = recipe.text if recipe else None
        if reference := model_of_this_call(values):
            text = _decoded(chain, reference, models.content_id(entry.fingerprint), settings, reporter)
        if values["json"]:
            output.write_json({**entry_json(entry, models, time.time()), **_chain_json(chain, recipe), "text": text})
        elif values["text"]:
            if text is None:
                raise LlmcliError("the text is not stored, only its tokens are", hint="-m MODEL reads them")
            output.write(text + "\n")
        else:
            output.write(_shown(entry, models, chain, recipe, text))


def _recipe(store: PrefixStore, chain: Sequence[BlockRef]) -> Recipe | None:
    last = chain[-1]
    return Recipe.from_bytes(bytes(store.read(last, RECIPE_PART))) if RECIPE_PART in last.part_bytes else None


def _decoded(
    chain: Sequence[BlockRef], reference: str, content_id: str | None, settings: Settings, reporter: Reporter
) -> str:
    from llmcli.engine.model import Model

    resolved, inspected = find_model(reference, settings, reporter)
    if inspected.content_id != content_id:
        raise ModelError(f"{printable(resolved.name)} is not the model that this prefix was computed with")
    with Model.load_vocabulary(resolved.path) as model:
        return text_of([token for ref in chain for token in ref.token_ids], model.tokenizer)


def _chain_json(chain: Sequence[BlockRef], recipe: Recipe | None) -> dict[str, Any]:
    made_of = recipe and {
        "system": recipe.system,
        "parts": [{"kind": part.kind, "name": part.name} for part in recipe.parts],
        "raw": recipe.raw,
        "chat_template": recipe.template[0] if recipe.template else None,
        "made_at": recipe.made_at.isoformat(timespec="seconds"),
    }
    blocks = [
        {
            "key": ref.key.hex(),
            "start_tokens": ref.start_tokens,
            "tokens": ref.n_tokens,
            "exact": ref.exact,
            "file_bytes": ref.file_bytes,
            "part_bytes": ref.part_bytes,
        }
        for ref in chain
    ]
    return {"recipe": made_of, "block_list": blocks}


def _shown(entry: Entry, models: Models, chain: Sequence[BlockRef], recipe: Recipe | None, text: str | None) -> str:
    now_s = time.time()
    names = ", ".join(printable(name) for name in entry.names) or "-"
    lines = [
        f"key      {entry.key.hex()}",
        f"name     {names}{' (pinned)' if entry.pinned else ''}",
        f"model    {models.title(entry.fingerprint)}",
        f"tokens   {entry.tokens:,} in {format_count(entry.blocks, 'block')}",
        f"bytes    {format_bytes(entry.chain_bytes)}, of its own {format_bytes(entry.private_bytes)}",
        f"age      {format_age(now_s - entry.created_s)}, used {format_age(now_s - entry.used_s)} ago",
        f"hits     {entry.hits:,}",
    ]
    if recipe:
        parts = ["the system prompt"] if recipe.system is not None else []
        parts += [printable(part.name) for part in recipe.parts]
        how = (
            "as plain text" if recipe.raw else f"by {printable(recipe.template[0])}" if recipe.template else "as a chat"
        )
        lines.append(f"made of  {', '.join(parts)}; {how}")
    lines.append("blocks")
    for ref in chain:
        parts_text = ", ".join(f"{printable(name)} {format_bytes(size)}" for name, size in ref.part_bytes.items())
        kind = "exact" if ref.exact else "end"
        lines.append(
            f"  {ref.key.hex()[:KEY_DIGITS]}  {ref.start_tokens:>7,} +{ref.n_tokens:<4}  {kind:<5}  {parts_text}"
        )
    if text is None:
        text = " … ".join(printable(ref.preview) for ref in chain) + " …"
        lines.append("beginnings of the blocks")
    else:
        lines.append("text")
    return "\n".join([*lines, text]) + "\n"
