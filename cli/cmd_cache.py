"""`llmcli cache`: the table of what can be done with the prefix store. Nothing heavy is imported before it is done."""

from __future__ import annotations

import click

from llmcli.cli.lazy import LazyGroup

# name -> (module below llmcli.cli, attribute, one-line summary), as in `main`
COMMANDS: dict[str, tuple[str, str, str]] = {
    "ls": ("cache_ls", "ls", "List what is stored, by model."),
    "show": ("cache_show", "show", "Show one stored prefix: its blocks, its text."),
    "stats": ("cache_stats", "stats", "Sum up: bytes, hits, tokens and time saved."),
    "save": ("cache_fill", "save", "Compute a prefix, give it a name, and keep it."),
    "restore": ("cache_fill", "restore", "Load a stored prefix, to see that it works and how fast."),
    "warm": ("cache_fill", "warm", "Store the prefixes of files, for questions to come."),
    "export": ("cache_move", "export", "Write a stored prefix to a file."),
    "import": ("cache_move", "import_", "Store a prefix from an exported file."),
    "rm": ("cache_rm", "rm", "Remove stored prefixes."),
    "prune": ("cache_rm", "prune", "Remove what is old, unused or too much."),
    "verify": ("cache_verify", "verify", "Check every stored byte; compute a sample again."),
    "why": ("cache_why", "why", "Say where two prompts part, and how to share more."),
    "path": ("cache_ls", "path", "Print the folder of the store."),
    "clear": ("cache_rm", "clear", "Remove everything."),
}
_EPILOG = """\b
Examples:
  llmcli cache ls
  llmcli cache save contract -sys "Be brief." -f contract.txt
  llmcli run --prefix contract "Who may end it?"
  llmcli cache prune --unused 30d --dry-run
  llmcli cache COMMAND --help"""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.pass_context
def group(ctx: click.Context) -> None:
    """The prefix store: KV caches of prompts on disk, found again by their tokens.

    Every run fills it and uses it. These commands show what is there, name it, fill it ahead, move it, check it and
    remove it.
    """
    if isinstance(ctx.command, LazyGroup):
        ctx.command.pass_defaults_on(ctx)
