"""`llmcli path`: where the file of a model is, for other programs."""

from __future__ import annotations

from typing import Any

import click

from llmcli.base.settings import Settings
from llmcli.cli import output
from llmcli.cli.complete import complete_model
from llmcli.cli.options import option
from llmcli.models.resolve import resolve_here

_EPILOG = """\b
Examples:
  llmcli path smollm2
  llama-server -m "$(llmcli path owner/repo:Q4_K_M)"
  llmcli path --all split-model | xargs -d '\\n' du -ch

\b
Exit status: 0 done, 2 usage, 3 no such model, 1 anything else."""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", metavar="MODEL", shell_complete=complete_model)
@option("--all", is_flag=True, help="All files of a split model, one on a line.")
@option("--real", is_flag=True, help="With links followed: in the Hugging Face cache the blob.")
@option("--json", is_flag=True, help="One JSON object.")
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> None:
    """Print the file of MODEL, of a split one its first part: what llama.cpp's own tools take. Nothing is fetched."""
    import os

    found = resolve_here(values["model"], settings)
    paths = [str(found.path)]
    if values["all"] or values["json"]:
        from llmcli.models.gguf_header import skim_header
        from llmcli.models.shards import read_shards

        paths = [str(header.path) for header in read_shards(skim_header(found.path), read=skim_header)]
    if values["real"]:
        paths = [os.path.realpath(path) for path in paths]
    if values["json"]:
        output.write_json({"reference": found.reference, "name": found.name, "path": paths[0], "files": paths})
    else:
        output.write_names(paths)
