"""`llmcli sessions`: the table of what can be done with saved conversations."""

from __future__ import annotations

import click

from llmcli.cli.lazy import LazyGroup

# name -> (module below llmcli.cli, attribute, one-line summary), as in `main`
COMMANDS: dict[str, tuple[str, str, str]] = {
    "ls": ("sessions_ls", "ls", "List the saved conversations, the last used first."),
    "show": ("sessions_ls", "show", "Show one conversation."),
    "export": ("sessions_ls", "export", "Write a conversation as Markdown, JSON or a session file."),
    "fork": ("sessions_change", "fork", "Copy a conversation to a new name."),
    "rename": ("sessions_change", "rename", "Give a conversation another name."),
    "rm": ("sessions_change", "rm", "Remove conversations."),
    "path": ("sessions_ls", "path", "Print the folder of the conversations."),
}
_EPILOG = """\b
Examples:
  llmcli sessions ls
  llmcli sessions show holidays
  llmcli sessions export holidays -o holidays.md
  llmcli sessions fork holidays winter
  llmcli sessions rm --yes winter
  llmcli chat --session holidays"""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.pass_context
def group(ctx: click.Context) -> None:
    """Saved conversations: one file each, readable, appended to as each turn ends.

    `llmcli chat` and `llmcli run --session NAME` write them. No model is needed for any of these commands.
    """
    if isinstance(ctx.command, LazyGroup):
        ctx.command.pass_defaults_on(ctx)
