"""`llmcli tokenize`: the ids and pieces of a text, as the model sees it."""

from __future__ import annotations

from typing import Any

import click

from llmcli.base.settings import Settings
from llmcli.base.units import format_count
from llmcli.cli import output
from llmcli.cli.inputs import gather_parts
from llmcli.cli.options import model_option, option, verbosity_options, without_weaker_rivals
from llmcli.cli.reporter import StderrReporter
from llmcli.engine import native
from llmcli.engine.tokens import Piece, tokenize_text

_EPILOG = """\b
Examples:
  llmcli tokenize "Hello world"
  llmcli tokenize --count -f report.txt
  printf 'ab\\0cd' | llmcli tokenize --json

\b
Exit status: 0 done, 2 usage, 3 no such model, 1 anything else."""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", metavar="[TEXT]", nargs=-1)
@model_option
@option("-p", "--prompt", metavar="TEXT", help="The text; the same as the argument. '-' is stdin.")
@option("-f", "--file", multiple=True, metavar="FILE", help="Text from a file; may be repeated. '-' is stdin.")
@option("--no-stdin", is_flag=True, help="Do not read stdin, even if it is a pipe.")
@option("--ids", is_flag=True, help="The ids alone, on one line.")
@option("--count", is_flag=True, help="The number of tokens alone.")
@option("--no-bos", is_flag=True, help="Leave out the BOS token that the model puts before every text.")
@option("--no-parse-special", is_flag=True, help="Control tokens in the text stay text, as in a user's message.")
@option("--json", is_flag=True, help="One JSON object.")
@verbosity_options
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> None:
    """Show how a model splits a TEXT into tokens: id, piece and what is special about it.

    Several parts (files, stdin, the argument) are joined as `llmcli run --raw` joins them. The weights are not loaded.
    """
    reporter = StderrReporter(settings, quiet=values["quiet"], verbose=values["verbose"])
    native.LOG.listen(reporter.native_log)
    values = without_weaker_rivals(values)
    parts = gather_parts(
        prompt=values["prompt"],
        words=values["words"],
        files=values["file"],
        use_stdin=not values["no_stdin"],
        notify=reporter.notify,
        example='llmcli tokenize "Hello world"',
        keep_blank=True,
    )
    found = tokenize_text(
        parts,
        values["model"],
        settings,
        reporter,
        with_bos=not values["no_bos"],
        parse_special=not values["no_parse_special"],
    )
    if values["json"]:
        output.write_json(found.as_json())
    elif values["count"]:
        output.write(f"{len(found.pieces)}\n")
    elif values["ids"]:
        output.write(" ".join(str(p.id) for p in found.pieces) + "\n")
    else:
        output.write("".join(_line(piece) for piece in found.pieces) + format_count(len(found.pieces), "token") + "\n")


def _line(piece: Piece) -> str:
    mark = "  special" if piece.special else ""
    return f"{piece.id:>7}  {piece.text!r}{mark}\n"
