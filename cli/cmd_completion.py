"""`llmcli completion`: the script that makes a shell complete llmcli's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from llmcli.base.errors import UsageError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cli import output

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_LLMCLI_COMPLETE"
_EPILOG = """\b
Examples:
  mkdir -p ~/.local/share/bash-completion/completions
  llmcli completion bash > ~/.local/share/bash-completion/completions/llmcli
  mkdir -p ~/.zfunc
  llmcli completion zsh > ~/.zfunc/_llmcli
  mkdir -p ~/.config/fish/completions
  llmcli completion fish > ~/.config/fish/completions/llmcli.fish

\b
Exit status: 0 done, 2 unknown shell."""


def _complete_shell(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in SHELLS if name.startswith(incomplete)]


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("shell", metavar="[bash|zsh|fish]", required=False, shell_complete=_complete_shell)
@click.pass_context
def command(ctx: click.Context, shell: str | None) -> None:
    """Print the completion script for SHELL (bash, zsh or fish; default: the one in $SHELL)."""
    name = shell or ctx.ensure_object(Settings).login_shell
    found = get_completion_class(name) if name in SHELLS else None
    if found is None:
        problem = f"there is no completion for {printable(shell)}" if shell else "which shell?"
        raise UsageError(problem, hint=f"llmcli completion {'|'.join(SHELLS)}")
    output.write(found(ctx.find_root().command, {}, "llmcli", _VARIABLE).source() + "\n")
