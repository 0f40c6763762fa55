"""`llmcli cache export` and `import`: a prefix in one file, from a strong machine to a small one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from llmcli.base.errors import LlmcliError, ModelError, ResourceError, UsageError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count
from llmcli.cache_store.keys import Fingerprint
from llmcli.cache_store.names import require_name
from llmcli.cache_store.portable import Imported, read_manifest
from llmcli.cli import output
from llmcli.cli.cache_options import (
    bench_request,
    cache_dir_option,
    keep_options,
    model_of_this_call,
    open_store,
)
from llmcli.cli.cache_view import Models
from llmcli.cli.complete import complete_file, complete_prefix
from llmcli.cli.engine_options import engine_options
from llmcli.cli.options import model_option, option, verbosity_options
from llmcli.cli.reporter import StderrReporter
from llmcli.engine import native
from llmcli.engine.prefix_report import MODEL_NAME_NOTE

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.command(
    "export",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache export contract contract.kv
  llmcli cache export 3fa2b1c0 /mnt/usb/prefix.kv --force

\b
Exit status: 0 done, 2 usage, 6 the disk is full, 1 no such prefix
or the file is there.""",
)
@click.argument("prefix", metavar="NAME|KEY", shell_complete=complete_prefix)
@click.argument("file", shell_complete=complete_file)
@option("--force", is_flag=True, help="Replace a file that is there.")
@option("--json", is_flag=True, help="One JSON object.")
@cache_dir_option
@verbosity_options
@click.pass_obj
def export(settings: Settings, /, **values: Any) -> None:
    """Write a prefix, all its blocks, to FILE, for `llmcli cache import` on a machine with the same model and build.

    The file holds the prompt's tokens: whoever can read it can read the prompt.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    target = _file(values["file"])
    if target.exists() and not target.is_file():  # --force would put a file in the place of /dev/null
        raise UsageError(f"{printable(values['file'])} is a directory or a device; export writes a file")
    if os.path.lexists(target) and not values["force"]:
        raise LlmcliError(f"{printable(values['file'])} is there already", hint="--force replaces it")
    with open_store(values, settings, reporter.notify) as store:
        keeper = store.keeper()
        chain = keeper.chain(values["prefix"])
        nbytes = keeper.export_chain(values["prefix"], target)
    tokens = chain[-1].end_tokens
    if values["json"]:
        output.write_json({"key": chain[-1].key.hex(), "file": values["file"], "tokens": tokens, "file_bytes": nbytes})
    else:
        output.write(f"{printable(values['file'])}: {format_count(tokens, 'token')}, {format_bytes(nbytes)}\n")


@click.command(
    "import",
    context_settings=_SETTINGS,
    epilog="""\b
Examples:
  llmcli cache import contract.kv --name contract
  llmcli cache import contract.kv -m smollm2 -ctk q8_0 -ctv q8_0

\b
Exit status: 0 done, 2 usage, 3 it does not fit the model or the build,
6 it cannot be kept, 1 the file is damaged or something else.""",
)
@click.argument("file", shell_complete=complete_file)
@option("--name", metavar="NAME", help="Name and pin it.")
@model_option
@option("--json", is_flag=True, help="One JSON object.")
@engine_options
@keep_options
@verbosity_options
@click.pass_obj
def import_(settings: Settings, /, **values: Any) -> None:
    """Store the prefix in FILE, which `llmcli cache export` wrote. Every block is checked before it is stored.

    Refused where another build of llama.cpp computed it. With -m also where that model, opened with the engine options
    given here, is not the one it was computed with.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    if values["name"] is not None:
        require_name(values["name"])
    source = _file(values["file"])
    if not source.is_file():
        raise UsageError(f"{printable(values['file'])} is not a file")
    stored = read_manifest(source).fingerprint
    _require_fits(stored, values, settings, reporter)
    with open_store(values, settings, reporter.notify) as store:
        keeper = store.keeper()
        done = keeper.import_chain(source, stored)
        if done.refused is not None:
            raise ResourceError(
                f"{printable(values['file'])}: {done.tokens:,} tokens were stored, then no more: {done.refused}",
                hint="llmcli cache stats",
            )
        if values["name"] is not None and done.end is not None:
            keeper.name(done.end, values["name"], pin=True)
        model = _model_name(stored, Models(store), values, settings, reporter)
        if model is not None:
            store.note(stored, {MODEL_NAME_NOTE: model})
    _tell(done, model, values)


def _model_name(
    stored: Fingerprint, models: Models, values: Mapping[str, Any], settings: Settings, reporter: StderrReporter
) -> str | None:
    """What the model is called here, where that is known: from runs with it, or by -m, which was found to fit."""
    if reference := model_of_this_call(values):
        from llmcli.engine.engine import find_model

        return find_model(reference, settings, reporter)[0].name
    content_id = stored.description.get("model")
    return models.name_of(content_id) if isinstance(content_id, str) else None


def _require_fits(stored: Fingerprint, values: Mapping[str, Any], settings: Settings, reporter: StderrReporter) -> None:
    from llmcli.engine.preflight import check_build

    where = printable(values["file"])
    if stored.description.get("build") != check_build(settings).digest:
        raise ModelError(f"{where} does not fit: another build of llama.cpp computed it", hint="llmcli doctor")
    if model_of_this_call(values):
        from llmcli.engine.prefix_admin import open_bench

        with open_bench(bench_request(values, settings), settings, reporter) as bench:
            bench.require_fits(stored, where)


def _tell(done: Imported, model: str | None, values: Mapping[str, Any]) -> None:
    key = done.end.key.hex() if done.end else None
    description = done.fingerprint.description
    if values["json"]:
        fields = {"tokens": done.tokens, "blocks": done.blocks, "written_bytes": done.written_bytes}
        known = {"model": {"name": model, "content_id": description.get("model")}}
        output.write_json({"key": key, "name": values["name"], **fields, **known})
        return
    what = printable(values["name"]) if values["name"] is not None else (key or "")[:12]
    content_id = printable(str(description.get("model")))[:12]
    called = f"{printable(model)} ({content_id})" if model else f"the model {content_id}, which is not known here"
    written = f"{format_bytes(done.written_bytes)} written"
    output.write(f"{what}: {format_count(done.tokens, 'token')} for {called}, {written}\n")


def _file(text: str) -> Path:
    if not text or "\0" in text:
        raise UsageError(f"{printable(text)!r} is not a file's name")
    return Path(text)
