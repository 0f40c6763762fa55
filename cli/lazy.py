"""A group of commands that imports a command only to run it: help and completion come from a table of summaries."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

import click

from llmcli.base.text import printable
from llmcli.cli import output

# name -> (module below llmcli.cli, attribute, one-line summary)
Table = Mapping[str, tuple[str, str, str]]


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary.

    table       the commands in the order in which help lists them
    otherwise   what an unknown command gets as advice where no name is near
    """

    def __init__(self, *args: Any, table: Table | None = None, otherwise: str = "", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.table: Table = table or {}
        self._otherwise = otherwise

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command, None for an unknown name."""
        if cmd_name not in self.table:
            return None
        module, attribute, _ = self.table[cmd_name]
        found = getattr(import_module(f"llmcli.cli.{module}"), attribute)
        return cast("click.Command", found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table without loading a command (click's own loads them all for their help)."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown one say which was meant. `help COMMAND` is `COMMAND --help`."""
        if args and args[0] == "help" and "help" not in self.table and not ctx.resilient_parsing:
            if len(args) == 1:
                output.write(ctx.get_help() + "\n")
                ctx.exit()
            args = [*args[1:], "--help"]
        # A shell that completes a line (resilient) wants no words in the middle of it.
        if args and args[0] not in self.table and not args[0].startswith("-") and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(args[0].lower(), self.table, n=1)
            meant = f"{ctx.command_path} {near[0]}" if near else self._otherwise or f"{ctx.command_path} --help"
            raise click.UsageError(f"there is no command {printable(args[0])!r}; did you mean: {meant}", ctx)
        return super().resolve_command(ctx, args)

    def pass_defaults_on(self, ctx: click.Context) -> None:
        """Give the values of config.toml to every command of the table: click looks for them under its name."""
        ctx.default_map = dict.fromkeys(self.table, ctx.default_map) if ctx.default_map else None
